"""Are two runs' weights equal, bit for bit?"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rljob_trainer.checkpoint.export import choose_checkpoint, export_model


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    """The policy of a run's newest checkpoint, in float32."""
    target = run.with_name(f"{run.name}.model")
    if not target.exists():
        export_model(choose_checkpoint(run, None), target, "float32")
    return load_file(target / "model.safetensors")


def differing(one: Path, other: Path) -> list[str]:
    """Names of the parameters in which the runs' last checkpoints differ."""
    left, right = final_weights(one), final_weights(other)
    return sorted(name for name in left.keys() | right.keys() if name not in left or not _same(left, right, name))


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], name: str) -> bool:
    return name in right and torch.equal(left[name], right[name])
