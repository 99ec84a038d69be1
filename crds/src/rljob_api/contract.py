"""What operator and trainer agree on: the job that a driver gets, exit codes, and the files an attempt leaves."""

import json
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, Final, TypeVar

from pydantic import BeforeValidator, Field

from rljob_api.conditions import Reason
from rljob_api.resolve import ResolvedSpec
from rljob_api.v1alpha1.base import ApiModel

T = TypeVar("T")

CONTRACT_VERSION = "1.2"
"""Of the resolved job that the driver gets. A driver refuses another major version than its own, and leaves out what
only a newer minor version knows.

1.2: startId, for checkpoint.resume: never alone.
"""

LAYOUT_VERSION = 1
"""Of the run's volume."""


GENERATION_VARIABLE = "RLJOB_GENERATION"
"""Of a driver's environment: the least DriverJob.generation that it may begin with. A kubelet brings a changed file to
a pod that lives only about a minute later."""

OWNER_VARIABLE = "RLJOB_UID"
"""Of a driver's environment: uid of its RLJob, for its claim. So the operator knows what an earlier job left."""


class DriverJob(ApiModel):
    """One resolved RLJob: what a driver gets."""

    contract_version: str = CONTRACT_VERSION
    name: str = Field(description="metadata.name.")
    uid: str = Field(description="metadata.uid; a local run makes its own.")
    start_id: str = Field(
        "",
        description="Who asks for this start: the RLJob's UID, or one of each `rljob run`. checkpoint.resume: never "
        "begins anew once for each.",
    )
    generation: int = Field(0, description="metadata.generation that the spec is of; 0 for a local run.")
    base_dir: str = Field(description="Folder that relative paths of the spec start at.")
    spec: ResolvedSpec = Field(description="The spec, every blank filled.")
    reward_models: dict[str, str] = Field(
        default_factory=dict, description="URL of the server of each of spec.rewards.models, by name."
    )


class ExitCode(IntEnum):
    """How a driver ends. -N and 128 + N are signal N; no exit record at all means infrastructure."""

    DONE = 0
    JOB = 64  # the job or its configuration is wrong
    DATA = 65  # data or model is wrong
    REWARD = 66  # the reward code is wrong
    BUG = 70
    INFRASTRUCTURE = 75  # worth another try
    STOPPED = 76  # checkpointed and stopped on request
    FENCED = 77  # another attempt took over
    NO_CHECKPOINT = 78  # checkpoints exist but none is usable
    STORAGE_FULL = 79


REASONS: Final[Mapping[int, Reason]] = {
    ExitCode.JOB: Reason.JOB,
    ExitCode.DATA: Reason.DATA,
    ExitCode.REWARD: Reason.REWARD,
    ExitCode.FENCED: Reason.FENCED,
    ExitCode.NO_CHECKPOINT: Reason.NO_USABLE_CHECKPOINT,
    ExitCode.STORAGE_FULL: Reason.STORAGE_FULL,
}
"""Of drivers that could write no record: they did not get the volume, or it was full."""


def last_words(line: str) -> str:
    """Of such a driver: what the last line of its log says."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):  # users' code writes there too
        return _writable(f"{json.loads(line)['message']}")
    return line.removeprefix("error: ")


def _writable(text: T) -> T | str:
    """Halves of characters, as names of files may have them, are in no JSON that others read."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


class ExitRecord(ApiModel):
    """`attempts/<n>.exit.json`."""

    code: int = Field(description="The driver's exit code.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="One CamelCase word.")
    message: Annotated[str, BeforeValidator(_writable), Field(max_length=32_768)] = Field(
        description="What happened and what to do, for a person."
    )
    field: str | None = Field(None, description="Path of the spec's field to change, where one is to blame.")
