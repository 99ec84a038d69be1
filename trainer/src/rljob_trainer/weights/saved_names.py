"""Weights under the names and in the shapes of a checkpoint, as vLLM reads them and `save_pretrained` writes them.

transformers computes with other tensors than it saves: all experts of a layer are one, for example.

    model.layers.0.mlp.experts.gate_up_proj [4, 2 I, H]
      ->  model.layers.0.mlp.experts.0.gate_proj.weight [I, H], ...0.up_proj.weight, ...1.gate_proj.weight, ...
"""

import re
from collections.abc import Iterator
from itertools import groupby

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion

_LAYER = re.compile(r".*?\.\d+\.|")


def as_saved(model: PreTrainedModel, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same weights, converted. A conversion reads one layer at most, so no more than that is held."""
    if not get_model_conversion_mapping(model, add_legacy=False):
        yield from weights
        return
    for _, layer in groupby(weights, key=lambda named: _layer_of(named[0])):
        yield from revert_weight_conversion(model, dict(layer)).items()


def _layer_of(name: str) -> str:
    found = _LAYER.match(name)
    return found.group() if found else ""


def all_weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, each once, and the buffers that a checkpoint holds, such as the biases of some routers."""
    yield from network.named_parameters()
    for prefix, module in network.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:  # noqa: SLF001  no public way
                yield f"{prefix}.{name}" if prefix else name, buffer
