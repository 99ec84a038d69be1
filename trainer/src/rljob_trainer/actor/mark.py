"""What the ranks' weights are, as the controller that made them said. Light: the driver imports it."""

from dataclasses import dataclass, field
from typing import Any

from rljob_trainer.progress.metrics import Stage


@dataclass(frozen=True, slots=True)
class Mark:
    """Put on every rank together with the update that it names, so that the next driver can go on from there.

    step: the last update. digest: of the policy that it made.
    stage: the one whose optimizer the rank holds, None before the first.
    before, after: LoopState.state_dict() before and after that step.
    metrics: what the controller had measured of the step when the update began.
    """

    step: int
    digest: str
    stage: Stage | None
    before: dict[str, Any]
    after: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's state. result: what the rank returned of that update; None where there was none, as after a restore."""

    mark: Mark
    result: Any = None
