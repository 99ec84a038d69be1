"""Advantages of a step with a critic, and what the critic is to learn of it.

ranks: values ──> driver: advantages, returns ──> ranks: both models learn, or the critic alone in its first steps
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_api import ResolvedSpec
from rljob_trainer.advantage import value_targets
from rljob_trainer.loop.batches import StepBatch, advantage_batch, estimated, gather, of_ranks
from rljob_trainer.loop.metrics import Metrics
from rljob_trainer.loop.stages import critic_learning_rate_of, critic_learns_alone
from rljob_trainer.progress import names
from rljob_trainer.rank.results import CriticOrder
from rljob_trainer.types import Floats, GroupSummary


@dataclass(frozen=True, slots=True)
class Valued:
    """advantages: of each rank. orders: for the critic, of each rank; None without one."""

    advantages: list[list[Floats]]
    orders: list[CriticOrder] | None
    metrics: Metrics


def valued(
    groups: Sequence[GroupSummary], batch: StepBatch, penalties: Floats | None, values: Sequence[Sequence[Floats]],
    spec: ResolvedSpec, step: int, norm_bound: float, teacher: Floats | None = None,
) -> Valued:  # fmt: skip
    """values: of each rank, in the order of its plan. norm_bound: of the critic's gradients."""
    assert spec.critic is not None
    given = advantage_batch(groups, batch, penalties, spec, gather(batch, values), teacher)
    returns = value_targets(given, spec.critic.lambda_)
    rate, alone = critic_learning_rate_of(spec, step), critic_learns_alone(spec, step)
    orders = [
        CriticOrder(plan, batch.critic_totals, own, rate, norm_bound, alone)
        for plan, own in zip(batch.critic_plans, of_ranks(batch, returns), strict=True)
    ]
    advantages = of_ranks(batch, estimated(given, spec))
    return Valued(advantages, orders, _metrics(given.known_values(), returns.astype(np.float64)))


def _metrics(values: NDArray[np.float64], returns: NDArray[np.float64]) -> Metrics:
    """Explained variance is 1 if every value is its return, 0 if values say no more than a constant does."""
    variance = float(returns.var())
    metrics = {names.CRITIC_VALUE_MEAN: float(values.mean()), names.CRITIC_RETURN_MEAN: float(returns.mean())}
    if variance > 0:
        metrics[names.CRITIC_EXPLAINED_VARIANCE] = 1 - float((returns - values).var()) / variance
    return metrics
