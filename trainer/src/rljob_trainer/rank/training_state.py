"""What the ranks' weights are, as the driver that made them said. Light: the driver imports it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_trainer.progress.metrics import Stage
from rljob_trainer.rank.results import Updated


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Put on every rank together with the update that it names, so that the next driver can go on from there.

    step: the last update. digest: of the policy that it made.
    stage: the one whose optimizer the rank holds, None before the first.
    before, after: LoopState.state_dict() before and after that step, as JSON.
    metrics, tokens: what the driver knew of an RL step, and how many tokens it was, when the update began.
    """

    step: int
    digest: str
    stage: Stage | None
    before: dict[str, Any]
    after: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank holds.

    updated: what it returned of the update that made its weights; None if there was none, as after a restore.
    """

    training_state: TrainingState
    updated: Updated | None = None


@dataclass(frozen=True, slots=True)
class RankStates:
    """What all ranks hold: the same weights.

    updated: what each of them returned of the update that made the weights; empty if there was none.
    """

    training_state: TrainingState
    updated: Sequence[Updated] = ()
