"""The contract of operator and trainer: the driver's job file, exit codes, and files on the volume."""

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

CONTRACT_VERSION = "1.4"
"""Version of the driver's job file. A driver rejects another major version and ignores fields of a newer minor one.

1.2: startId, which only checkpoint.resume: never uses. 1.3: spec.preflight. 1.4: spec.gang.
"""

LAYOUT_VERSION = 1
"""Version of the layout of the run's volume."""


GENERATION_VARIABLE = "RLJOB_GENERATION"
"""Environment variable of a driver: the smallest DriverJob.generation that it may start with. A kubelet updates a
mounted file about a minute after the change, so a driver could read an old job."""

OWNER_VARIABLE = "RLJOB_UID"
"""Environment variable of a driver: UID of its RLJob. The attempt's claim records it, so that the operator can tell
the claims of an earlier job apart."""


class DriverJob(ApiModel):
    """One resolved RLJob: the driver's job file."""

    contract_version: str = CONTRACT_VERSION
    name: str = Field(description="metadata.name.")
    uid: str = Field(description="metadata.uid; a local run creates one.")
    start_id: str = Field(
        "",
        description="Identifies this start: the RLJob's UID, or an ID of the `rljob run` command. checkpoint.resume:"
        " never starts from step 0 once for each.",
    )
    generation: int = Field(0, description="metadata.generation of the spec; 0 for a local run.")
    base_dir: str = Field(description="Folder of relative paths in the spec.")
    spec: ResolvedSpec = Field(description="The resolved spec.")
    reward_models: dict[str, str] = Field(
        default_factory=dict, description="URL of each reward model's server, by name."
    )


class ExitCode(IntEnum):
    """Exit codes of a driver. -N and 128 + N are signal N; no exit record means an infrastructure failure."""

    DONE = 0
    JOB = 64  # the job or its configuration is wrong
    DATA = 65  # data or model is wrong
    REWARD = 66  # the reward code is wrong
    BUG = 70
    INFRASTRUCTURE = 75  # another attempt may succeed
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
"""Reasons of drivers that could not write a record, because the volume was unavailable or full."""


def last_words(line: str) -> str:
    """The message in the last line of the log of a driver without an exit record."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):  # users' code writes to the log too
        return _writable(f"{json.loads(line)['message']}")
    return line.removeprefix("error: ")


def _writable(text: T) -> T | str:
    """Replace lone surrogates, which file names may contain and JSON parsers reject."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


class ExitRecord(ApiModel):
    """`attempts/<n>.exit.json`."""

    code: int = Field(description="The driver's exit code.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="One CamelCase word.")
    message: Annotated[str, BeforeValidator(_writable), Field(max_length=32_768)] = Field(
        description="What happened and what to do, for a person."
    )
    field: str | None = Field(None, description="Path of the field of the spec to change; None if no field caused it.")
