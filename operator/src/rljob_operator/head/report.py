"""What a head pod reports of the last attempt."""

from dataclasses import dataclass
from typing import NamedTuple

from rljob_api.contract import ExitRecord
from rljob_api.preflight import PreflightRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator.head.ray_jobs import RayJob


@dataclass(frozen=True, slots=True)
class HeadReport:
    """What the head pod reports of the last attempt.

    driver: Ray's report on its submission; None if Ray does not know it.
    exit: its exit record; None if it left none.
    preflight: what its fabric preflight found; None if it had none yet.
    heartbeat: another number every few seconds while it lives.
    begun: the volume has the attempt's claim, which lasts longer than Ray's memory: that goes with its container.
    empty: the agent reports that there is no checkpoint.
    agent: whether it answered at all.
    Except for driver, fields are None if the agent does not know, or knows only an earlier attempt or job.
    """

    driver: RayJob | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    exit: ExitRecord | None = None
    preflight: PreflightRecord | None = None
    heartbeat: int | None = None
    begun: bool = False
    empty: bool = False
    agent: bool = True


class Heard(NamedTuple):
    """head: None if Ray's head does not answer. silent: seconds without a sign of life of the driver, for any reason.
    unauthorized: a server answered, and refused the operator's token.
    """

    head: HeadReport | None = None
    silent: float = 0.0
    unauthorized: bool = False
