"""What every client of workers needs: job, placement, heartbeats, deadlines."""

import hashlib
from dataclasses import dataclass, field

from rljob_api import ResolvedSpec
from rljob_api.durations import parse_duration
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.placement import Placement
from rljob_trainer.workers.roster import Roster

START_SECONDS = 600.0
"""Deadline of starting processes, loading weights and compiling an engine."""

UPDATE_SECONDS = 3600.0
"""Deadline of one update, and of a checkpoint."""

SYNC_SECONDS = 300.0
"""Deadline of a weight sync, and of short calls."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """threads: of one rank or engine on a CPU. compiled: compute.compiled's folder."""

    spec: ResolvedSpec
    device_type: str
    threads: int
    roster: Roster
    heartbeats: Heartbeats
    placement: Placement = field(default_factory=Placement)
    compiled: str | None = None

    def signature(self, *parts: object) -> str:
        """Equal for workers of the same job with the same arguments; spec.checkpoint and spec.preflight may differ."""
        spec = self.spec.model_dump_json(exclude={"checkpoint", "preflight"})
        text = "\0".join([spec, self.device_type, str(self.threads), *map(repr, parts)])
        return hashlib.sha256(text.encode()).hexdigest()


def rollout_seconds(spec: ResolvedSpec) -> float:
    return parse_duration(spec.rollout.deadline)
