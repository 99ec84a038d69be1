"""The trainer's exceptions, and the exit code by which a supervisor decides what to do.

RLJobError
├── JobError            64  the job or its configuration is wrong        stop
│   └── EngineMismatch      engine and trainer do not compute the same
├── DataError           65  data or model is wrong                       stop
├── RewardError         66  the user's reward code is wrong              stop
│   └── EnvironmentFailed   the user's environment is
├── InfrastructureError 75  a process, a device or a network failed      try again
│   ├── WorkerLost          a worker died or hangs: RankLost, EngineLost, RewardsLost (the rollout host)
│   └── FabricSlow, FabricWrong   the fabric preflight found slow links, or wrong data
├── StoppedOnRequest    76  checkpointed and stopped                     resume on request
├── FencedError         77  another attempt took over                    exit
├── NoUsableCheckpoint  78  checkpoints exist, none is usable            stop
└── StorageFullError    79  the volume is full                           stop, or grow the volume

Any other exception is a bug: 70, unless an OSError of the system caused it (`is_outage`: 75, `is_full`: 79).
"""

import errno
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import ClassVar

from rljob_api.contract import ExitCode


class RLJobError(Exception):
    """A failure with a message for the user.

    message: what is wrong and what to do, without a traceback.
    field: the spec field to change, such as "spec.data.train[0]"; None if no field is the cause.
    """

    exit_code: ClassVar[ExitCode]

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)  # pickle restores the attributes, which Ray's errors carry between processes
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


@contextmanager
def blamed(field: str) -> Iterator[None]:
    """Let errors of the block name `field`, whose model another field's code reads."""
    try:
        yield
    except RLJobError as error:
        raise type(error)(error.message, field=field) from error


class JobError(RLJobError):
    exit_code = ExitCode.JOB


class EngineMismatch(JobError):
    """Engine and trainer compute different log-probabilities, and new weights or a new engine did not change that."""


class DataError(RLJobError):
    exit_code = ExitCode.DATA


class RewardError(RLJobError):
    exit_code = ExitCode.REWARD


class EnvironmentFailed(RewardError): ...


class InfrastructureError(RLJobError):
    exit_code = ExitCode.INFRASTRUCTURE


class WorkerLost(InfrastructureError):
    """worker: the worker's name, such as rank-1."""

    def __init__(self, message: str, *, field: str | None = None, worker: str = "") -> None:
        super().__init__(message, field=field)
        self.worker = worker


class RankLost(WorkerLost): ...


class EngineLost(WorkerLost): ...


class RewardsLost(WorkerLost):
    """The rollout host died or hangs; its worker is named "rewards"."""


class FabricSlow(InfrastructureError):
    """Two nodes exchange data more slowly than the job's minimum, or not at all."""


class FabricWrong(InfrastructureError):
    """Data arrived wrong."""


class StoppedOnRequest(RLJobError):
    exit_code = ExitCode.STOPPED


class FencedError(RLJobError):
    exit_code = ExitCode.FENCED


class NoUsableCheckpoint(RLJobError):
    exit_code = ExitCode.NO_CHECKPOINT


class StorageFullError(RLJobError):
    exit_code = ExitCode.STORAGE_FULL


def first_line(error: BaseException) -> str:
    """Of a message that may go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_QUOTED = 300


def quoted(error: Exception) -> str:
    """Kind and text of another library's error, on one line and not longer than a message bears."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= _QUOTED else f'{text[:_QUOTED]}...'}"


@contextmanager
def on_volume(problem: str) -> Iterator[None]:
    """Raise storage_error in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, problem) from error


def storage_error(error: OSError, problem: str) -> RLJobError:
    """StorageFullError or InfrastructureError. problem: begins the message, such as "attempt 3 cannot be claimed"."""
    if is_full(error):
        return StorageFullError(f"{problem}: no space left; free space, or grow the volume")
    return InfrastructureError(f"{problem}: {error.strerror or error}; check the volume")


_FULL = (errno.ENOSPC, errno.EDQUOT)
_OUTAGE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EROFS)
"""Errors of a failed disk or network file system; a bug of ours does not cause them."""


def is_full(error: BaseException | None) -> bool:
    """Whether a full volume caused the error."""
    return _is_behind(error, _FULL)


def is_outage(error: BaseException | None) -> bool:
    """Whether a failed, unreachable or read-only file system caused the error."""
    return _is_behind(error, _OUTAGE)


def _is_behind(error: BaseException | None, numbers: Container[int | None]) -> bool:
    seen: list[BaseException] = []  # Ray makes an error the cause of its own cause
    while error is not None and not any(error is each for each in seen):
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        seen.append(error)
        error = error.__cause__
    return False
