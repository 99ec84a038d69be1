"""Every wait on another process has a deadline and says what it waits for."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from rljob_trainer.errors import InfrastructureError, RLJobError


def wait_for(refs: Any, seconds: float, what: str) -> Any:
    """The values of one reference or a list of them.

    Raises the remote call's own RLJobError as if it were local, and InfrastructureError where a process died, the
    deadline passed, or Ray failed. Any other exception of the remote call is a bug, and raised with the remote
    traceback as its cause.
    """
    try:
        return ray.get(list(refs) if isinstance(refs, Sequence) else refs, timeout=seconds)
    except GetTimeoutError:
        raise InfrastructureError(f"waited {seconds:.0f} s for {what}") from None
    except RayTaskError as error:
        if isinstance(error.cause, RLJobError):
            raise error.cause from None
        raise error.cause from error
    except RayActorError as error:
        raise InfrastructureError(f"a process died while we waited for {what}: {_first_line(error)}") from error
    except RayError as error:
        raise InfrastructureError(f"Ray failed while we waited for {what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
