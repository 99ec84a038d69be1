"""rows.py on a GPU: each kernel reads the products once, and the gradient takes their place.

Sums over the vocabulary are kept in float32 with the largest logit so far subtracted (Milakov and Gimelshein 2018,
Online normalizer calculation for softmax: https://arxiv.org/abs/1805.02867); the entropy's sum is rescaled with them:

    H = log sum exp x - sum p x
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rljob_trainer.losses.output_head.rows import RowScores
from rljob_trainer.losses.output_head.transform import LogitTransform

_BLOCK, _WARPS = 8192, 16


@triton.jit
def _transformed(products, scale, cap, HAS_CAP: tl.constexpr):
    scaled = products.to(tl.float32) * scale
    if HAS_CAP:
        scaled = cap * (1 - 2 / (tl.exp(2 * scaled / cap) + 1))  # cap tanh(scaled / cap)
    return scaled


@triton.jit
def _reduce(
    products, targets, temperature, log_probs, entropies, log_sums, V, scale,
    cap, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    products += row * V
    heat = tl.load(temperature + row)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    weighted = tl.zeros((), tl.float32)
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < V
        x = _transformed(tl.load(products + at, mask=inside, other=0.0), scale, cap, HAS_CAP) / heat
        x = tl.where(inside, x, float("-inf"))
        newest = tl.maximum(tl.maximum(largest, tl.max(x, 0)), -3.0e38)
        shares = tl.exp(x - newest)
        kept = tl.exp(largest - newest)
        total = total * kept + tl.sum(shares, 0)
        weighted = weighted * kept + tl.sum(tl.where(shares > 0, shares * x, 0.0), 0)
        largest = newest
    log_sum = largest + tl.log(total)
    target = tl.load(targets + row)
    chosen = _transformed(tl.load(products + target), scale, cap, HAS_CAP) / heat
    tl.store(log_probs + row, chosen - log_sum)
    tl.store(entropies + row, log_sum - weighted / total)
    tl.store(log_sums + row, log_sum)


@triton.jit
def _gradient(
    products, targets, temperature, entropies, log_sums, of_log_probs,
    of_entropies, of_sums, V, scale, cap, HAS_CAP: tl.constexpr, HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < V
    products += row * V + at
    heat = tl.load(temperature + row)
    logits = _transformed(tl.load(products, mask=inside, other=0.0), scale, cap, HAS_CAP)
    log_p = logits / heat - tl.load(log_sums + row)
    p = tl.exp(log_p)
    upstream = tl.load(of_log_probs + row)
    gradient = tl.where(at == tl.load(targets + row), upstream, 0.0) - tl.load(of_sums + row) * p
    if HAS_ENTROPY:
        information = tl.where(p > 0, p * (log_p + tl.load(entropies + row)), 0.0)
        gradient -= tl.load(of_entropies + row) * information
    gradient = gradient * scale / heat
    if HAS_CAP:
        gradient = gradient * (1 - (logits / cap) * (logits / cap))
    tl.store(products, gradient.to(products.dtype.element_ty), mask=inside)


def reduce_rows(products: Tensor, targets: Tensor, temperature: Tensor, transform: LogitTransform) -> RowScores:
    """As rows.reduce_rows, of contiguous products."""
    count, vocabulary = products.shape
    scores = RowScores(*torch.empty(3, count, dtype=torch.float32, device=products.device))
    if count:
        _reduce[(count,)](
            products, targets, temperature, *scores, vocabulary, transform.scale, transform.cap or 1.0,
            HAS_CAP=transform.cap is not None, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return scores


def gradient_of_rows(
    products: Tensor, targets: Tensor, temperature: Tensor, transform: LogitTransform, scores: RowScores,
    of_log_probs: Tensor, of_entropies: Tensor | None, of_sums: Tensor,
) -> Tensor:  # fmt: skip
    """As rows.gradient_of_rows, of contiguous products, in whose memory the gradient then is."""
    count, vocabulary = products.shape
    if count:
        upstream = of_log_probs.contiguous()
        _gradient[(count, triton.cdiv(vocabulary, _BLOCK))](
            products, targets, temperature, scores.entropies, scores.log_sums, upstream,
            upstream if of_entropies is None else of_entropies.contiguous(), of_sums.contiguous(), vocabulary,
            transform.scale, transform.cap or 1.0, HAS_CAP=transform.cap is not None,
            HAS_ENTROPY=of_entropies is not None, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return products
