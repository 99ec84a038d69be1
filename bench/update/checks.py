"""Does the fast path compute what the plain one does, on this device? A few seconds before anything is timed."""

import time
import traceback
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bench.update.kernels import check_all
from bench.update.trained import RATE, SHAPES, Trained, Variant, head, spec_of
from rljob_trainer.losses.output_head import LogitTransform, score_tokens

TINY = SHAPES["tiny"]
PLAIN = Variant(compile=False, fused_head=False)
VARIANTS = (
    Variant(compile=False),
    Variant(),
    Variant(compile=False, recompute="offload"),
    Variant(compile=False, offload="optimizer"),
    Variant(compile=False, offload="parameters"),
    Variant(compile=False, offload="all"),
)
"""Each is compared with PLAIN."""


def run_checks(device: torch.device) -> dict[str, str]:
    """What each check found: "ok", or the last line of its error. Tracebacks are printed."""
    checks: dict[str, Callable[[torch.device], None]] = {
        "kernels": _kernels, "head in bfloat16": _head, "update without host synchronisation": _no_waiting,
        **{str(variant): partial(_same, variant) for variant in VARIANTS},
    }  # fmt: skip
    found = {}
    for name, check in checks.items():
        begin = time.perf_counter()
        try:
            check(device)
            found[name] = "ok"
        except Exception as error:  # noqa: BLE001  the others are still of interest
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        print(f"CHECK {name}: {found[name]} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return found


def _kernels(device: torch.device) -> None:
    if device.type == "cuda":
        check_all("cuda", (7, 8192, 151_936))


def _head(device: torch.device) -> None:
    """Values, and gradients in bfloat16, against float64 of the same bfloat16 numbers; several chunks on a GPU."""
    torch.manual_seed(0)
    tokens, vocabulary = (4000, 151_936) if device.type == "cuda" else (300, 500)
    hidden = torch.randn(tokens, 64, device=device).bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, 64, device=device).mul_(0.2).bfloat16().requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), device=device)
    upstream = torch.randn(2, tokens, device=device)
    values = score_tokens(hidden, weight, None, targets, 0.8, LogitTransform(), entropy_gradient=True)
    gradients = torch.autograd.grad(values, (hidden, weight), tuple(upstream))
    sample = slice(0, 200)
    exact_hidden = hidden[sample].detach().double().requires_grad_()
    log_p = ((exact_hidden @ weight.detach().double().t()) / 0.8).log_softmax(-1)
    expected = log_p.gather(-1, targets[sample, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (of_hidden,) = torch.autograd.grad(expected, exact_hidden, tuple(upstream[:, sample].double()))
    for one, other in zip(values, expected, strict=True):
        torch.testing.assert_close(one[sample].double(), other, rtol=0, atol=0.05)
    assert _gap(gradients[0][sample].double(), of_hidden) < 0.03


def _no_waiting(device: torch.device) -> None:
    made = Trained(TINY, spec_of(TINY, Variant(compile=False), "bfloat16", entropyCoefficient=0.01), device)
    made.queue().read()  # first: caches of libraries
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        queued = made.queue()
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert queued.read().tokens > 0


def _same(variant: Variant, device: torch.device) -> None:
    """Two updates in float32 of a tiny model give the weights and the numbers of the plain path."""
    expected, sums = _updated(device, PLAIN)
    found, again = _updated(device, variant)
    assert abs(again - sums) < 1e-4 * abs(sums), (again, sums)
    for name, weight in expected.items():
        gap = float((found[name] - weight).abs().mean())
        assert gap < RATE / 20, (name, gap)  # AdamW moves each by RATE, in either direction where a gradient is noise


def _updated(device: torch.device, variant: Variant) -> tuple[dict[str, Tensor], float]:
    with head(fused=variant.fused_head):
        made = Trained(TINY, spec_of(TINY, variant, "float32", entropyCoefficient=0.01), device)
        sums = [made.queue().read() for _ in range(2)]
    named = made.policy.named_parameters()
    weights = {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu().clone() for name, p in named}
    return weights, sums[-1].grad_norms[0]


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())
