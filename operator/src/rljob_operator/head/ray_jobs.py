"""Ray's Jobs API. A submission is one start of a driver; its id makes starting it idempotent."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import aiohttp
from pydantic import BeforeValidator, Field, TypeAdapter

from rljob_operator.head.endpoint import DEADLINE_SECONDS, Endpoint
from rljob_operator.head.errors import HeadError, HeadRefused

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable for the seconds between SIGTERM and SIGKILL of a job that is stopped, whole ones; 3 without it."""

_PERHAPS_KNOWN = (400, 500)
"""How Ray answers an id that it knows. Its own failures look alike, with a traceback, so the caller asks again."""


class RayJobState(StrEnum):
    """Ray's JobStatus."""

    PENDING = "PENDING"  # accepted; its driver has not started
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"  # ended after stop(), however it ended
    SUCCEEDED = "SUCCEEDED"  # exit code 0
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        return self not in (RayJobState.PENDING, RayJobState.RUNNING)


@dataclass(frozen=True, slots=True)
class RayJob:
    """A submission as Ray sees it.

    message: for a person; after a failure, the end of the driver's output.
    driver_exit_code: -N or 128 + N for signal N. None before the driver ends and if Ray did not see it end: it was
        stopped, never started, or its supervisor died.
    """

    state: Annotated[RayJobState, Field(validation_alias="status")]
    message: Annotated[str, BeforeValidator(lambda message: message or "")] = ""
    driver_exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class _Stopped:
    stopped: bool


_JOB, _STOPPED = TypeAdapter(RayJob), TypeAdapter(_Stopped)


class RayJobs:
    """The submissions of one Ray cluster. Ray forgets them when its head restarts."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, token: str, deadline: float = DEADLINE_SECONDS
    ) -> None:  # fmt: skip
        self._ray = Endpoint(session, "Ray's Jobs API", url, token, deadline)

    async def status(self, submission_id: str) -> RayJob | None:
        """None if Ray does not know the submission."""
        try:
            content = await self._ray.call("GET", f"/api/jobs/{submission_id}")
        except HeadRefused as error:
            if _is_unknown(submission_id, error):
                return None
            raise
        return self._ray.parse(_JOB, content)

    async def submit(
        self, submission_id: str, entrypoint: str, *, stop_wait: int,
        env_vars: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Start a driver; a submission that Ray knows already stays as it is.

        entrypoint: a shell command. stop_wait: seconds between SIGTERM and SIGKILL after stop().
        env_vars: also of the driver's tasks and actors. Everyone with the token can read them.
        """
        request: dict[str, Any] = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"env_vars": {**(env_vars or {}), STOP_WAIT: str(stop_wait)}},
            "metadata": dict(metadata or {}),
        }
        try:
            await self._ray.call("POST", "/api/jobs/", body=request)
        except HeadError as error:
            if error.status not in _PERHAPS_KNOWN or await self.status(submission_id) is None:
                raise

    async def stop(self, submission_id: str) -> bool:
        """Send SIGTERM to the driver and all its children, and do not wait. False if nothing runs."""
        try:
            content = await self._ray.call("POST", f"/api/jobs/{submission_id}/stop")
        except HeadRefused as error:
            if _is_unknown(submission_id, error):
                return False
            raise
        return self._ray.parse(_STOPPED, content).stopped


def _is_unknown(submission_id: str, error: HeadRefused) -> bool:
    """Whether Ray says so, and not a proxy that does not know the head."""
    return error.status == 404 and submission_id in error.answer
