"""Which checkpoints of a volume count. Light: no torch, so that the agent and `rljob status` can list them.

checkpoints/step-40-a1/
ranks/          shards of {role: {model, optimizer}} (torch.distributed.checkpoint), each rank's random state
model/          config.json and tokenizer
trainer.json    step, data positions, KL controller: everything that is not a tensor
metrics.jsonl   the run's metrics up to this step
manifest.json   written last: sizes and hashes of all of the above. Without it the folder is no checkpoint.
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
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.progress.state import read_object
from rljob_trainer.volume import Volume, sync_folder, write_json

MANIFEST = "manifest.json"
RANKS = "ranks"
MODEL = "model"
TRAINER = "trainer.json"
METRICS = "metrics.jsonl"


class DamagedCheckpointError(InfrastructureError):
    """Its files are not what its manifest says. That a volume does not answer is no damage."""


class Retention(ApiModel):
    """Which checkpoints stay: the `keep...` fields of spec.checkpoint."""

    keep_last: int = Field(description="As many of the newest.")
    keep_every: int | None = Field(None, description="Those whose step is a multiple.")
    keep_best: int = Field(0, description="As many of the best reward.")


class Manifest(ApiModel):
    """`manifest.json`."""

    step: int = Field(description="Step that the checkpoint was taken after.")
    attempt: int = Field(description="Attempt that wrote it.")
    time: datetime = Field(description="When it became durable, by the driver's clock: for people.")
    reward: float | None = Field(None, description="Mean reward of that step; None for a supervised one.")
    validation_reward: float | None = Field(None, description="Of that step's weights; None: not validated.")
    retention: Retention | None = Field(None, description="What the job said about retention when it was written.")
    files: dict[str, FileEntry] = Field(description="Every file, by its path below the checkpoint.")

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint with a manifest.

    named: somebody gave its path, so a run that continues from it begins a lineage of its own.
    """

    path: Path
    manifest: Manifest
    named: bool = False


Standing = Literal["counts", "superseded", "earlier run", "unclaimed", "unfinished", "damaged", "unreadable", "gone"]
"""superseded: of this run, but the attempt had been superseded before that step. earlier run: kept from before a start
with checkpoint.resume: never or a path. unclaimed: of an attempt that is newer than all that say what they continued,
so that its claim is damaged or gone: attempts decide before they save. unfinished: no manifest. damaged: a manifest
that makes no sense. unreadable: the volume does not give the manifest now, or not the claim that says of which run it
is; it may be whole. gone: no folder."""


@dataclass(frozen=True, slots=True)
class Found:
    """A folder of checkpoints/ that is named as a checkpoint, or should be there. ref: None for one without manifest.

    lost: it was a checkpoint of this run: damaged, unreadable, or the newest one, without manifest or gone.
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
    """Every checkpoint folder and what becomes of it, oldest step first, and the newest one also where it is gone.

    One that is unreadable hides none of the others. Raises InfrastructureError where the volume does not list them, or
    does not say of which attempts the run consists.
    """
    run, named = decided(volume), [CHECKPOINT_NAME.fullmatch(path.name) for path in _folders(volume)]
    found = {name[0]: _judge(volume, run, int(name[1]), int(name[2])) for name in named if name}
    newest = _newest_commit(volume, run)
    steps = [each.step for each in found.values() if each.standing == "counts"]
    if newest is not None and newest.step > max(steps, default=-1):
        found[newest.path.name] = replace(found.get(newest.path.name, newest), lost=True)
    return sorted(found.values(), key=lambda each: (each.step, each.attempt))


def newest(found: Sequence[Found]) -> Found | None:
    """The run's newest checkpoint, which may be lost. found: a survey's."""
    return next((each for each in reversed(found) if each.lost or each.standing == "counts"), None)


def counting(found: Sequence[Found]) -> list[CheckpointRef]:
    """The run's checkpoints that can be read, oldest first. found: a survey's."""
    return [each.ref for each in found if each.ref is not None and each.standing == "counts"]


def durable_step(volume: Volume) -> int:
    """Of the run's newest checkpoint, 0 for none. One that cannot be read now is none the less durable.

    Raises as survey().
    """
    durable = (each for each in survey(volume) if each.standing == "counts" or (each.lost and each.problem))
    return max((each.step for each in durable), default=0)


def decided(volume: Volume) -> Lineage:
    """As lineage(), for whoever decides by it: raises InfrastructureError where the volume does not answer."""
    with claims_answering(volume):
        return lineage(volume)


@contextmanager
def claims_answering(volume: Volume) -> Iterator[None]:
    """Raises InfrastructureError in place of OSError, naming what of the attempts' claims cannot be read now."""
    try:
        yield
    except OSError as error:
        what, why = error.filename or volume.attempts, error.strerror or error
        raise InfrastructureError(f"{what} cannot be read now: {why}; look after the volume") from error


def _folders(volume: Volume) -> list[Path]:
    try:
        return list(volume.checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InfrastructureError(
            f"{volume.checkpoints} cannot be listed now: {error.strerror}; look after the volume"
        ) from error


def _newest_commit(volume: Volume, run: Lineage) -> Found | None:
    """What the run's attempts have said of their last commit, or of the checkpoint that they went on from."""
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
    """One checkpoint, wherever it is; None where there is no manifest, or one that makes no sense.

    Raises InfrastructureError where the volume does not answer.
    """
    try:
        return _read(folder)
    except OSError as error:
        raise _unanswered(folder, error) from error


def _read(folder: Path) -> CheckpointRef | None:
    try:
        return CheckpointRef(folder, Manifest.model_validate_json((folder / MANIFEST).read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _unanswered(folder: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(f"checkpoint {folder.name} cannot be read now: {error.strerror}; look after the volume")


def _judge(volume: Volume, run: Lineage, step: int, attempt: int) -> Found:
    path, ours = volume.checkpoint(step, attempt), run.holds(step, attempt)
    try:
        ref = _read(path)
        damaged = ref is None and (path / MANIFEST).exists()
    except OSError as error:
        problem = _unanswered(path, error).message
        return Found(path, step, attempt, "unreadable", lost=ours, problem=problem)
    if ref is None:
        return Found(path, step, attempt, "damaged" if damaged else "unfinished", lost=ours and damaged)
    return Found(path, step, attempt, "counts", ref) if ours else _judge_other(volume, run, step, attempt, ref)


def _judge_other(volume: Volume, run: Lineage, step: int, attempt: int, ref: CheckpointRef) -> Found:
    """Outside the lineage. What is superseded is deleted, so it is not guessed; nor does an old claim hold up a run."""
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
    """Make `staged`, a finished folder beside it, the checkpoint `target`. The manifest is the one commit point.

    written: files that somebody else has made durable and hashed, by their paths below `staged`.
    Raises InfrastructureError where one of those is not there, OSError where the volume fails or `target` counts
    already.
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
    if not (target / MANIFEST).exists():  # the remains, if any, of a commit that did not get as far as its manifest
        shutil.rmtree(target, ignore_errors=True)
    staged.rename(target)
    for folder in target.parents[:2]:  # its name, and that of the folder of all checkpoints
        sync_folder(folder)
    write_json(target / MANIFEST, manifest.model_dump(mode="json", by_alias=True))
    return CheckpointRef(target, manifest)


def verify(ref: CheckpointRef) -> None:
    """Raises DamagedCheckpointError naming the first file that is missing, or is not what the manifest says.

    Raises InfrastructureError where the volume does not answer.
    """
    try:
        problem = first_problem(ref.path, ref.manifest.files)
    except OSError as error:
        raise _unanswered(ref.path, error) from error
    if problem:
        raise DamagedCheckpointError(f"checkpoint {ref.path.name}: {problem}")


def read_trainer_state(ref: CheckpointRef) -> dict[str, object]:
    state: dict[str, object] = json.loads((ref.path / TRAINER).read_text())
    return state


def _check_present(staged: Path, written: Mapping[str, FileEntry]) -> None:
    for name, entry in written.items():
        path = staged / name
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise InfrastructureError(f"a rank wrote {name}, but the driver finds no such file: share the volume")
