"""torch.compile for the layers of the decoder, one by one: FSDP's hooks and checkpoints stay outside.

Packs have any number of tokens, so that dimension is symbolic from the start: one compilation for passes with gradients
and one for those without serve all lengths and all equal layers. torch stops to compile a layer's code after
`torch._dynamo.config.recompile_limit` variants and runs it uncompiled from then on, with a warning.
"""

import os
import shutil
from collections.abc import Sequence

import torch
from torch import nn
from torch._dynamo.utils import counters

from rljob_api import ResolvedSpec
from rljob_trainer.compute.linear import plain_linear_layers
from rljob_trainer.compute.triton_ready import missing_for_triton
from rljob_trainer.errors import JobError
from rljob_trainer.lora.layers import adapted_layers

BACKEND = "inductor"


def compiles(spec: ResolvedSpec, device_type: str) -> bool:
    """Whether the layers are compiled: as actor.compile says, by default on GPUs only.

    Raises JobError if it says so and this machine lacks what it takes.
    """
    missing = _missing(device_type)
    if spec.actor.compile and missing is not None:
        raise JobError(
            f"torch.compile needs {missing} here: install it, or set it to false", field="spec.actor.compile"
        )
    if spec.actor.compile is None and device_type == "cuda" and missing is not None:
        import structlog

        structlog.get_logger().warning("layers_not_compiled", missing=missing)
    return missing is None and (device_type == "cuda" if spec.actor.compile is None else spec.actor.compile)


def _missing(device_type: str) -> str | None:
    if device_type == "cuda":
        return missing_for_triton()
    found = os.environ.get("CXX") or any(map(shutil.which, ("g++", "clang++")))
    return None if found else "a C++ compiler"


def compile_layers(layers: Sequence[nn.Module]) -> None:
    """Compile what each layer computes, in place, when it first runs."""
    torch._dynamo.config.specialize_float = True  # noqa: SLF001  else a norm's epsilon is a tensor, read in each call
    for layer in layers:
        plain_linear_layers(layer)
        for adapted in adapted_layers(layer).values():
            adapted.compiled = True
        layer.forward = torch.compile(layer.forward, backend=BACKEND, dynamic=True)


def compiled_graphs() -> int:
    """Graphs that this process has compiled so far."""
    return int(counters["stats"]["unique_graphs"])
