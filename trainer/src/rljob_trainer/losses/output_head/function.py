"""The output head as one autograd function, in chunks of rows."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rljob_trainer.compute.linear import linear, outer
from rljob_trainer.compute.triton_ready import triton_ready
from rljob_trainer.losses.output_head import rows
from rljob_trainer.losses.output_head.rows import RowScores
from rljob_trainer.losses.output_head.transform import LogitTransform

_ELEMENTS = {"cpu": 1 << 26, "cuda": 1 << 29}
"""Logits at once: 256 MiB in float32; 1 GiB in bfloat16, of 3,500 tokens and a vocabulary of 152k."""

_ROW_BLOCK = 128
"""Rows of a matrix product's tile on a GPU."""

_COLUMNS = 1 << 14
"""Columns of the logits that are added to the weight's gradient at a time: no second copy of that exists."""


def score_tokens(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float | Tensor,
    transform: LogitTransform, *, entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Log-probabilities of the targets and entropies of their distributions, [T] float32, in nats.

    hidden: [T, H]. weight: [V, H]. bias: [V]. targets: [T] int64. temperature: of all tokens, or [T].
    entropy_gradient: whether the entropies have one.

    Logits have the type of hidden, as transformers' have, and at most _ELEMENTS of them exist at a time. All sums over
    the vocabulary, and those of the weight's gradient over the chunks, are in float32 (float64 for float64).
    """
    heat = _each(temperature, hidden)
    log_probs, entropies, _ = _Head.apply(hidden, weight, bias, targets, None, heat, transform)
    return log_probs, entropies if entropy_gradient else entropies.detach()


def score_candidates(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, candidates: Tensor,
    temperature: float | Tensor, transform: LogitTransform, *, entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As score_tokens, and the log-probabilities [T, K] of the candidates. candidates: [T, K] int64."""
    heat = _each(temperature, hidden)
    log_probs, entropies, of_candidates = _Head.apply(hidden, weight, bias, targets, candidates, heat, transform)
    return log_probs, entropies if entropy_gradient else entropies.detach(), of_candidates


@torch.no_grad()
def likeliest_tokens(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, count: int, temperature: float | Tensor,
    transform: LogitTransform,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Ids and log-probabilities of the `count` likeliest tokens, [T, count], the likeliest first; all if V is less."""
    heat, count = _each(temperature, hidden), min(count, len(weight))
    parts = [
        rows.likeliest_in_rows(linear(hidden[part], weight, bias), count, heat[part], transform)
        for part in _chunks(hidden, weight)
    ]
    ids, log_probs = (torch.cat(each) for each in zip(*parts, strict=True))
    return ids, log_probs


def score_logits(logits: Tensor, targets: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """As score_tokens, of logits [T, V] that exist already; without gradient."""
    scores = rows.reduce_rows(logits.detach().clone(), targets, _each(temperature, logits), LogitTransform())
    return scores.log_probs, scores.entropies


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, candidates: Tensor | None,
        temperature: Tensor, transform: LogitTransform,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        kernels, parts, chosen = _kernels(hidden), [], []
        for part in _chunks(hidden, weight):
            products, heat = linear(hidden[part], weight, bias), temperature[part]
            if candidates is not None:
                chosen.append(rows.logits_at(products, candidates[part], heat, transform)[0])
            parts.append(kernels.reduce_rows(products, targets[part], heat, transform))
        scores = RowScores(*map(torch.cat, zip(*parts, strict=True)))
        ctx.save_for_backward(hidden, weight, bias, targets, candidates, temperature, *scores)
        ctx.transform = transform
        ctx.set_materialize_grads(False)
        of_candidates = None if candidates is None else torch.cat(chosen) - scores.log_sums[:, None]
        return scores.log_probs, scores.entropies, of_candidates

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_log_probs: Tensor | None, of_entropies: Tensor | None, of_candidates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, candidates, temperature, *saved = ctx.saved_tensors
        scores, kernels = RowScores(*saved), _kernels(hidden)
        of_log_probs = torch.zeros_like(scores.log_probs) if of_log_probs is None else of_log_probs
        of_sums = of_log_probs if of_candidates is None else of_log_probs + of_candidates.sum(-1)
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = _sums(weight) if ctx.needs_input_grad[1] else None
        of_bias = _sums(bias) if ctx.needs_input_grad[2] else None
        for part in _chunks(hidden, weight):
            products, heat, steep = linear(hidden[part], weight, bias), temperature[part], None
            if of_candidates is not None:
                steep = of_candidates[part] * rows.logits_at(products, candidates[part], heat, ctx.transform)[1]
            gradient = kernels.gradient_of_rows(
                products, targets[part], heat, ctx.transform, RowScores(*(each[part] for each in scores)),
                of_log_probs[part], None if of_entropies is None else of_entropies[part], of_sums[part],
            )  # fmt: skip
            if steep is not None:
                gradient.scatter_add_(-1, candidates[part], steep.to(gradient.dtype))
            if of_hidden is not None:
                of_hidden[part] = linear(gradient, weight.t())
            if of_weight is not None:
                _add_outer(of_weight, gradient, hidden[part])
            if of_bias is not None:
                of_bias += gradient.sum(0, dtype=of_bias.dtype)
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        of_bias = None if of_bias is None else of_bias.to(bias.dtype)
        return of_hidden, of_weight, of_bias, None, None, None, None


def _kernels(hidden: Tensor) -> Any:
    """The module with reduce_rows and gradient_of_rows for tensors like these."""
    if not hidden.is_cuda or hidden.dtype == torch.float64 or not triton_ready():
        return rows
    from rljob_trainer.losses.output_head import triton_rows

    return triton_rows


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Chunks of equal size. Without rows, one empty chunk: the weight has a gradient even then."""
    tokens = len(hidden)
    most = max(_ROW_BLOCK, _ELEMENTS["cuda" if hidden.is_cuda else "cpu"] // len(weight))
    size = -(-max(1, tokens) // max(1, -(-tokens // most)))
    size = -(-size // _ROW_BLOCK) * _ROW_BLOCK
    for start in range(0, max(1, tokens), size):
        yield slice(start, min(start + size, tokens))


def _each(temperature: float | Tensor, like: Tensor) -> Tensor:
    """[T], of each token."""
    if isinstance(temperature, Tensor):
        return temperature
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.full((len(like),), temperature, dtype=dtype, device=like.device)


def _sums(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.float64 if like.dtype == torch.float64 else torch.float32)


def _add_outer(sums: Tensor, gradient: Tensor, hidden: Tensor) -> None:
    """sums [V, H] += gradient.T @ hidden, the products summed in the type of `sums`."""
    if gradient.is_cuda and gradient.dtype != sums.dtype:
        for part, columns in zip(sums.split(_COLUMNS), gradient.split(_COLUMNS, dim=1), strict=True):
            part.add_(torch.mm(columns.t(), hidden, out_dtype=sums.dtype))
    else:
        sums += outer(gradient, hidden)
