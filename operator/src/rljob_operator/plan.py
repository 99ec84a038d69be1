"""What to do about a job: pure data. `perform` does it in the order of the fields."""

from dataclasses import dataclass
from typing import Final

from rljob_api.v1alpha1 import RLJobStatus
from rljob_api.v1alpha1.recovery import FAILURES
from rljob_operator.kube.kinds import Manifest, Ref

SECRET_SECONDS = 300.0
"""Between two tries to make a Secret that pods may lack."""

OTHER: Final = "other"
CHARGED: Final = (*map(str, FAILURES), OTHER)
"""Why a restart may be charged. A driver says what it likes, and a metric's label must not: OTHER is all the rest."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A driver to start. generation: of the spec that it has to read."""

    id: str
    attempt: int
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the job, for people. warning: or normal."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """finalizer: put it there (True), take it away (False), leave it (None).

    force: pods to delete without waiting for their nodes' word. hurry: pods that have nothing to save.
    create: objects that are made once and then left alone. apply: objects whose fields we own.
    label: those that need our label back.
    secret: what pods seem to wait for, made if it is gone: nobody may look.
    stop: ask the driver for a checkpoint and to stop, unless it has heard so.
    end: a submission whose driver does not listen.
    status: what it should say; None to leave it.
    restart: why another attempt is charged to the budget: one of CHARGED.
    again_in: seconds after which to look again, whatever happens; None to wait for news.
    """

    finalizer: bool | None = None
    delete: tuple[Ref, ...] = ()
    force: tuple[Ref, ...] = ()
    hurry: tuple[Ref, ...] = ()
    apply: tuple[Manifest, ...] = ()
    create: tuple[Manifest, ...] = ()
    label: tuple[Manifest, ...] = ()
    secret: Manifest | None = None
    submit: Submission | None = None
    stop: bool = False
    end: str | None = None
    status: RLJobStatus | None = None
    events: tuple[Event, ...] = ()
    restart: str | None = None
    again_in: float | None = None

    @property
    def told(self) -> RLJobStatus | None:
        """The status to write now: none after something was made, for the next look is at once and has more to say."""
        return None if self.create else self.status
