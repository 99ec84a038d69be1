"""GAE: how much better a token went than the critic expected, whitened over all tokens of the step. No groups."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch, Doubles
from rljob_trainer.advantage.returns import discounted, token_rewards
from rljob_trainer.advantage.statistics import whiten
from rljob_trainer.types import Floats


def gae(batch: AdvantageBatch) -> Floats:
    """A_t = (D_t - mean(D)) / sqrt(var(D) + 1e-8) over all tokens, with D_t = d_t + gamma lambda D_{t+1}.

    d_t = r_t + gamma V_{t+1} - V_t, with the critic's value V_t of what comes before token t, 0 behind the last token.
    The token reward r_t is minus the token's KL penalty, plus the outcome reward for the last token. Tokens that were
    not sampled, such as a tool's, are left out: the value behind a sampled token is that of the next sampled one. The
    critic learns the returns D_t + V_t, for which D has a lambda of its own (critic.lambda). With lambdaAlpha, an
    episode of l tokens has lambda 1 - 1 / (lambdaAlpha l), at least 0: the sum of its powers is lambdaAlpha l.

    Use it with one response a prompt, or for long episodes, in which tokens deserve different credit; it costs a second
    model.

    Schulman et al. 2016, Generalized Advantage Estimation: https://arxiv.org/abs/1506.02438; Yue et al. 2025, VAPO, for
    two lambdas, and one that follows the length: https://arxiv.org/abs/2504.05118
    """
    return whiten(_estimates(batch, _lambdas(batch))).astype(np.float32)


def value_targets(batch: AdvantageBatch, lambda_: float) -> Floats:
    """What the critic learns, [sum(lengths)]: D_t + V_t with this lambda. With 1, the discounted sum of rewards."""
    return (_estimates(batch, lambda_) + batch.known_values()).astype(np.float32)


def _lambdas(batch: AdvantageBatch) -> float | Doubles:
    """Of all episodes, or of each, [N]."""
    if not batch.lambda_alpha:
        return batch.lambda_
    return np.maximum(0.0, 1 - 1 / (batch.lambda_alpha * np.maximum(1, batch.lengths)))


def _estimates(batch: AdvantageBatch, lambda_: float | Doubles) -> Doubles:
    values = batch.known_values()
    following = np.append(values[1:], 0.0)[: values.size]
    following[np.cumsum(batch.lengths)[batch.lengths > 0] - 1] = 0.0
    errors = token_rewards(batch) + batch.gamma * following - values
    return discounted(errors, batch.lengths, batch.gamma * lambda_)
