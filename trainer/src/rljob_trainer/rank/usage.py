"""How much of its GPU a rank uses in an update: arithmetic and memory."""

import time
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from rljob_trainer.rank.results import Usage
from rljob_trainer.rank.shard import Shard

PEAK_FLOPS: Mapping[str, float] = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "GH200": 989e12, "B200": 2250e12,
    "A100": 312e12, "L40S": 362e12, "A10": 125e12, "L4": 121e12,
}  # fmt: skip
"""Dense products in bfloat16 a second, by a part of CUDA's name of the GPU; from NVIDIA's data sheets."""

_FLOPS = 6
_FROZEN_FLOPS = 4
"""Of a parameter and token: 2 forward, 4 backward, of which 2 are its own gradient, which a frozen one lacks.
Recomputation is not the model's work; attention is left out.
Kaplan et al. 2020, section 2.1: https://arxiv.org/abs/2001.08361
"""


class UpdateMeter:
    """Measures from its creation to `read`; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self._start = time.monotonic()

    def read(self, shard: Shard, trained: Sequence[tuple[nn.Module, float]]) -> Usage:
        """After the host has read a result of the update, so that the GPU has finished.

        trained: each model with its passes over the samples of the shard.
        """
        if not self._on_gpu:
            return Usage()
        seconds = time.monotonic() - self._start
        tokens = sum(len(each.trajectory.token_ids) for each in shard.ordered)
        return Usage(
            flops=sum(
                model_flops(each.numel(), epochs * tokens, trained=each.requires_grad)
                for model, epochs in trained
                for each in model.parameters()
            ),
            capacity=seconds * peak_flops(torch.cuda.get_device_name()),
            peak=torch.cuda.max_memory_allocated(),
        )


def model_flops(parameters: int, tokens: float, *, trained: bool = True) -> float:
    """Of a forward and backward pass; embeddings count as parameters."""
    return float((_FLOPS if trained else _FROZEN_FLOPS) * parameters * tokens)


def peak_flops(gpu: str) -> float:
    """gpu: CUDA's name of it. 0 if its speed is unknown."""
    words = f"{gpu} "
    return next((flops for name, flops in PEAK_FLOPS.items() if f"{name} " in words or f"{name}-" in words), 0.0)
