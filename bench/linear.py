"""Time a linear layer on this machine's CPUs, forward and backward: PyTorch's own (MKL) and `compute.linear`.

python -m bench.linear
"""

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_trainer.compute.linear import linear

Layer = Callable[[Tensor, Tensor], Tensor]

SHAPES: Final = (
    (3072, 64, 256),
    (3072, 256, 64),
    (3072, 64, 1024),
    (3072, 384, 1536),
    (3072, 1536, 384),
    (128, 384, 1536),
)
"""Rows of tokens, inputs, outputs: layers of a tiny model and of one of 10M parameters; the last is a decode step's."""

REPETITIONS: Final = 30


def main() -> None:
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; medians of {REPETITIONS}, in turns\n")
    print("| rows | in | out | MKL ms | oneDNN ms | ratio |")
    print("|---|---|---|---|---|---|")
    for rows, inputs, outputs in SHAPES:
        states = torch.randn(rows, inputs, requires_grad=True)
        weight = torch.randn(outputs, inputs, requires_grad=True)
        times: dict[Layer, list[float]] = {F.linear: [], linear: []}
        for _ in range(REPETITIONS + 1):
            for layer, taken in times.items():
                taken.append(_seconds(layer, states, weight))
        mkl, onednn = (statistics.median(taken[1:]) * 1e3 for taken in times.values())  # the first time builds kernels
        print(f"| {rows} | {inputs} | {outputs} | {mkl:.2f} | {onednn:.2f} | {onednn / mkl:.2f} |")


def _seconds(layer: Layer, states: Tensor, weight: Tensor) -> float:
    begin = time.perf_counter()
    out = layer(states, weight)
    torch.autograd.grad(out, (states, weight), torch.ones_like(out))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
