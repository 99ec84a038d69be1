"""Attempts that save and find checkpoints on real volumes. Light, for many processes import it: no torch."""

import json
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api import ResolvedSpec, resolve
from rljob_api.v1alpha1 import RLJobSpec
from rljob_trainer.attempt.claim import claim, record_resume
from rljob_trainer.attempt.resumption import Resumption
from rljob_trainer.checkpoint.files import FileEntry, entries
from rljob_trainer.checkpoint.manifest import CheckpointRef, list_checkpoints
from rljob_trainer.loop.checkpoints import Checkpoints
from rljob_trainer.volume import Volume


def make_spec(ranks: int = 1, **blocks: Any) -> ResolvedSpec:
    """blocks: of the spec, in camelCase; what they leave out has its default."""
    written = {
        "model": {"path": "model"},
        "data": {"train": ["rows.jsonl"], "maxResponseTokens": 16},
        "rewards": {"functions": [{"name": "exact", "builtin": "exact_match"}]},
        "training": {"steps": 100},
        "cluster": {"nodes": 1, "gpusPerNode": 0, "ranksPerNode": ranks},
    }
    return resolve(RLJobSpec.model_validate(written | blocks))


def job_spec(**checkpoint: Any) -> ResolvedSpec:
    """checkpoint: the block's fields, in camelCase."""
    return make_spec(checkpoint=checkpoint)


class FileRanks:
    """Two ranks as the driver knows them: files appear, and their hashes are returned."""

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def begin_save(self, directory: str) -> None:
        self._folder = Path(directory)

    def finish_save(self) -> list[dict[str, FileEntry]]:
        return [self._write(rank) for rank in range(2)]

    def _write(self, rank: int) -> dict[str, FileEntry]:
        path = self._folder / f"__{rank}_0.distcp"
        path.write_bytes(bytes([rank]) * self.size)
        return entries(self._folder, [path])


@dataclass(frozen=True)
class Attempt:
    """An attempt that has claimed its number and decided what it continues: `found`, a CheckpointRef or None."""

    number: int
    checkpoints: Checkpoints
    found: Any

    def save(self, step: int, reward: float | None = 0.5, **more: Any) -> CheckpointRef:
        return save(self.checkpoints, step, {"step": step}, reward, FileRanks(), **more)


def save(checkpoints: Checkpoints, *what: Any, **more: Any) -> CheckpointRef:
    """Take a checkpoint and wait until it is durable."""
    checkpoints.begin(*what, **more)
    checkpoints.finish()
    durable = checkpoints.poll()
    assert durable is not None
    return durable


def begin_attempt(
    volume: Volume, number: int, start_id: str = "", owner: str | None = None, **checkpoint: Any
) -> Attempt:  # fmt: skip
    """What a driver does before its first step."""
    nonce = claim(volume, number, owner)
    resumption = resumption_of(volume, start_id, checkpoint.get("resume", "auto"))
    checkpoints = checkpoints_of(volume, number, resumption.spared, **checkpoint)
    found = resumption.find()
    record_resume(volume, number, nonce, found, fresh_for=resumption.fresh_for)
    checkpoints.prune()
    return Attempt(number, checkpoints, found)


def resumption_of(volume: Volume, start_id: str = "", resume: str = "auto") -> Resumption:
    return Resumption(resume, volume, start_id)


def checkpoints_of(volume: Volume, number: int, spared: Set[Path] = frozenset(), **checkpoint: Any) -> Checkpoints:
    model = volume.root / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    return Checkpoints(job_spec(**checkpoint), volume, number, model, spared)


def names(refs: Sequence[Any] | Volume) -> list[str]:
    found = list_checkpoints(refs) if isinstance(refs, Volume) else refs
    return [ref.path.name for ref in found]


def read_claimed(volume: Volume, attempt: int) -> Any:
    """The claim as it is written."""
    return json.loads(volume.claim(attempt).read_text())


def write_steps(volume: Volume, attempt: int, steps: Iterable[int]) -> None:
    """Metrics of those steps."""
    path = volume.metrics(attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "stage": "rl", "attempt": attempt, "time/step": 1.0}) + "\n")
