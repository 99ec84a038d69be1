"""What every advantage estimator gets."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.errors import JobError, RewardError
from rljob_trainer.old_types import Floats

Doubles = NDArray[np.float64]
Indexes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """All N responses of one step, their tokens flat: those of response 0, then of response 1, ...

    rewards: [N], the outcome reward of each response.
    groups: [N], equal numbers for responses to the same prompt; any numbers in any order.
    lengths: [N], tokens of each response, 1 or more.
    token_penalties: [sum(lengths)], coefficient x KL estimate of each token, subtracted from that token's reward; None
        where the KL does not act in the reward.
    gamma: discount of token rewards; 1 does not discount.

    Raises RewardError for a reward that is not finite, JobError for such a penalty, ValueError for shapes that
    disagree.
    """

    rewards: Floats
    groups: Indexes
    lengths: Indexes
    token_penalties: Floats | None = None
    gamma: float = 1.0

    def __post_init__(self) -> None:
        shapes = (self.rewards.shape, self.groups.shape, self.lengths.shape)
        if len(set(shapes)) != 1 or self.rewards.ndim != 1:
            raise ValueError(f"rewards, groups and lengths must be [N], not {shapes}")
        if self.lengths.size and self.lengths.min() < 1:
            raise ValueError(f"response {int(self.lengths.argmin())} has no tokens")
        require_finite_rewards(self.rewards, self.groups)
        self._check_penalties()

    def _check_penalties(self) -> None:
        if self.token_penalties is None:
            return
        if self.token_penalties.shape != (self.tokens,):
            raise ValueError(f"token_penalties must be [{self.tokens}], not {self.token_penalties.shape}")
        if not np.isfinite(self.token_penalties).all():
            raise JobError(
                "a KL penalty is not finite, so the policy has diverged: lower the learning rate and resume",
                field="spec.actor.learningRate",
            )

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def scores(self) -> Doubles:
        """[N]: each response's reward less the sum of its tokens' penalties, its return without discount."""
        scores = self.rewards.astype(np.float64)
        if self.token_penalties is not None:
            owners = np.repeat(np.arange(self.lengths.size), self.lengths)
            scores -= np.bincount(owners, weights=self.token_penalties, minlength=self.lengths.size)
        return scores

    def spread(self, per_response: Doubles) -> Floats:
        """[N] -> [sum(lengths)]: every token gets its response's value."""
        return np.repeat(per_response, self.lengths).astype(np.float32)


def require_finite_rewards(rewards: Floats, groups: Indexes) -> None:
    """Raise RewardError that names the first response whose reward is NaN or infinite."""
    broken = np.flatnonzero(~np.isfinite(rewards))
    if broken.size:
        first = int(broken[0])
        raise RewardError(
            f"{broken.size} of {rewards.size} rewards are not finite, the first of response {first} "
            f"(group {int(groups[first])}): {rewards[first]}; return a finite number",
            field="spec.rewards",
        )
