"""Commit, read and classify the checkpoints on a volume. Light: no torch; the agent and `rljob status` import it.

checkpoints/step-40-a1/
ranks/          shards of {role: {model, optimizer}} (torch.distributed.checkpoint), each rank's random state
model/          config.json and tokenizer
trainer.json    step, data positions, KL controller: everything that is not a tensor
metrics.jsonl   the run's metrics up to this step
manifest.json   sizes and hashes of all of the above, written last; a folder without it is not a checkpoint
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel
from rljob_trainer.checkpoint.files import FileEntry, entries, files_below, first_problem, sync_folders
from rljob_trainer.checkpoint.lineage import CHECKPOINT_NAME, Lineage, lineage, root_of
from rljob_trainer.errors import InfrastructureError, on_volume, storage_error
from rljob_trainer.progress.state import read_object
from rljob_trainer.volume import Volume, sync_folder, write_json

MANIFEST = "manifest.json"
RANKS = "ranks"
MODEL = "model"
TRAINER = "trainer.json"
METRICS = "metrics.jsonl"


class DamagedCheckpointError(InfrastructureError):
    """A file is missing or differs from the manifest."""


class Retention(ApiModel):
    """Which checkpoints to keep: the `keep...` fields of spec.checkpoint."""

    keep_last: int = Field(description="Number of newest checkpoints.")
    keep_every: int | None = Field(None, description="Checkpoints whose step is a multiple.")
    keep_best: int = Field(0, description="Number of checkpoints with the highest reward.")


class Manifest(ApiModel):
    """`manifest.json`."""

    step: int = Field(description="Last step that the checkpoint includes.")
    attempt: int = Field(description="Attempt that wrote it.")
    time: datetime = Field(description="Time of the commit by the driver's clock; for display only.")
    reward: float | None = Field(None, description="Mean reward of that step; None for a supervised step.")
    validation_reward: float | None = Field(None, description="Of that step's weights; None: not validated.")
    retention: Retention | None = Field(None, description="The job's retention when it was written.")
    files: dict[str, FileEntry] = Field(description="Every file, by its path below the checkpoint.")

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint with a manifest. named: the spec names its path; resuming from it begins a new lineage."""

    path: Path
    manifest: Manifest
    named: bool = False


Standing = Literal["counts", "superseded", "earlier run", "unclaimed", "unfinished", "damaged", "unreadable", "gone"]
"""superseded: of this run, but a newer attempt had taken over before that step. earlier run: of a run before a start
with checkpoint.resume: never or a path. unclaimed: its attempt is newer than the newest valid claim; attempts claim
before they save, so its claim was damaged or deleted. unfinished: no manifest. damaged: an invalid manifest.
unreadable: reading its manifest or claim failed; it may be intact. gone: no folder."""


@dataclass(frozen=True, slots=True)
class Found:
    """A folder in checkpoints/, existing or expected. ref: None without a valid manifest.

    lost: it was committed in this run and is now damaged, unreadable or gone.
    problem: why it is unreadable.
    """

    path: Path
    step: int
    attempt: int
    standing: Standing
    ref: CheckpointRef | None = None
    lost: bool = False
    problem: str = ""


def survey(volume: Volume) -> list[Found]:
    """Classify every checkpoint folder, oldest step first, and the newest committed one even if it is gone.

    Raises InfrastructureError if the folder or the claims cannot be read.
    """
    run, named = decided(volume), [CHECKPOINT_NAME.fullmatch(path.name) for path in _folders(volume)]
    found = {name[0]: _judge(volume, run, int(name[1]), int(name[2])) for name in named if name}
    newest = _newest_commit(volume, run)
    steps = [each.step for each in found.values() if each.standing == "counts"]
    if newest is not None and newest.step > max(steps, default=-1):
        found[newest.path.name] = replace(found.get(newest.path.name, newest), lost=True)
    return sorted(found.values(), key=lambda each: (each.step, each.attempt))


def newest(found: Sequence[Found]) -> Found | None:
    """The run's newest checkpoint, which may be lost. found: from `survey`."""
    return next((each for each in reversed(found) if each.lost or each.standing == "counts"), None)


def counting(found: Sequence[Found]) -> list[CheckpointRef]:
    """The run's readable checkpoints, oldest first. found: from `survey`."""
    return [each.ref for each in found if each.ref is not None and each.standing == "counts"]


def durable_step(volume: Volume) -> int:
    """Step of the run's newest checkpoint, unreadable ones included; 0 without one. Raises as `survey`."""
    durable = (each for each in survey(volume) if each.standing == "counts" or (each.lost and each.problem))
    return max((each.step for each in durable), default=0)


def decided(volume: Volume) -> Lineage:
    """As `lineage`, but raises InfrastructureError if the volume does not answer."""
    with claims_answering(volume):
        return lineage(volume)


@contextmanager
def claims_answering(volume: Volume) -> Iterator[None]:
    """Raise InfrastructureError that names the unreadable claim in place of OSError."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, f"{error.filename or volume.attempts} cannot be read") from error


def _folders(volume: Volume) -> list[Path]:
    try:
        return list(volume.checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_error(error, f"{volume.checkpoints} cannot be listed") from error


def _newest_commit(volume: Volume, run: Lineage) -> Found | None:
    """The run's newest recorded commit, or the checkpoint that an attempt resumed from."""
    for claim in run.claims:
        committed = (read_object(volume.newest_commit(claim.attempt)) or {}).get("name")
        for name in (CHECKPOINT_NAME.fullmatch(str(each)) for each in (committed, claim.resumed_from)):
            if name is not None and run.holds(step := int(name[1]), attempt := int(name[2])):
                return Found(volume.checkpoint(step, attempt), step, attempt, "gone")
    return None


def list_checkpoints(volume: Volume) -> list[CheckpointRef]:
    """The run's checkpoints as its newest attempt sees them, oldest first."""
    return counting(survey(volume))


def read_checkpoint(folder: Path) -> CheckpointRef | None:
    """The checkpoint in any folder; None without a valid manifest.

    Raises InfrastructureError if the volume does not answer.
    """
    with on_volume(f"checkpoint {folder.name} cannot be read"):
        return _read(folder)


def _read(folder: Path) -> CheckpointRef | None:
    try:
        return CheckpointRef(folder, Manifest.model_validate_json((folder / MANIFEST).read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _judge(volume: Volume, run: Lineage, step: int, attempt: int) -> Found:
    path, ours = volume.checkpoint(step, attempt), run.holds(step, attempt)
    try:
        ref = _read(path)
        damaged = ref is None and (path / MANIFEST).exists()
    except OSError as error:
        problem = storage_error(error, f"checkpoint {path.name} cannot be read").message
        return Found(path, step, attempt, "unreadable", lost=ours, problem=problem)
    if ref is None:
        return Found(path, step, attempt, "damaged" if damaged else "unfinished", lost=ours and damaged)
    return Found(path, step, attempt, "counts", ref) if ours else _judge_other(volume, run, step, attempt, ref)


def _judge_other(volume: Volume, run: Lineage, step: int, attempt: int, ref: CheckpointRef) -> Found:
    """Classify a checkpoint outside the lineage. "superseded" requires proof, because retention deletes those."""
    if run.newest is not None and attempt > run.newest.attempt:
        return Found(ref.path, step, attempt, "unclaimed", ref)
    try:
        with claims_answering(volume):
            same_run = run.root is not None and root_of(volume, attempt) == run.root.attempt
    except InfrastructureError as error:
        return Found(ref.path, step, attempt, "unreadable", problem=error.message)
    return Found(ref.path, step, attempt, "superseded" if same_run else "earlier run", ref)


def commit(
    staged: Path, target: Path, *, step: int, attempt: int, reward: float | None,
    validation_reward: float | None = None, retention: Retention | None = None,
    written: Mapping[str, FileEntry] | None = None,
) -> CheckpointRef:  # fmt: skip
    """Rename the finished folder `staged` to `target` and write its manifest, which is the commit point.

    written: files that the ranks have fsynced and hashed, by their paths below `staged`.
    Raises InfrastructureError if one of those is missing, OSError if the volume fails or `target` has a manifest.
    """
    known = dict(written or {})
    _check_present(staged, known)
    ours = [path for path in files_below(staged) if str(path.relative_to(staged)) not in known]
    files = known | entries(staged, ours)
    manifest = Manifest(
        step=step, attempt=attempt, time=datetime.now(UTC), reward=reward, validation_reward=validation_reward,
        retention=retention, files=files,
    )  # fmt: skip
    sync_folders(staged)
    if not (target / MANIFEST).exists():  # remains of a commit that failed before its manifest
        shutil.rmtree(target, ignore_errors=True)
    staged.rename(target)
    for folder in target.parents[:2]:  # checkpoints/ and the volume's root
        sync_folder(folder)
    write_json(target / MANIFEST, manifest.model_dump(mode="json", by_alias=True))
    return CheckpointRef(target, manifest)


def verify(ref: CheckpointRef) -> None:
    """Check every file against the manifest.

    Raises DamagedCheckpointError that names the first bad file, InfrastructureError if the volume does not answer.
    """
    with on_volume(f"checkpoint {ref.path.name} cannot be read"):
        problem = first_problem(ref.path, ref.manifest.files)
    if problem:
        raise DamagedCheckpointError(f"checkpoint {ref.path.name}: {problem}")


def read_trainer_state(ref: CheckpointRef) -> dict[str, object]:
    state: dict[str, object] = json.loads((ref.path / TRAINER).read_text())
    return state


def _check_present(staged: Path, written: Mapping[str, FileEntry]) -> None:
    for name, entry in written.items():
        path = staged / name
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise InfrastructureError(f"the driver cannot see {name}, which a rank wrote; mount one shared volume")
