"""Dr.GRPO: GRPO without the division by the standard deviation, which favours very easy and very hard prompts."""

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats


def dr_grpo(batch: AdvantageBatch) -> Floats:
    """A_i = s_i - mean(s) over the group, the same for every token of episode i.

    s_i is the reward minus the episode's summed KL penalty. The aggregation dr_grpo has the paper's constant divisor of
    the loss.

    Use it if prompts that are nearly always or never solved get too much weight.

    Liu et al. 2025, Understanding R1-Zero-Like Training, section 3.2: https://arxiv.org/abs/2503.20783
    """
    return batch.spread(group_statistics(batch.scores(), batch.groups).centered)
