"""Every wait on another process has a deadline and says what it waits for."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rljob_trainer.errors import InfrastructureError, RLJobError

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
