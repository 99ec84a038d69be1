"""`rljob agent`, which serves what the driver writes to the volume."""

from typing import Annotated, Any

import aiohttp
from pydantic import (
    BaseModel,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from rljob_api.contract import ExitRecord
from rljob_api.preflight import PreflightRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator.head.endpoint import DEADLINE_SECONDS, Endpoint
from rljob_operator.head.errors import HeadRefused


class _Claim(BaseModel):
    owner: str | None = None


def _readable(value: Any, read: ValidatorFunctionWrapHandler) -> PreflightRecord | None:
    """None for a record of another version, or of users' code: how the attempt ended counts without it."""
    try:
        record: PreflightRecord | None = read(value)
    except ValidationError:
        return None
    return record


class LastExit(BaseModel):
    """attempt: number of the newest that began on this volume; 0 before the first.

    exit: how it ended; None if it has not, or left no record.
    preflight: what its fabric preflight found; None if it had none yet, or none that can be read.
    heartbeat: another number every few seconds while its driver lives; None before its first sign of life.
    """

    attempt: Annotated[int, Field(ge=0)]
    claim: _Claim | None = None
    exit: ExitRecord | None
    preflight: Annotated[PreflightRecord | None, WrapValidator(_readable)] = None
    heartbeat: int | None = None

    @property
    def owner(self) -> str | None:
        """Uid of the RLJob whose attempt it is; None if its claim does not say, as with older images."""
        return self.claim.owner if self.claim is not None else None


class _Checkpoints(BaseModel):
    checkpoints: Annotated[list[CheckpointStatus], FailFast()]  # else a million errors are built, and one is reported


_PROGRESS, _CHECKPOINTS, _EXIT = TypeAdapter(Progress), TypeAdapter(_Checkpoints), TypeAdapter(LastExit)


class Agent:
    """The agent of one run."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, token: str, deadline: float = DEADLINE_SECONDS
    ) -> None:  # fmt: skip
        self._agent = Endpoint(session, "the agent", url, token, deadline)

    async def progress(self) -> Progress | None:
        """What the newest driver reported last; None before the first report."""
        try:
            content = await self._agent.call("GET", "/v1/progress")
        except HeadRefused as error:
            if error.status == 404:
                return None
            raise
        return self._agent.parse(_PROGRESS, content)

    async def newest_checkpoint(self) -> CheckpointStatus | None:
        """The one that the next attempt continues from."""
        found = self._agent.parse(_CHECKPOINTS, await self._agent.call("GET", "/v1/checkpoints"))
        return found.checkpoints[-1] if found.checkpoints else None

    async def last_exit(self) -> LastExit:
        return self._agent.parse(_EXIT, await self._agent.call("GET", "/v1/exit"))

    async def request_checkpoint(self, *, stop: bool) -> None:
        """Ask the driver for a checkpoint after its step, and to end after it with code 76 if `stop`.

        Each call is a request of its own; one that the driver has not begun yet is replaced.
        """
        await self._agent.call("POST", "/v1/checkpoint", params={"stop": str(stop).lower()})
