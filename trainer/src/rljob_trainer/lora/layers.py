"""Linear layers with an adapter. Hu et al. 2021: https://arxiv.org/abs/2106.09685"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rljob_api.resolve import ResolvedLora
from rljob_trainer.compute.linear import linear
from rljob_trainer.errors import JobError
from rljob_trainer.lora.files import FIELD as PATH_FIELD

FIELD = "spec.model.lora.targetModules"


class LoraLinear(nn.Linear):
    """x -> W x + b + scale * B A x. The layer keeps its own parameters and their names.

    lora_A: [rank, inputs]. lora_B: [outputs, rank]. dropout: of A's inputs, in passes with a gradient.
    active: False leaves the adapter out. compiled: whether torch.compile reads this forward pass.
    """

    lora_A: nn.Linear  # noqa: N815  peft's name
    lora_B: nn.Linear  # noqa: N815
    scale: float
    dropout: float
    active: bool
    compiled: bool

    @classmethod
    def extend(cls, layer: nn.Linear, lora: ResolvedLora) -> None:
        """Make the layer one with an adapter, in place; the adapter's weights are not written yet."""
        assert lora.rank is not None
        layer.__class__ = cls
        assert isinstance(layer, LoraLinear)
        where = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        with torch.no_grad():
            layer.lora_A = nn.utils.skip_init(nn.Linear, layer.in_features, lora.rank, bias=False, **where)
            layer.lora_B = nn.utils.skip_init(nn.Linear, lora.rank, layer.out_features, bias=False, **where)
        layer.scale, layer.dropout = lora.scale, lora.dropout
        layer.active, layer.compiled = True, False

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  its name in nn.Linear
        product = F.linear if self.compiled else linear
        out = product(input, self.weight, self.bias)
        if not self.active:
            return out
        if self.dropout and torch.is_grad_enabled():
            input = F.dropout(input, self.dropout)  # noqa: A001
        added = self.scale * product(product(input, self.lora_A.weight), self.lora_B.weight)
        if self.compiled:
            # Left alone, torch.compile adds before W x is rounded, which vLLM does not: in bfloat16 a young adapter is
            # less than half a rounding of most outputs, so it moved the trainer's policy and not the engine's.
            return (out.float() + added.float()).to(out.dtype)
        return out + added


def adapt(model: PreTrainedModel, lora: ResolvedLora, field: str = FIELD) -> None:
    """Give the linear layers that `lora` names an adapter, in place. Raises as find_layers."""
    for layer in find_layers(model, lora.target_modules or (), field if lora.path is None else PATH_FIELD).values():
        LoraLinear.extend(layer, lora)


def find_layers(model: PreTrainedModel, targets: Sequence[str], field: str = FIELD) -> dict[str, nn.Linear]:
    """Layers by name. targets: the last parts of their names, or all-linear. field: where those come from.

    Raises JobError for a model without linear layers, for a name that none of them has, and for the output head, which
    is not computed as a layer.
    """
    head = model.get_output_embeddings()
    named = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear) and each is not head}
    if not named:
        block = field.rpartition(".")[0]
        raise JobError(
            f"{model.config.model_type} has no linear layer below its output head, so it can have no adapter: choose"
            f" another model, or remove {block} to train all weights",
            field=block,
        )
    if list(targets) == ["all-linear"]:
        return named
    found: dict[str, nn.Linear] = {}
    for target in targets:
        matching = {name: each for name, each in named.items() if f".{name}".endswith(f".{target}")}
        if not matching:
            known = sorted({name.rpartition(".")[2] for name in named})
            raise JobError(
                f"the model has no linear layer {target} below its output head: choose from {', '.join(known)}",
                field=field,
            )
        found |= matching
    return {name: named[name] for name in named if name in found}


def adapted_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """The layers with an adapter, by name."""
    return {name: each for name, each in model.named_modules() if isinstance(each, LoraLinear)}


def initial_matrices(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """The weights of a fresh adapter, on the host, by name: A as nn.Linear draws it, B zero, as peft's are."""
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for name, layer in adapted_layers(model).items():
        bound = layer.in_features**-0.5
        made[f"{name}.lora_A.weight"] = torch.empty(layer.lora_A.weight.shape).uniform_(-bound, bound, generator=draw)
        made[f"{name}.lora_B.weight"] = torch.zeros(layer.lora_B.weight.shape)
    return made


def merged(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """W + scale * B A, computed in float32, in the type of W. down: A. up: B."""
    return torch.addmm(weight.float(), up.float(), down.float(), alpha=scale).to(weight.dtype)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Let the model compute what it did before it was adapted."""
    layers = adapted_layers(model).values()
    for layer in layers:
        layer.active = False
    try:
        yield
    finally:
        for layer in layers:
            layer.active = True
