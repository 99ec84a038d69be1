"""Export a checkpoint to a model folder that `AutoModelForCausalLM.from_pretrained` loads, or to one of peft's."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel

from rljob_trainer.checkpoint.adapter import adapter_of
from rljob_trainer.checkpoint.manifest import MODEL, RANKS, CheckpointRef, counting, newest, survey, verify
from rljob_trainer.checkpoint.shards import load_shards, saved_shapes
from rljob_trainer.errors import DataError, InfrastructureError
from rljob_trainer.lora.files import ADAPTER
from rljob_trainer.rank.loading import bare_model
from rljob_trainer.volume import Volume

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_checkpoint(run: Path, step: int | None) -> CheckpointRef:
    """The newest checkpoint of a run, or the newest of `step`.

    Raises DataError that lists the available steps; InfrastructureError if that checkpoint cannot be read now.
    """
    found = survey(Volume(run))
    meant = newest([each for each in found if step in (None, each.step)])
    if meant is not None and meant.problem:
        raise InfrastructureError(f"{meant.problem}, or choose another step with --step (see rljob checkpoints)")
    refs = counting(found)
    if not refs:
        raise DataError(f"{run} has no finished checkpoint; pass the folder that rljob run printed")
    chosen = [ref for ref in refs if step in (None, ref.manifest.step)]
    if not chosen:
        steps = ", ".join(str(each) for each in sorted({ref.manifest.step for ref in refs}))
        raise DataError(f"{run} has no checkpoint of step {step}; choose one of {steps}")
    return chosen[-1]


def export_model(
    ref: CheckpointRef, target: Path, dtype: str, *, trust_remote_code: bool = False, base: Path | None = None,
    ema: bool = False,
) -> int:  # fmt: skip
    """Write the policy's weights, its configuration and its tokenizer to `target`. Returns the bytes of weights.

    dtype: "float32" or "bfloat16". trust_remote_code: run Python code that came with the model.
    base: the model below the run's adapter, if it is not any more where the run found it.
    ema: the average of the policy (actor.emaDecay) in its place.
    Raises DataError if `target` is not empty or cannot be written, or the base is missing, is another model or belongs
    to no adapter; InfrastructureError if the checkpoint is damaged. After a failure `target` does not exist.
    """
    with _written(ref, target) as part:
        if ema and not any(name.startswith("ema.") for name in saved_shapes(ref.path / RANKS)):
            raise DataError(f"{ref.path} holds no average of the policy: leave out --ema, or train with actor.emaDecay")
        adapter = adapter_of(ref)
        if adapter is None:
            if base is not None:
                raise DataError(f"{ref.path} holds a whole model and no adapter; leave out --base")
            model = _load(ref, "ema" if ema else "policy", trust_remote_code=trust_remote_code)
        else:
            model = adapter.merged(base, trust_remote_code=trust_remote_code)
        model.to(DTYPES[dtype]).save_pretrained(part)
        # The run's own files replace transformers' (such as generation_config.json), except config.json: its dtype.
        ours = shutil.ignore_patterns("config.json", ADAPTER)
        shutil.copytree(ref.path / MODEL, part, ignore=ours, dirs_exist_ok=True)
    return sum(path.stat().st_size for path in target.resolve().glob("*.safetensors"))


def export_adapter(ref: CheckpointRef, target: Path, dtype: str) -> int:
    """Write the run's adapter to `target` as peft reads it, with the tokenizer. Returns the bytes of its weights.

    Raises as export_model, and DataError if the run trains all weights.
    """
    with _written(ref, target) as part:
        adapter = adapter_of(ref)
        if adapter is None:
            raise DataError(f"{ref.path} holds a whole model and no adapter; leave out --adapter")
        model_files = shutil.ignore_patterns("*config.json", ADAPTER)
        shutil.copytree(ref.path / MODEL, part, ignore=model_files)
        return adapter.write(part, DTYPES[dtype])


@contextmanager
def _written(ref: CheckpointRef, target: Path) -> Iterator[Path]:
    """A folder that becomes `target` if all goes well."""
    target = target.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} already exists; choose another folder")
    try:
        verify(ref)
    except InfrastructureError as error:
        message = f"{error.message}; choose another step with --step (see rljob checkpoints)"
        raise InfrastructureError(message) from error
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _load(ref: CheckpointRef, role: str, *, trust_remote_code: bool) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(ref.path / MODEL, trust_remote_code=trust_remote_code)
        model = bare_model(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"transformers cannot load the model in {ref.path / MODEL}: {error}") from error
    load_shards({role: {"model": model.state_dict()}}, ref.path / RANKS, alone=True)
    return model
