"""The tokens that clip_cov and kl_cov treat apart, chosen over all ranks before the first pass (losses/covariance.py).

sums of the minibatch ──> covariance of each token ──> scores ──> each rank's best ──> the best of all ──> threshold
"""

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.covariance import CovarianceSums, chosen_tokens, key_of, scores
from rljob_trainer.rank.shard import Shard, ShardSample

Doubles = NDArray[np.float64]


def choose_tokens(shard: Shard, settings: ResolvedAlgorithm) -> None:
    """Set `chosen` of every sample, which has old_log_probs and advantages; collective over all ranks."""
    for minibatch in shard.plan.minibatches:
        _choose([sample for samples in shard.passes(minibatch) for sample in samples], settings)


def _choose(samples: list[ShardSample], settings: ResolvedAlgorithm) -> None:
    sums = _over_all_ranks([_sums(sample) for sample in samples])
    ranked = [_scores(sample, sums, settings) for sample in samples]
    threshold = _threshold(np.concatenate(ranked or [np.zeros(0)]), chosen_tokens(int(sums.count), settings))
    for sample, each in zip(samples, ranked, strict=True):
        sample.chosen = (each >= threshold) & (each > -np.inf)


def _counting(sample: ShardSample) -> tuple[Doubles, Doubles]:
    """Log-probabilities and advantages of the tokens that count."""
    assert sample.old_log_probs is not None
    assert sample.advantages is not None
    kept = slice(None) if sample.mask is None else sample.mask
    return sample.old_log_probs[kept].astype(np.float64), sample.advantages[kept].astype(np.float64)


def _sums(sample: ShardSample) -> CovarianceSums:
    return CovarianceSums.of(*_counting(sample))


def _over_all_ranks(parts: list[CovarianceSums]) -> CovarianceSums:
    rows = [[part.count, part.advantages, part.log_probs, part.products] for part in parts]
    total = torch.tensor([[0.0] * 4, *rows], dtype=torch.float64).sum(0)
    dist.all_reduce(total)
    return CovarianceSums(*total.tolist())


def _scores(sample: ShardSample, sums: CovarianceSums, settings: ResolvedAlgorithm) -> Doubles:
    """[R]; -inf for a token that does not count."""
    found = np.full(sample.loss_tokens, -np.inf)
    key = key_of(sample.trajectory.token_ids, sample.trajectory.log_probs)
    kept = slice(None) if sample.mask is None else sample.mask
    found[kept] = scores(sums.of_each(*_counting(sample)), key, settings)
    return found


def _threshold(own: Doubles, count: int) -> float:
    """The score of the `count`-th best token of all ranks."""
    best = np.full(count, -np.inf)
    ordered = np.sort(own)[::-1][:count]
    best[: len(ordered)] = ordered
    gathered = [torch.empty(count, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.from_numpy(best))
    return float(torch.cat(gathered).sort(descending=True).values[count - 1])
