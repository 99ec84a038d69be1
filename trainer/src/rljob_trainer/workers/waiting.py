"""Wait for other processes, always with a deadline and a description for its error message."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError, RayTaskError

from rljob_trainer.errors import (
    EngineLost,
    InfrastructureError,
    RankLost,
    RewardsLost,
    RLJobError,
    WorkerLost,
    first_line,
)
from rljob_trainer.workers.worker import Answer

R = TypeVar("R")

Look = Callable[[], None]
"""Raises if the wait should end, because a worker is lost."""

LOOK_SECONDS = 1.0
"""How often a long wait calls `alive`."""

_LOST: dict[str, type[WorkerLost]] = {"rank": RankLost, "engine": EngineLost, "rewards": RewardsLost}


def lost(worker: str, how: str) -> WorkerLost:
    """The error for a lost worker, of the worker's name."""
    return _LOST[kind_of(worker)](f"{worker} {how}", worker=worker)


def kind_of(worker: str) -> str:
    return worker.split("-", maxsplit=1)[0]


def wait_for(
    asked: Answer[R], seconds: float, what: str, alive: Look | None = None, doing: Callable[[], str] | None = None
) -> R:
    """The value of one call; see wait_for_all."""
    return wait_for_all([asked], seconds, what, alive, doing)[0]


def wait_for_all(
    asked: Sequence[Answer[R]], seconds: float, what: str, alive: Look | None = None,
    doing: Callable[[], str] | None = None,
) -> list[R]:  # fmt: skip
    """The value of each call.

    alive: raises if a worker is lost. doing: describes what workers do, for the message at the deadline.
    Raises the RLJobError of the first failed call, WorkerLost if a called worker died, and InfrastructureError if
    another process died, the deadline passed or Ray failed. Any other exception of a call is a bug, raised with the
    remote traceback as its cause.
    """
    by_ref = {each.ref: each for each in asked}
    deadline, pending = time.monotonic() + seconds, list(by_ref)
    values: dict[ray.ObjectRef[R], R] = {}
    while pending:
        left = deadline - time.monotonic()
        ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, min(left, LOOK_SECONDS)))
        values |= {ref: _value(by_ref[ref], what) for ref in ready}
        if not ready and left <= 0:
            raise InfrastructureError(f"waited {seconds:.0f} s for {what}" + (f" ({doing()})" if doing else ""))
        if not ready and alive is not None:
            alive()
    return [values[each.ref] for each in asked]


def has_raised(asked: Answer[R]) -> bool:
    """Whether the call has raised in a living process."""
    if not ray.wait([asked.ref], timeout=0)[0]:
        return False
    try:
        ray.get(asked.ref)
    except RayTaskError:
        return True
    except RayError:
        pass
    return False


def wait_together(
    asked: Sequence[Answer[R]], seconds: float, apart: float, what: str, alive: Look | None = None,
    doing: Callable[[], str] | None = None,
) -> list[R]:  # fmt: skip
    """wait_for_all, for processes in a collective operation, which leave it together or never.

    apart: deadline of the last answer in seconds after the first. A later one waits for a process that did not join.
    """
    deadline, refs = time.monotonic() + seconds, [each.ref for each in asked]
    while not ray.wait(refs, num_returns=1, timeout=LOOK_SECONDS)[0] and time.monotonic() < deadline:
        if alive is not None:
            alive()
    return wait_for_all(asked, max(0.0, min(apart, deadline - time.monotonic())), what, alive, doing)


def wait_for_engines(asked: Sequence[Answer[R]], seconds: float, what: str, alive: Look | None = None) -> list[R]:
    """wait_for, for what an engine must not fail at. Raises EngineLost if one does: it must be replaced.

    After a weight update that failed, for example, it holds neither the old policy nor the new one.
    """
    return [_of_engine(each, seconds, what, alive) for each in asked]


def _of_engine(asked: Answer[R], seconds: float, what: str, alive: Look | None) -> R:
    try:
        return wait_for(asked, seconds, f"{asked.worker} to {what}", alive)
    except WorkerLost:
        raise
    except InfrastructureError as error:
        raise EngineLost(f"{asked.worker} failed to {what}: {error}", worker=asked.worker) from error


def cause_among(asked: Sequence[Answer[R]]) -> RLJobError | None:
    """The first error that these calls raised and that says whose fault it is: a lost worker's, or the job's."""
    ready, _ = ray.wait([each.ref for each in asked], num_returns=len(asked), timeout=LOOK_SECONDS)
    for answer in [each for each in asked if each.ref in ready]:
        try:
            _value(answer, "")
        except WorkerLost as found:
            return found
        except InfrastructureError:
            continue
        except RLJobError as found:
            return found
    return None


def _value(asked: Answer[R], what: str) -> R:
    try:
        value: R = ray.get(asked.ref)
        return value
    except RayTaskError as error:
        raise cause_of(error) from None
    except ActorDiedError as error:
        if error.actor_id in (None, asked.identity):  # else of an argument, whose error is that of the call
            raise lost(asked.worker, f"died: {first_line(error)}") from error
        raise InfrastructureError(f"a process died during the wait for {what}: {first_line(error)}") from error
    except RayActorError as error:
        raise InfrastructureError(f"a process died during the wait for {what}: {first_line(error)}") from error
    except RayError as error:
        raise InfrastructureError(f"Ray failed during the wait for {what}: {first_line(error)}") from error


def cause_of(error: RayTaskError) -> BaseException:
    """The exception of a remote call: an RLJobError unchanged, a bug with the remote traceback as its cause.

    InfrastructureError if the call's arguments were lost with the process that made them.
    """
    if isinstance(error.cause, RayError) and not isinstance(error.cause, RayTaskError):
        return InfrastructureError(f"what a call needed was lost with another process: {first_line(error.cause)}")
    if not isinstance(error.cause, RLJobError):
        error.cause.__cause__ = error
    return error.cause
