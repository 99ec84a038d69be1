"""The adapter in a checkpoint, for export: by itself, or added to the model that it adapts."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rljob_trainer.checkpoint.manifest import MODEL, RANKS, CheckpointRef
from rljob_trainer.checkpoint.shards import load_shards, saved_shapes
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.lora.base import check_base
from rljob_trainer.lora.files import ADAPTER, CONFIG, is_adapter, layer_of, write_tensors
from rljob_trainer.lora.layers import merged

_SAVED = "policy.model."


@dataclass(frozen=True, slots=True)
class SavedAdapter:
    """folder: with adapter_config.json. config: its content. matrices: by their names in the model, float32."""

    folder: Path
    config: dict[str, Any]
    matrices: dict[str, Tensor]

    def write(self, target: Path, dtype: torch.dtype) -> int:
        """Write peft's two files. Returns the bytes of the matrices."""
        shutil.copyfile(self.folder / CONFIG, target / CONFIG)
        return write_tensors(target, ((name, each.to(dtype)) for name, each in self.matrices.items()))

    def merged(self, base: Path | None, *, trust_remote_code: bool) -> PreTrainedModel:
        """The adapted model in float32. base: the model that is adapted; by default where the run found it.

        Raises DataError if there is no such model, or if its files have changed there.
        """
        place = base or self.config["base_model_name_or_path"]
        if Path(place).is_dir():
            check_base(self.folder, Path(place), "give the model that the run adapted with --base")
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                place, dtype=torch.float32, trust_remote_code=trust_remote_code
            )
            scale = self.config["lora_alpha"] / self.config["r"]
            with torch.no_grad():
                for name in sorted({layer_of(each) for each in self.matrices}):
                    weight = model.get_parameter(f"{name}.weight")
                    down, up = (self.matrices[f"{name}.lora_{each}.weight"] for each in "AB")
                    weight.copy_(merged(weight, down, up, scale))
        except (OSError, ValueError, ImportError, AttributeError, RuntimeError) as error:
            raise DataError(
                f"the adapter cannot be added to the model in {place} ({first_line(error)}); give the model that the"
                " run adapted with --base, or export the adapter alone with --adapter"
            ) from error
        return model


def adapter_of(ref: CheckpointRef) -> SavedAdapter | None:
    """None for a checkpoint of all weights. Raises JobError or InfrastructureError if it cannot be read."""
    folder = ref.path / MODEL / ADAPTER
    if not (folder / CONFIG).exists():
        return None
    shapes = saved_shapes(ref.path / RANKS)
    names = [key.removeprefix(_SAVED) for key in shapes if key.startswith(_SAVED) and is_adapter(key)]
    matrices = {name: torch.empty(shapes[f"{_SAVED}{name}"]) for name in names}
    load_shards({"policy": {"model": matrices}}, ref.path / RANKS, alone=True)
    return SavedAdapter(folder, json.loads((folder / CONFIG).read_text()), matrices)
