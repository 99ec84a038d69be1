"""What to do about a job, as data: a gate answers with a Step, `decide` makes it a Plan, `perform` carries it out."""

from dataclasses import dataclass, field
from typing import Any, Final

from rljob_api.v1alpha1 import RLJobStatus
from rljob_api.v1alpha1.recovery import FAILURES
from rljob_api.v1alpha1.status import Phase
from rljob_operator.kube.kinds import Manifest, Ref

MESSAGE = 32_768
"""Characters of a message in the status, and in a driver's record, at most."""

SECRET_SECONDS = 300.0
"""Between two attempts to create a Secret that pods may lack."""

OTHER: Final = "other"
CHARGED: Final = (*map(str, FAILURES), OTHER)
"""Why a restart may be charged. A driver may record any reason, but a metric's label must be bounded."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A driver to start. generation: of the spec that it has to read."""

    id: str
    attempt: int
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of an object, if it still has this version, as a JSON merge patch.

    version: its resourceVersion. subresource: None for the object without its status.
    frees: it gives quota back, so the API server must have no pod of the job any more, whatever the watches say.
    """

    ref: Ref
    version: str
    change: Manifest
    subresource: str | None = None
    frees: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the job, for people. warning: or normal."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """What to do for the job.

    finalizer: add it (True), remove it (False), leave it (None).
    delete: objects, with their own grace period.
    patch: changes of the Workload: its quota, its spec, its finalizer.
    apply: objects whose fields the operator owns.
    create: objects that are created once and then left alone.
    secret: what pods may be waiting for; it is created if it is gone, because the operator may not read Secrets.
    submit: the driver to start.
    stop: ask the driver for a checkpoint and to stop, unless it has heard so.
    end: the submission of a driver that does not react.
    again_in: seconds after which to look again in any case; None to wait for news.
    """

    finalizer: bool | None = None
    delete: tuple[Ref, ...] = ()
    patch: tuple[Patch, ...] = ()
    apply: tuple[Manifest, ...] = ()
    create: tuple[Manifest, ...] = ()
    secret: Manifest | None = None
    submit: Submission | None = None
    stop: bool = False
    end: str | None = None
    again_in: float | None = None


@dataclass(frozen=True, slots=True)
class Step(Actions):
    """One gate's answer: what the job is doing, and what to do for it now. The gate that answers decides alone.

    reason, message: of the condition that the phase makes true, and of Ready.
    status: fields to change.
    deployed: whether what exists for a living job should be there; `apply` is besides that.
    """

    phase: Phase
    reason: str
    message: str
    status: dict[str, Any] = field(default_factory=dict)
    deployed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Actions):
    """Everything to do after one look.

    force: pods to delete without waiting for their nodes.
    short_grace: pods to delete that have nothing to save.
    status: what it should say; None to leave it.
    restart: why another attempt is charged to the budget: one of CHARGED.
    """

    force: tuple[Ref, ...] = ()
    short_grace: tuple[Ref, ...] = ()
    status: RLJobStatus | None = None
    events: tuple[Event, ...] = ()
    restart: str | None = None

    @property
    def written(self) -> RLJobStatus | None:
        """The status to write now: none after something was created, because the next look follows at once."""
        return None if self.create else self.status
