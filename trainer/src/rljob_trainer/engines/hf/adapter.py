"""An adapter in engine hf: added to the weights of its layers, which are kept as they were."""

from typing import Any

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedLora
from rljob_trainer.lora.files import PREFIX
from rljob_trainer.lora.layers import find_layers, merged


class MergedAdapter:
    """The engine generates as fast as without an adapter, and holds the adapted layers twice.

    names: of the tensors that an update must bring.
    """

    def __init__(self, model: Any, lora: ResolvedLora) -> None:
        self._layers = find_layers(model, lora.target_modules or ())
        self._scale = lora.scale
        self._below: dict[str, Tensor] = {}
        self._matrices: dict[str, Tensor] = {}
        self.names = {f"{PREFIX}{name}.lora_{each}.weight" for name in self._layers for each in "AB"}

    def load(self, name: str, tensor: Tensor) -> None:
        """One matrix, by its name in peft's files."""
        self._matrices[name] = tensor.clone()

    def forget(self, name: str) -> None:
        """That weight of the model has arrived again."""
        self._below.pop(name, None)

    @torch.no_grad()
    def apply(self) -> None:
        """Put the newest matrices into the weights."""
        for name, layer in self._layers.items():
            own = f"{name}.weight"
            if own not in self._below:
                self._below[own] = layer.weight.clone()
            down, up = (self._matrices[f"{PREFIX}{name}.lora_{each}.weight"] for each in "AB")
            layer.weight.copy_(merged(self._below[own], down, up, self._scale))
        self._matrices.clear()

    def to(self, device: str) -> None:
        """Move what is kept of the layers."""
        self._below = {name: tensor.to(device) for name, tensor in self._below.items()}
