"""One gate's answer: what the job is doing, and what to do for it now."""

from dataclasses import dataclass, field
from typing import Any

from rljob_api.v1alpha1.status import Phase
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.plan import Submission

MESSAGE = 32_768
"""Characters of a message in the status, and in a driver's record, at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """The gate that answers decides alone.

    reason, message: of the condition that the phase makes true, and of Ready. status: fields to change.
    deployed: whether what exists for a living job should be there. apply: what should be there besides that.
    The other fields are Plan's.
    """

    phase: Phase
    reason: str
    message: str
    status: dict[str, Any] = field(default_factory=dict)
    deployed: bool = True
    finalizer: bool | None = None
    delete: tuple[Ref, ...] = ()
    apply: tuple[Manifest, ...] = ()
    create: tuple[Manifest, ...] = ()
    secret: Manifest | None = None
    submit: Submission | None = None
    stop: bool = False
    end: str | None = None
    again_in: float | None = None
