"""Rollout correction over all ranks: which tokens leave the loss, and the weights of the others.

decoupled   prepare: old log-probabilities ──> mask, weights of the whole step; then the passes
bypass      before each minibatch: log-probabilities of the trained policy ──> mask, weights of the minibatch
            without a mask and without normalization the pass computes the weights itself (step.py)
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.resolve import ResolvedRolloutCorrection
from rljob_trainer.losses.correction import LogRatios, importance_weights, kept_tokens
from rljob_trainer.losses.correction_metrics import correction_spreads
from rljob_trainer.losses.spread import Spreads
from rljob_trainer.rank.masking import Rejection
from rljob_trainer.rank.shard import Column, ShardSample, column, loss_tokens, split

LEAST_MEAN = 1e-8
"""Weights with a smaller mean are not divided by it."""


def rejection_of(settings: ResolvedRolloutCorrection) -> Rejection | None:
    """What decides the mask of a sample, from its own log-probabilities."""
    return (lambda sample: kept_tokens(_ratios([sample]), settings).numpy()) if settings.rollout_rs else None


def weigh(samples: Sequence[ShardSample], settings: ResolvedRolloutCorrection) -> None:
    """Set the weights of samples with log-probabilities of the trainer; collective over all ranks if normalized."""
    ratios = _ratios(samples)
    weights = importance_weights(ratios, settings).applied if samples else ratios.values
    if settings.rollout_is_batch_normalize:
        weights = weights / _mean(weights, ratios, by_sequence=settings.rollout_is == "sequence")
    for sample, part in zip(samples, split(weights.float().numpy(), samples), strict=True):
        sample.weights = part


def correction_of(samples: Sequence[ShardSample], settings: ResolvedRolloutCorrection) -> Spreads:
    """The metrics of samples with old log-probabilities; a row's own response has none of the engine."""
    some = [sample for sample in samples if sample.loss_tokens and sample.trajectory.sampled]
    if not some:
        return {}
    trainer, engine = column(some, "old_log_probs"), column(some, "engine_log_probs")
    return correction_spreads(trainer, engine, torch.from_numpy(loss_tokens(some)), settings)


def _ratios(samples: Sequence[ShardSample]) -> LogRatios:
    now: Column = "old_log_probs" if not samples or samples[0].current_log_probs is None else "current_log_probs"
    difference = column(samples, now).double() - column(samples, "engine_log_probs")
    return LogRatios(difference, torch.from_numpy(loss_tokens(samples)))


def _mean(weights: Tensor, ratios: LogRatios, *, by_sequence: bool) -> float:
    """Over all ranks: of each token's weight, or of one for each sequence; 1 if it is too small to divide by."""
    some = ratios.lengths > 0
    values = ratios.means(weights)[some] if by_sequence and len(some) else weights
    sums = torch.tensor([float(values.sum()), float(len(values))], dtype=torch.float64)
    dist.all_reduce(sums)
    mean = float(sums[0] / sums[1].clamp(min=1))
    return mean if mean > LEAST_MEAN else 1.0
