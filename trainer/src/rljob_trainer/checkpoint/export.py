"""From a checkpoint to a model folder that `AutoModelForCausalLM.from_pretrained` loads."""

import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from rljob_trainer.checkpoint.manifest import ACTOR, MODEL, CheckpointRef, list_checkpoints, verify
from rljob_trainer.errors import DataError
from rljob_trainer.volume import Volume

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_checkpoint(run: Path, step: int | None) -> CheckpointRef:
    """The newest checkpoint of a run, or the newest of `step`. Raises DataError naming the steps there are."""
    refs = list_checkpoints(Volume(run))
    if not refs:
        raise DataError(f"{run} has no finished checkpoint: give the folder that rljob run printed")
    chosen = [ref for ref in refs if step in (None, ref.manifest.step)]
    if not chosen:
        steps = ", ".join(str(each) for each in sorted({ref.manifest.step for ref in refs}))
        raise DataError(f"{run} has no checkpoint of step {step}: choose one of {steps}")
    return chosen[-1]


def export_model(ref: CheckpointRef, target: Path, dtype: str) -> int:
    """Write the policy's weights, its configuration and its tokenizer to `target`. Returns the bytes of weights.

    Raises DataError where `target` holds something already, InfrastructureError where the checkpoint is damaged.
    """
    if target.exists() and any(target.iterdir()):
        raise DataError(f"{target} is not empty: choose another folder")
    verify(ref)
    config = AutoConfig.from_pretrained(ref.path / MODEL)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {"model": model.state_dict()}
    dcp.load(weights, checkpoint_id=ref.path / ACTOR, no_dist=True)
    model.load_state_dict(weights["model"])
    model.to(DTYPES[dtype]).save_pretrained(target)
    for path in (ref.path / MODEL).iterdir():
        if path.is_file() and not (target / path.name).exists():
            shutil.copy2(path, target / path.name)
    return sum(path.stat().st_size for path in target.glob("*.safetensors"))
