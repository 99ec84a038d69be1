"""GRPO: how far an episode lies from its group's mean, in the group's standard deviations."""

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that a group with equal rewards gets 0 rather than 0/0. With rewards of 0 and 1
it changes an advantage by some 2e-6 of its size. The value of verl; TRL takes 1e-4."""


def grpo(batch: AdvantageBatch) -> Floats:
    """A_i = (s_i - mean(s)) / (std(s) + 1e-6) over the group, the same for every token of episode i.

    s_i is the reward less the summed KL penalty of the episode; std divides by size - 1, as verl and TRL do. With the
    KL in the reward, a group with equal rewards is ranked by its penalties alone, however small: prefer it in the loss.

    Shao et al. 2024, DeepSeekMath, section 4.1.2: https://arxiv.org/abs/2402.03300
    """
    group = group_statistics(batch.scores(), batch.groups)
    return batch.spread(group.centered / (group.std + STD_EPSILON))
