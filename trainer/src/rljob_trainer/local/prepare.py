"""From a file to a run that is ready to start: everything is judged here, and nothing runs yet."""

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rljob_api import ResolvedSpec, resolve
from rljob_api.contract import LAYOUT_VERSION
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.validation import load_rljob, with_ranks
from rljob_trainer.checkpoint.manifest import CheckpointRef, list_checkpoints, read_trainer_state, verify
from rljob_trainer.controller.stages import data_exhausted
from rljob_trainer.errors import DataError, InfrastructureError, JobError, StorageFullError, is_full
from rljob_trainer.local.machine import gpus_present
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.state import read_object
from rljob_trainer.volume import Volume, write_json

NOT_APPLIED = ("cluster",)
"""Blocks of the spec that only a cluster can execute."""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that fits this machine.

    base_dir: where the spec's relative paths start. environment: the variables of spec.env.
    notes: what a person should know before it starts.
    """

    name: str
    spec: ResolvedSpec
    base_dir: Path
    volume: Volume
    gpus: int
    environment: dict[str, str]
    notes: tuple[str, ...]

    def info(self, uid: str) -> RunInfo:
        return RunInfo(
            name=self.name,
            uid=uid,
            directory=self.volume.root,
            model=self.spec.model.path or "from scratch",
            engine=self.spec.rollout.engine,
            ranks=self.spec.ranks,
        )


def prepare(file: Path, directory: Path | None, ranks: int | None, overrides: Sequence[str]) -> LocalRun:
    """Judge the file. Raises InvalidRLJob with every problem of it, JobError for what does not fit this machine."""
    job = load_rljob(file, overrides)
    gpus = gpus_present()
    ranks = ranks or gpus or 1
    if 0 < gpus < ranks:
        raise JobError(f"--ranks {ranks} needs as many GPUs, and {gpus} are present: lower it")
    written = job.spec.cluster != type(job.spec.cluster)()
    return LocalRun(
        name=job.metadata.name,
        spec=resolve(with_ranks(job.spec, ranks, gpus=gpus > 0)),
        base_dir=file.resolve().parent,
        volume=Volume((directory or Path("runs") / job.metadata.name).resolve()),
        gpus=ranks if gpus else 0,
        environment=environment_of(job.spec),
        notes=(f"not applied on this machine: {', '.join(NOT_APPLIED)}",) if written else (),
    )


def environment_of(spec: RLJobSpec) -> dict[str, str]:
    """The variables of spec.env; a Secret's are the caller's variables of the same name.

    Raises JobError where the caller has none.
    """
    values: dict[str, str] = {}
    for index, variable in enumerate(spec.env):
        value = variable.value if variable.value_from is None else os.environ.get(variable.name)
        if value is None:
            raise JobError(
                f"a cluster reads {variable.name} from a Secret; here, set the variable {variable.name}",
                field=f"spec.env[{index}]",
            )
        values[variable.name] = value
    return values


def adopt(run: LocalRun) -> str:
    """The uid of the run in its folder, which is made where it is new. Raises DataError where it is another run's."""
    volume = run.volume
    found = read_object(volume.job)
    if found is None and not volume.job.exists():
        uid = str(uuid.uuid4())
        write_json(volume.job, {"jobUid": uid, "name": run.name, "layoutVersion": LAYOUT_VERSION})
        return uid
    if found is None or found.get("layoutVersion") != LAYOUT_VERSION or "jobUid" not in found:
        raise DataError(f"{volume.job} is of no run that this version knows: choose another --dir")
    if found.get("name") != run.name:
        raise DataError(f"{volume.root} holds the run {found.get('name')}: choose another --dir for {run.name}")
    return str(found["jobUid"])


def nothing_left(run: LocalRun) -> str | None:
    """Why there is nothing to train, None where there is. The newest checkpoint that is whole tells."""
    refs = list_checkpoints(run.volume) if run.spec.checkpoint.resume == "auto" else []
    for ref in reversed(refs):
        try:
            return _why_done(run, ref)
        except (OSError, ValueError, InfrastructureError):  # damaged: the driver says so, and goes back as we do here
            continue
    return None


def _why_done(run: LocalRun, ref: CheckpointRef) -> str | None:
    """Raises InfrastructureError, OSError or ValueError where the answer would rest on a damaged checkpoint."""
    step, total = ref.manifest.step, run.spec.total_steps
    if step < total and not data_exhausted(run.spec, step, read_trainer_state(ref)):
        return None
    verify(ref)
    more = "training.steps" if step >= total else "training.epochs"
    return (
        f"nothing left to do: the run in {run.volume.root} is at step {step} of {total}. "
        f"Raise {more}, choose another --dir, or start over with checkpoint.resume=never"
    )


@contextmanager
def writable(volume: Volume) -> Iterator[None]:
    """Raises StorageFullError or DataError naming the folder, in place of OSError, where it cannot be written."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StorageFullError(f"no space left in {volume.root}: free space, or choose another --dir") from error
        raise DataError(f"{volume.root} cannot be written: {error.strerror}; choose another --dir") from error
