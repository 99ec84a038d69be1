"""REINFORCE++: discounted returns per token, whitened over all tokens of the step. No groups."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.returns import discounted, token_rewards
from rljob_trainer.advantage.statistics import whiten
from rljob_trainer.types import Floats


def reinforce_plus_plus(batch: AdvantageBatch) -> Floats:
    """A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8) over all tokens of the step, with G_t = r_t + gamma G_{t+1}.

    The token reward r_t is minus the token's KL penalty, plus the outcome reward for the last token.

    Use it with one response a prompt, or if rewards of all prompts have one scale.

    Hu et al. 2025, REINFORCE++, section 3: https://arxiv.org/abs/2501.03262
    """
    return whiten(discounted(token_rewards(batch), batch.lengths, batch.gamma)).astype(np.float32)
