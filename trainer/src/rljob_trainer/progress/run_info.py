"""A run's description for views and loggers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RunInfo:
    """uid: the job's (job.json); later attempts continue the same run of an experiment tracker.

    directory: root of the run's volume.
    engine: "" for a job without generation.
    config: the resolved spec as JSON (camelCase), for experiment trackers.
    resumed_step: last step before this attempt.
    """

    name: str
    uid: str
    directory: Path
    model: str = ""
    engine: str = ""
    ranks: int = 1
    project: str = "rljob"
    config: Mapping[str, Any] = field(default_factory=dict)
    resumed_step: int = 0
