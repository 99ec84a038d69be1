"""From a file to a run that is ready to start. All checks happen here; nothing runs yet."""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from rljob_api import ResolvedSpec, resolve
from rljob_api.contract import LAYOUT_VERSION
from rljob_api.v1alpha1 import RewardModel, RLJobSpec
from rljob_api.v1alpha1.cluster import EnvVar
from rljob_api.validation import load_rljob, with_ranks
from rljob_trainer.checkpoint.manifest import CheckpointRef, list_checkpoints, read_trainer_state, verify
from rljob_trainer.errors import DataError, InfrastructureError, JobError, StorageFullError, is_full
from rljob_trainer.local import preflight
from rljob_trainer.local.machine import visible_gpus
from rljob_trainer.local.reward_servers import Plan
from rljob_trainer.loop.stages import data_exhausted, known_length
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.state import next_attempt, read_object
from rljob_trainer.rank.model_source import local_folder
from rljob_trainer.rewards.models.key import read_key, read_teacher_key
from rljob_trainer.volume import Volume, write_json

NOT_APPLIED = (
    "cluster", "env_from", "volumes", "volume_mounts", "image_pull_secrets", "checkpoint.volume", "suspend",
    "active_deadline", "ttl_after_finished", "managed_by",
)  # fmt: skip
"""Blocks of the spec that apply only in a cluster."""

NOT_APPLIED_TO_MODELS = ("replicas", "image", "cpu", "memory", "template")


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that fits this machine.

    base_dir: where the spec's relative paths start.
    gpus: number of GPUs of its ranks.
    environment: variables of spec.env, and CUDA_VISIBLE_DEVICES of the ranks if reward models use other GPUs.
    notes: shown before the run starts.
    servers: reward models to start.
    running: URLs of reward models that already run, by name.
    """

    name: str
    spec: ResolvedSpec
    base_dir: Path
    volume: Volume
    gpus: int
    environment: dict[str, str]
    notes: tuple[str, ...]
    servers: tuple[Plan, ...] = ()
    running: Mapping[str, str] = field(default_factory=dict)

    def info(self, uid: str) -> RunInfo:
        return RunInfo(
            name=self.name,
            uid=uid,
            directory=self.volume.root,
            model=self.spec.model.path or "from scratch",
            engine="" if self.spec.supervised_only else self.spec.rollout.engine,
            ranks=self.spec.ranks,
        )


def prepare(
    file: Path, directory: Path | None, ranks: int | None, overrides: Sequence[str], reward_models: Sequence[str] = ()
) -> LocalRun:
    """Check the file and plan its run. reward_models: NAME=URL of servers that already run.

    Raises:
        InvalidRLJob: lists every problem of the file.
        JobError: the job does not fit this machine.
        DataError: a reward model's folder is missing.
        Also what `preflight.check` raises.
    """
    job = load_rljob(file, overrides)
    spec, base_dir, gpus = job.spec, file.resolve().parent, visible_gpus()
    running = _running(spec, reward_models)
    started = [(i, m) for i, m in enumerate(spec.rewards.models) if m.name not in running and m.url is None]
    taken = sum(model.gpus_per_replica for _, model in started) if gpus else 0
    ranks = ranks or max(len(gpus) - taken, 1)
    if gpus and ranks + taken > len(gpus):
        raise JobError(_too_few(ranks, taken, len(gpus)))
    servers = _planned(started, base_dir, gpus[ranks:])
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[:ranks])} if taken else {}
    resolved = resolve(with_ranks(spec, ranks, gpus=bool(gpus)))
    environment = environment_of(spec.env, "spec.env")
    for index, model in enumerate(spec.rewards.models):
        read_key(model, f"spec.rewards.models[{index}]", os.environ | environment)
    teacher = spec.algorithm.teacher
    if teacher is not None and teacher.server is not None:
        read_teacher_key(teacher.server, os.environ | environment)
    preflight.check(resolved, base_dir)
    return LocalRun(
        name=job.metadata.name,
        spec=resolved,
        base_dir=base_dir,
        volume=Volume((directory or Path("runs") / job.metadata.name).resolve()),
        gpus=ranks if gpus else 0,
        environment=environment | devices,
        notes=(*_notes(spec, gpus), *_unset(spec, os.environ | environment)),
        servers=servers,
        running=running,
    )


def _too_few(ranks: int, taken: int, gpus: int) -> str:
    if not taken:
        return f"--ranks {ranks} needs {ranks} GPUs, but {gpus} are present; lower it"
    return (
        f"{ranks} ranks and reward models on {taken} GPUs need {ranks + taken}, but {gpus} are present; lower --ranks"
        " or gpusPerReplica, or serve a model elsewhere and pass --reward-model NAME=URL"
    )


def _running(spec: RLJobSpec, reward_models: Sequence[str]) -> dict[str, str]:
    running: dict[str, str] = {}
    for given in reward_models:
        name, _, url = given.partition("=")
        if name not in {model.name for model in spec.rewards.models}:
            raise JobError(f"--reward-model {given}: spec.rewards.models has no {name!r}; correct the name")
        if not url.startswith(("http://", "https://")):
            raise JobError(f"--reward-model {given}: write NAME=URL, as in {name}=http://127.0.0.1:8000")
        running[name] = url.rstrip("/")
    return running


def _planned(started: Sequence[tuple[int, RewardModel]], base_dir: Path, gpus: Sequence[str]) -> tuple[Plan, ...]:
    """gpus: those that the ranks do not use.

    Raises DataError if a model's folder is missing, JobError if a variable is.
    """
    plans, left = [], list(gpus)
    for index, model in started:
        field = f"spec.rewards.models[{index}]"
        folder = local_folder(model.path, base_dir, f"{field}.path")
        own = tuple(left.pop(0) for _ in range(model.gpus_per_replica)) if left else ()
        plans.append(Plan(model, field, str(folder or model.path), own, environment_of(model.env, f"{field}.env")))
    return tuple(plans)


def _notes(spec: RLJobSpec, gpus: Sequence[str]) -> Iterator[str]:
    """Differences between the file and this machine. A job asks for GPUs also by default of cluster.gpusPerNode."""
    if spec.cluster.gpus_per_node and not gpus:
        yield (
            "warning: the job asks for GPUs"
            f" (cluster.gpusPerNode: {spec.cluster.gpus_per_node}), but no GPU is visible: it trains on CPUs, which may"
            " take hours. Check nvidia-smi, /dev/nvidia* and CUDA_VISIBLE_DEVICES, or set cluster.gpusPerNode=0 to"
            " train on CPUs"
        )
    if ignored := _not_applied(spec):
        yield f"not applied on this machine: {', '.join(ignored)}"


def _unset(spec: RLJobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that reward functions name and this machine lacks; a function may do without, as with a proxy."""
    for index, function in enumerate(spec.rewards.functions):
        if missing := [name for name in function.env if name not in environment]:
            yield f"warning: spec.rewards.functions[{index}].env: not set on this machine: {', '.join(missing)}"


def _not_applied(spec: RLJobSpec) -> list[str]:
    """The fields of NOT_APPLIED that the file sets, in camelCase."""
    models = [name for name in NOT_APPLIED_TO_MODELS if any(_differs(model, name) for model in spec.rewards.models)]
    return [
        ".".join(map(to_camel, path)) for path in (name.split(".") for name in NOT_APPLIED) if _differs(spec, *path)
    ] + [f"rewards.models[].{name}" for name in models]


def _differs(model: BaseModel, name: str, *rest: str) -> bool:
    """Whether a field differs from its default."""
    value = getattr(model, name)
    if rest:
        return _differs(value, *rest)
    return bool(value != type(model).model_fields[name].get_default(call_default_factory=True))


def environment_of(variables: Sequence[EnvVar], field: str) -> dict[str, str]:
    """The variables of a list of the spec; those from a Secret are read from the caller's environment.

    Raises:
        JobError: the caller's environment lacks one.
    """
    values: dict[str, str] = {}
    for index, variable in enumerate(variables):
        value = variable.value if variable.value_from is None else os.environ.get(variable.name)
        if value is None:
            raise JobError(
                f"a cluster reads {variable.name} from a Secret; on this machine, set the environment variable",
                field=f"{field}[{index}]",
            )
        values[variable.name] = value
    return values


def adopt(run: LocalRun) -> str:
    """The uid of the run in its folder, created if the folder is new. Raises DataError if it holds another run."""
    volume = run.volume
    found = read_object(volume.job)
    if found is None and not volume.job.exists():
        if next_attempt(volume) > 1:  # true even if only checkpoints are left
            raise DataError(
                f"{volume.root} holds a run without {volume.job.name}, which identifies it (a cluster writes none);"
                " restore the file, or choose another --dir and set checkpoint.resume to one of its checkpoints"
            )
        uid = str(uuid.uuid4())
        write_json(volume.job, {"jobUid": uid, "name": run.name, "layoutVersion": LAYOUT_VERSION})
        return uid
    if found is None or found.get("layoutVersion") != LAYOUT_VERSION or "jobUid" not in found:
        raise DataError(f"{volume.job} was not written by a supported version; choose another --dir")
    if found.get("name") != run.name:
        raise DataError(f"{volume.root} holds the run {found.get('name')}; choose another --dir for {run.name}")
    return str(found["jobUid"])


def nothing_left(run: LocalRun) -> str | None:
    """Why the newest intact checkpoint leaves nothing to train; None if something is left."""
    refs = list_checkpoints(run.volume) if run.spec.checkpoint.resume == "auto" else []
    for ref in reversed(refs):
        try:
            return _why_done(run, ref)
        except (OSError, ValueError, InfrastructureError):  # damaged: the driver reports it and falls back too
            continue
    return None


def _why_done(run: LocalRun, ref: CheckpointRef) -> str | None:
    """As nothing_left. Raises InfrastructureError, OSError or ValueError if the checkpoint is damaged."""
    state = read_trainer_state(ref)
    step, total = ref.manifest.step, known_length(run.spec, state).total_steps
    if step < total and not data_exhausted(run.spec, step, state):
        return None
    verify(ref)
    more = "training.epochs" if run.spec.training.steps is None or step < run.spec.total_steps else "training.steps"
    return (
        f"nothing left to do: the run in {run.volume.root} is at step {step} of {total}. "
        f"Raise {more}, choose another --dir, or start over with checkpoint.resume=never"
    )


@contextmanager
def with_room(volume: Volume) -> Iterator[None]:
    """Turn OSError into StorageFullError, which names the folder, if the disk is full."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        if error.filename and not Path(error.filename).is_relative_to(volume.root):
            raise StorageFullError(f"no space left for {error.filename}; free space") from error
        raise StorageFullError(no_room(volume)) from error


def no_room(volume: Volume) -> str:
    """The message for a run's folder on a full disk."""
    return f"no space left in {volume.root}; free space, or choose another --dir"


@contextmanager
def answering(volume: Volume) -> Iterator[None]:
    """Turn an OSError of the run's folder into StorageFullError or InfrastructureError.

    The folder answered before, so the error may pass, and another folder is no remedy.
    """
    try:
        with with_room(volume):
            yield
    except OSError as error:
        if error.filename and not Path(error.filename).is_relative_to(volume.root):
            raise
        raise InfrastructureError(f"{volume.root} does not answer: {error}; check the volume") from error


@contextmanager
def writable(volume: Volume) -> Iterator[None]:
    """Turn OSError into StorageFullError or DataError, which names the folder, if it cannot be written."""
    try:
        with with_room(volume):
            yield
    except OSError as error:
        raise DataError(f"cannot write to {volume.root}: {error.strerror}; choose another --dir") from error
