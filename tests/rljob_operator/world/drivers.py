"""Drivers, and the volume that outlives them.

submitted ──begin──> claims its attempt ──work──> steps, checkpoints ──> ends with a code
               └──> 77: the number is taken
"""

from dataclasses import dataclass, field

from rljob_api.conditions import Reason
from rljob_api.contract import DriverJob, ExitCode, ExitRecord
from rljob_api.preflight import BadNode, PreflightRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator.kube.kinds import Key
from tests.rljob_operator.world.clock import now

CHECKPOINT_EVERY = 2


@dataclass
class Volume:
    """Of one job. claimed: the newest attempt that has begun. asked: somebody wants a checkpoint and the driver's end.

    saved: steps of the checkpoints.
    """

    claimed: int = 0
    asked: bool = False
    exits: dict[int, ExitRecord] = field(default_factory=dict)
    preflights: dict[int, PreflightRecord] = field(default_factory=dict)
    progress: Progress | None = None
    saved: list[CheckpointStatus] = field(default_factory=list)

    @property
    def durable_step(self) -> int:
        return self.saved[-1].step if self.saved else 0

    def save(self, step: int, attempt: int) -> None:
        if step > self.durable_step:
            self.saved.append(CheckpointStatus(step=step, path=f"/checkpoints/step-{step}-a{attempt}", time=now()))


@dataclass
class Driver:
    """One start of an attempt.

    job_file: the ConfigMap with it. job: what that said when the driver began.
    code: how it ended, as Ray saw it; None while it lives, and for ever where it died with its head. dead: that.
    fenced: another one has, or had, its number or a later one.
    """

    submission: str
    attempt: int
    cluster_uid: str
    volume: Volume
    job_file: Key
    job: DriverJob | None = None
    step: int = 0
    code: int | None = None
    dead: bool = False
    fenced: bool = False

    @property
    def lives(self) -> bool:
        return self.code is None and not self.dead

    def begin(self, job: DriverJob) -> None:
        self.job = job
        if self.attempt <= self.volume.claimed:
            self.fenced, self.code = True, int(ExitCode.FENCED)  # and leaves the record to whoever has the number
            return
        self.volume.claimed, self.volume.asked = self.attempt, False
        self.step = self.volume.durable_step
        if job.spec.preflight.fabric is not None:
            self.volume.preflights[self.attempt] = PreflightRecord(passed=True, time=now(), seconds=1.0)

    def blames(self, host: str) -> None:
        """The links of the worker pod are slow."""
        bad, reason = BadNode(host=host, address="10.0.0.1"), Reason.FABRIC_SLOW
        self.volume.preflights[self.attempt] = PreflightRecord(
            passed=False, reason=reason, bad_nodes=[bad], time=now(), seconds=1.0
        )
        self.end(ExitCode.INFRASTRUCTURE, reason=reason)

    def work(self) -> None:
        """A step, or what has to be done instead of it."""
        assert self.job is not None
        assert self.job.spec.training.steps is not None
        total = self.job.spec.training.steps
        if self.volume.claimed > self.attempt:
            self.fenced = True
            self.end(ExitCode.FENCED)
        elif self.volume.asked:
            self.volume.save(self.step, self.attempt)
            self.end(ExitCode.STOPPED)
        elif self.step >= total:
            self.end(ExitCode.DONE)
        else:
            self._step(total)

    def end(self, code: int, *, recorded: bool = True, reason: str | None = None) -> None:
        """recorded: or killed before it could write how it ended. reason: None for that of the code."""
        self.code = int(code)
        if recorded and self.attempt == self.volume.claimed:
            of_code = ExitCode(code).name.title().replace("_", "") if code in set(ExitCode) else "Killed"
            self.volume.exits[self.attempt] = ExitRecord(code=int(code), reason=reason or of_code, message="words")

    def _step(self, total: int) -> None:
        self.step += 1
        self.volume.progress = Progress(step=self.step, total_steps=total, percent=100 * self.step / total)
        if self.step % CHECKPOINT_EVERY == 0 or self.step == total:
            self.volume.save(self.step, self.attempt)
