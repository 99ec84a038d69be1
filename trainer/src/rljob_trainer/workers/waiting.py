"""Every wait on another process has a deadline and says what it waits for."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rljob_trainer.errors import EngineLost, InfrastructureError, RLJobError, WorkerLost
from rljob_trainer.workers.worker import Answer

R = TypeVar("R")

Look = Callable[[], None]
"""Raises if there is no use in waiting any longer."""

LOOK_SECONDS = 1.0
"""How often a long wait looks whether those that it waits for are alive."""


@overload
def wait_for(
    asked: Answer[R], seconds: float, what: str, alive: Look | None = None, doing: Callable[[], str] | None = None
) -> R: ...


@overload
def wait_for(
    asked: Sequence[Answer[R]], seconds: float, what: str, alive: Look | None = None,
    doing: Callable[[], str] | None = None,
) -> list[R]: ...  # fmt: skip


def wait_for(
    asked: Answer[R] | Sequence[Answer[R]], seconds: float, what: str, alive: Look | None = None,
    doing: Callable[[], str] | None = None,
) -> R | list[R]:  # fmt: skip
    """What one call, or each of several, returned.

    alive: raises when there is no use in waiting any longer. doing: says what goes on when the deadline passes.
    Raises the remote call's own RLJobError as if it were local, as soon as one call of several fails; and
    InfrastructureError if a process died, the deadline passed, or Ray failed. Any other exception of the remote call
    is a bug, and raised with the remote traceback as its cause.
    """
    if isinstance(asked, Answer):
        return wait_for([asked], seconds, what, alive, doing)[0]
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
    """Whether that call has ended with an exception of its own, in a process that lives."""
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
    """wait_for, of processes that may be in the middle of a collective operation: they leave it together or never.

    apart: how many seconds the last may come after the first. Who is later waits for a process that never joined it.
    """
    deadline, refs = time.monotonic() + seconds, [each.ref for each in asked]
    while not ray.wait(refs, num_returns=1, timeout=LOOK_SECONDS)[0] and time.monotonic() < deadline:
        if alive is not None:
            alive()
    return wait_for(asked, max(0.0, min(apart, deadline - time.monotonic())), what, alive, doing)


def wait_for_engines(asked: Sequence[Answer[R]], seconds: float, what: str, alive: Look | None = None) -> list[R]:
    """wait_for, of what engines do in a weight update.

    Raises EngineLost for one that fails there: what it holds is neither the old policy nor the new one, so it is
    replaced and never asked again.
    """
    return [_of_engine(each, seconds, what, alive) for each in asked]


def _of_engine(asked: Answer[R], seconds: float, what: str, alive: Look | None) -> R:
    try:
        return wait_for(asked, seconds, f"{asked.worker} to {what}", alive)
    except WorkerLost:
        raise
    except InfrastructureError as error:
        raise EngineLost(f"{asked.worker} failed to {what}: {error}", worker=asked.worker) from error


def loss_among(asked: Sequence[Answer[R]]) -> WorkerLost | None:
    """Of several calls that failed together, the loss that one of them reports."""
    ready, _ = ray.wait([each.ref for each in asked], num_returns=len(asked), timeout=LOOK_SECONDS)
    for answer in [each for each in asked if each.ref in ready]:
        try:
            _value(answer, "")
        except WorkerLost as found:
            return found
        except RLJobError:
            continue
    return None


def _value(answer: Answer[R], what: str) -> R:
    try:
        value: R = ray.get(answer.ref)
        return value
    except RayTaskError as error:
        raise cause_of(error) from None
    except RayActorError as error:
        raise InfrastructureError(f"a process died while we waited for {what}: {first_line(error)}") from error
    except RayError as error:
        raise InfrastructureError(f"Ray failed while we waited for {what}: {first_line(error)}") from error


def cause_of(error: RayTaskError) -> BaseException:
    """What a remote call raised: an RLJobError as it was, a bug with the remote traceback as its cause."""
    if not isinstance(error.cause, RLJobError):
        error.cause.__cause__ = error
    return error.cause


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
