"""What a head pod reports of the last attempt."""

from dataclasses import dataclass
from typing import NamedTuple

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator.head.ray_jobs import RayJob


@dataclass(frozen=True, slots=True)
class HeadReport:
    """What the head pod said of the last attempt.

    driver: Ray's word on its submission; None where Ray does not know it. begun: the volume has its claim, whatever Ray
    knows: its head forgets with its container.
    exit: its exit record; None where it left none. heartbeat: another number every few seconds while it lives.
    All but Ray's word is None where the agent does not know, or knows only an earlier attempt, or an earlier job.
    empty: the agent knows that there is no checkpoint. agent: whether it answered at all.
    """

    driver: RayJob | None = None
    progress: Progress | None = None
    checkpoint: CheckpointStatus | None = None
    exit: ExitRecord | None = None
    heartbeat: int | None = None
    begun: bool = False
    empty: bool = False
    agent: bool = True


class Heard(NamedTuple):
    """head: None where Ray's head does not answer. silent: seconds in which nobody told a sign of life of the driver,
    for whatever reason. unauthorized: somebody answered, and did not take our token.
    """

    head: HeadReport | None = None
    silent: float = 0.0
    unauthorized: bool = False
