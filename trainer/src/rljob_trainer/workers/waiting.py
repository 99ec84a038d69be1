"""Every wait on another process has a deadline and says what it waits for."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rljob_trainer.errors import EngineLost, InfrastructureError, RLJobError, WorkerLost

if TYPE_CHECKING:
    from rljob_trainer.workers.roster import Worker

LOOK_SECONDS = 1.0
"""How often a long wait looks whether those that it waits for are alive."""


def wait_for(
    refs: Any,
    seconds: float,
    what: str,
    alive: Callable[[], None] | None = None,
    doing: Callable[[], str] | None = None,
) -> Any:
    """The values of one reference or a list of them.

    alive: raises when there is no use in waiting any longer. doing: says what goes on when the deadline passes.
    Raises the remote call's own RLJobError as if it were local, as soon as one call of several fails; and
    InfrastructureError where a process died, the deadline passed, or Ray failed. Any other exception of the remote call
    is a bug, and raised with the remote traceback as its cause.
    """
    every = list(refs) if isinstance(refs, Sequence) else [refs]
    deadline, pending = time.monotonic() + seconds, every
    values: dict[Any, Any] = {}
    while pending:
        left = deadline - time.monotonic()
        ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, min(left, LOOK_SECONDS)))
        values |= {ref: _value(ref, what) for ref in ready}
        if not ready and left <= 0:
            raise InfrastructureError(f"waited {seconds:.0f} s for {what}" + (f" ({doing()})" if doing else ""))
        if not ready and alive is not None:
            alive()
    return [values[ref] for ref in every] if isinstance(refs, Sequence) else values[refs]


def has_raised(ref: Any) -> bool:
    """Whether that call has ended with an exception of its own, in a process that lives."""
    if not ray.wait([ref], timeout=0)[0]:
        return False
    try:
        ray.get(ref)
    except RayTaskError:
        return True
    except RayError:
        pass
    return False


def wait_together(
    refs: Sequence[Any],
    seconds: float,
    apart: float,
    what: str,
    alive: Callable[[], None] | None = None,
    doing: Callable[[], str] | None = None,
) -> list[Any]:
    """wait_for, of processes that may be in the middle of a collective operation: they leave it together or never.

    apart: how many seconds the last may come after the first. Who is later waits for a process that never joined it.
    """
    deadline = time.monotonic() + seconds
    while not ray.wait(list(refs), num_returns=1, timeout=LOOK_SECONDS)[0] and time.monotonic() < deadline:
        if alive is not None:
            alive()
    return list(wait_for(refs, max(0.0, min(apart, deadline - time.monotonic())), what, alive, doing))


def wait_for_engines(
    asked: Sequence[tuple["Worker", Any]], seconds: float, what: str, alive: Callable[[], None] | None = None
) -> list[Any]:
    """wait_for, of what engines do in a weight update.

    Raises EngineLost for one that fails there: what it holds is neither the old policy nor the new one, so it is
    replaced and never asked again.
    """
    return [_of_engine(engine, ref, seconds, what, alive) for engine, ref in asked]


def _of_engine(engine: "Worker", ref: Any, seconds: float, what: str, alive: Callable[[], None] | None) -> Any:
    try:
        return wait_for(ref, seconds, f"{engine.name} to {what}", alive)
    except WorkerLost:
        raise
    except InfrastructureError as error:
        raise EngineLost(f"{engine.name} failed to {what}: {error}", worker=engine.name) from error


def loss_among(refs: Sequence[Any]) -> WorkerLost | None:
    """Of several calls that failed together, the one that knows whose fault it is."""
    ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=LOOK_SECONDS)
    for ref in ready:
        try:
            _value(ref, "")
        except WorkerLost as found:
            return found
        except RLJobError:
            continue
    return None


def _value(ref: Any, what: str) -> Any:
    try:
        return ray.get(ref)
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
