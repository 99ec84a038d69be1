"""GRPO: an episode's distance from its group's mean, in standard deviations of the group."""

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that equal rewards give 0 instead of 0/0. It changes an advantage of rewards 0
and 1 by a factor of about 2e-6. verl uses the same value, TRL 1e-4."""


def grpo(batch: AdvantageBatch) -> Floats:
    """A_i = (s_i - mean(s)) / (std(s) + 1e-6) over the group, the same for every token of episode i.

    s_i is the reward minus the episode's summed KL penalty; std divides by size - 1, as in verl and TRL. With the KL in
    the reward, penalties alone rank a group with equal rewards, however small they are: prefer the KL in the loss.

    Use it as the first choice with several responses a prompt.

    Shao et al. 2024, DeepSeekMath, section 4.1.2: https://arxiv.org/abs/2402.03300
    """
    group = group_statistics(batch.scores(), batch.groups)
    return batch.spread(group.centered / (group.std + STD_EPSILON))
