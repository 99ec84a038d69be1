"""What a view or a logger needs to know of a run besides its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, the same for all of its attempts.

    uid: the job's (job.json), so that a later attempt continues the same run of an experiment tracker.
    directory: root of the run's volume.
    engine: "" where nothing is generated.
    config: the resolved spec as JSON (camelCase), for experiment trackers.
    resumed_step: last step that this attempt did not have to run.
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
