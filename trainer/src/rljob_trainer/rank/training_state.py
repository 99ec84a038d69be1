"""What the ranks' weights are, as the controller that made them said. Light: the driver imports it."""

from dataclasses import dataclass, field
from typing import Any

from rljob_trainer.progress.metrics import Stage


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Put on every rank together with the update that it names, so that the next driver can go on from there.

    step: the last update. digest: of the policy that it made.
    stage: the one whose optimizer the rank holds, None before the first.
    before, after: LoopState.state_dict() before and after that step.
    metrics, tokens: what the controller knew of an RL step, and how many tokens it was, when the update began.
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
    """A rank's state, or that of all ranks.

    result: what the rank returned of that update, or a list with what each did; None where there was none, as after a
    restore.
    """

    mark: TrainingState
    result: Any = None
