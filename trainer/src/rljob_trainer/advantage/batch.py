"""The input of every advantage estimator."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.errors import JobError, RewardError
from rljob_trainer.types import Floats

Doubles = NDArray[np.float64]
Indexes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Turns:
    """The M turns of all episodes, those of episode 0 first, each in the order of its tokens.

    owners: [M], the episode of each; ascending. lengths: [M], tokens in the loss.
    rewards: [M]; those of an episode add up to its reward.
    states: [M], equal numbers for equal observations before the turn.
    order: [M], when each was taken, from 0 in each episode.
    """

    owners: Indexes
    lengths: Indexes
    rewards: Floats
    states: Indexes
    order: Indexes


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """All N episodes of one step, their tokens in the loss flat: episode 0, then episode 1, ...

    rewards: [N], the outcome reward of each episode.
    groups: [N], equal numbers for episodes of the same task, in any order.
    lengths: [N], tokens in the loss of each episode, over all its trajectories.
    token_penalties: [sum(lengths)], coefficient x KL estimate, subtracted from each token's reward; None if the KL
        does not act in the reward.
    baselines: [N], the reward of the greedy answer to each episode's prompt; None without such answers.
    token_rewards: [sum(lengths)], rewards of single tokens besides `rewards`; None if there are none.
    gamma: discount of token rewards; 1: none.
    values: [sum(lengths)], the critic's value of what comes before each token; None without a critic.
    lambda_: of gae. lambda_alpha: above 0, gae's lambda is 1 - 1 / (lambda_alpha l) of an episode of length l.
    teacher: [sum(lengths)], coefficient x (log pi_teacher - log pi) of each token; None without a teacher.
    turns: of the episodes; None: each is one turn. step_weight: of gigpo's comparison of turns.

    Raises RewardError for a non-finite reward, JobError for a non-finite penalty or value, ValueError for wrong shapes.
    """

    rewards: Floats
    groups: Indexes
    lengths: Indexes
    token_penalties: Floats | None = None
    gamma: float = 1.0
    baselines: Floats | None = None
    values: Floats | None = None
    lambda_: float = 1.0
    turns: Turns | None = None
    step_weight: float = 1.0
    lambda_alpha: float = 0.0
    token_rewards: Floats | None = None
    teacher: Floats | None = None

    def __post_init__(self) -> None:
        shapes = (self.rewards.shape, self.groups.shape, self.lengths.shape)
        if len(set(shapes)) != 1 or self.rewards.ndim != 1:
            raise ValueError(f"rewards, groups and lengths must be [N], not {shapes}")
        require_finite_rewards(self.rewards, self.groups)
        if self.baselines is not None:
            require_finite_rewards(self.baselines, self.groups)
        self._check_tokens("token_penalties", "a KL penalty is not finite: the policy has diverged", "actor")
        if self.token_rewards is not None and self.token_rewards.shape != (self.tokens,):
            raise ValueError(f"token_rewards must be [{self.tokens}], not {self.token_rewards.shape}")
        self._check_tokens("teacher", "a reverse KL is not finite: the policy has diverged", "actor")
        self._check_tokens("values", "a value is not finite: the critic has diverged", "critic")

    def _check_tokens(self, name: str, problem: str, block: str) -> None:
        numbers: Floats | None = getattr(self, name)
        if numbers is None:
            return
        if numbers.shape != (self.tokens,):
            raise ValueError(f"{name} must be [{self.tokens}], not {numbers.shape}")
        if not np.isfinite(numbers).all():
            raise JobError(f"{problem}; lower the learning rate and resume", field=f"spec.{block}.learningRate")

    def known_values(self) -> Doubles:
        """The values, in float64. Raises ValueError without a critic."""
        if self.values is None:
            raise ValueError("gae needs the values of a critic")
        return self.values.astype(np.float64)

    def known_turns(self) -> Turns:
        """The turns; each episode is one if it has no others."""
        if self.turns is not None:
            return self.turns
        every = np.arange(self.rewards.size)
        return Turns(every, self.lengths, self.rewards, self.groups, np.zeros_like(every))

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def scores(self) -> Doubles:
        """[N]: each episode's reward minus the sum of its tokens' penalties."""
        scores = self.rewards.astype(np.float64)
        if self.token_penalties is not None:
            owners = np.repeat(np.arange(self.lengths.size), self.lengths)
            scores -= np.bincount(owners, weights=self.token_penalties, minlength=self.lengths.size)
        return scores

    def spread(self, per_episode: Doubles) -> Floats:
        """[N] -> [sum(lengths)]: every token gets its episode's value."""
        return np.repeat(per_episode, self.lengths).astype(np.float32)


def require_finite_rewards(rewards: Floats, groups: Indexes) -> None:
    """Raise RewardError that names the first episode with a NaN or infinite reward."""
    broken = np.flatnonzero(~np.isfinite(rewards))
    if broken.size:
        first = int(broken[0])
        raise RewardError(
            f"{broken.size} of {rewards.size} rewards are not finite; the first is {rewards[first]} of episode {first} "
            f"(group {int(groups[first])}); return finite numbers",
            field="spec.rewards",
        )
