"""Are two runs' weights equal, bit for bit?"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rljob_trainer.checkpoint.export import choose_checkpoint, export_model
from rljob_trainer.checkpoint.manifest import RANKS
from rljob_trainer.checkpoint.shards import load_shards, saved_shapes

_CRITIC = "critic.model."


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    """The policy of a run's newest checkpoint, and its critic, in float32."""
    target, checkpoint = run.with_name(f"{run.name}.model"), choose_checkpoint(run, None)
    if not target.exists():
        export_model(checkpoint, target, "float32")
    return load_file(target / "model.safetensors") | _critic(checkpoint.path / RANKS)


def _critic(ranks: Path) -> dict[str, torch.Tensor]:
    shapes = {name: shape for name, shape in saved_shapes(ranks).items() if name.startswith(_CRITIC)}
    weights = {name.removeprefix(_CRITIC): torch.empty(shape) for name, shape in shapes.items()}
    load_shards({"critic": {"model": weights}}, ranks, alone=True)
    return {f"{_CRITIC}{name}": weight for name, weight in weights.items()}


def differing(one: Path, other: Path) -> list[str]:
    """Names of the parameters in which the runs' last checkpoints differ."""
    left, right = final_weights(one), final_weights(other)
    return sorted(name for name in left.keys() | right.keys() if name not in left or not _same(left, right, name))


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], name: str) -> bool:
    return name in right and torch.equal(left[name], right[name])
