"""The model to evaluate, as a folder and in an engine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoModelForCausalLM

from rljob_api.resolve import ResolvedSpec
from rljob_trainer.checkpoint.export import choose_checkpoint, export_model
from rljob_trainer.checkpoint.manifest import counting, survey
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.engines.engine import EngineSettings, RolloutEngine
from rljob_trainer.engines.registry import ENGINES, create_engine
from rljob_trainer.errors import DataError
from rljob_trainer.memory.sequences import FEW_SEQUENCES
from rljob_trainer.volume import Volume
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.saved_names import all_weights, as_saved
from rljob_trainer.weights.sender import WeightSender

VERSION = 0
"""policy_version of the only update."""


def device() -> Literal["cpu", "cuda"]:
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True)
class Source:
    """The model to evaluate.

    name: a run's folder, one of its checkpoints, a model's folder, or a name on the hub.
    step: of the run's checkpoint; None: the newest. base: what a LoRA run adapts, if it has moved.
    """

    name: str
    step: int | None = None
    base: Path | None = None


def model_name(source: Source, spec: ResolvedSpec, folder: Path) -> str:
    """What model.path has to be: the source's name, or `folder`, into which a run's checkpoint is exported.

    Raises DataError if the run has no such checkpoint, or a step or a base is given for a model.
    """
    path, step = Path(source.name).expanduser(), source.step
    if path.is_dir() and not (path / "config.json").is_file():
        run = path.parent.parent if path.parent.name == Volume(path.parent.parent).checkpoints.name else path
        if run != path:
            step = _step_of(path, run)
        trusted = spec.model.trust_remote_code
        dtype = compute_dtype(spec, device())
        export_model(choose_checkpoint(run, step), folder, dtype, trust_remote_code=trusted, base=source.base)
        return str(folder)
    for option, value in (("--step", step), ("--base", source.base)):
        if value is not None:
            raise DataError(f"{source.name} is a model and no run: remove {option}, or pass a run's folder")
    return str(path.resolve()) if path.is_dir() else source.name


def _step_of(path: Path, run: Path) -> int:
    for ref in counting(survey(Volume(run))):
        if ref.path.resolve() == path.resolve():
            return ref.manifest.step
    raise DataError(f"{path} is not a finished checkpoint: rljob checkpoints {run} lists those of the run")


def start_engine(spec: ResolvedSpec, folder: Path, source: Path) -> RolloutEngine:
    """An engine with the weights of `source`. folder: configuration and tokenizer, as prepare_model_folder writes them.

    Raises JobError if the engine is missing or cannot take the weights, DataError if the weights cannot be read.
    """
    rollout, trusted = spec.rollout, spec.model.trust_remote_code
    dtype = compute_dtype(spec, device())
    settings = EngineSettings(
        kind=rollout.engine, model_dir=str(folder), max_model_len=spec.longest_sample, dtype=dtype, device=device(),
        max_num_seqs=rollout.max_num_seqs or FEW_SEQUENCES, more_if_room=rollout.max_num_seqs is None,
        tensor_parallel_size=rollout.tensor_parallel_size,
        gpu_memory_utilization=rollout.gpu_memory_utilization, enforce_eager=rollout.enforce_eager, seed=rollout.seed,
        trust_remote_code=trusted, arguments=rollout.engine_arguments, deterministic=rollout.deterministic,
    )  # fmt: skip
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype), trust_remote_code=trusted)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"transformers cannot load the model in {source}: {error}") from error
    engine = create_engine(settings)
    tensors = all_weights(model)
    named = as_saved(model, tensors) if ENGINES[rollout.engine].reads_saved_names else tensors

    def deliver(bucket: BucketDescriptor) -> Callable[[], None]:
        engine.load_bucket(bucket)
        return lambda: None

    try:
        engine.begin_update(VERSION)
        # Through shared memory on a GPU too: a process cannot open its own CUDA IPC handles.
        WeightSender("cpu", dtype, rollout.weight_sync.bucket_mib << 20).send(named, VERSION, deliver)
        engine.finish_update(VERSION)
    except BaseException:
        engine.close()
        raise
    return engine
