"""What one rank computes: log-probabilities without gradient, supervised steps, policy-gradient steps.

Losses are sums of weighted tokens whose weights already know the whole minibatch, so neither the number of ranks nor
the split into micro-batches changes a gradient. FSDP averages gradients over ranks; ParallelDims.loss undoes that.

Between two optimizer steps nothing reads a number back from the device: the host would wait there, and the GPU after.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.correction import LogRatios, importance_weights
from rljob_trainer.losses.covariance import BY_COVARIANCE
from rljob_trainer.losses.distillation import top_k_reverse_kl
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.policy import PolicyBatch
from rljob_trainer.losses.policy.terms import MAX_LOG_RATIO, Pairs, bounded_exp
from rljob_trainer.losses.positive import positive_nll
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.own.loss import loss_of
from rljob_trainer.rank.choosing import choose_tokens
from rljob_trainer.rank.correcting import rejection_of, weigh
from rljob_trainer.rank.early_stop import exceeded
from rljob_trainer.rank.forward import PackedModel, Policy, likeliest_only, score, score_only, score_with_candidates
from rljob_trainer.rank.masking import reject
from rljob_trainer.rank.models.role import M_co, ModelRole
from rljob_trainer.rank.optimizer import ShardedAdamW
from rljob_trainer.rank.packing import PackedBatch, on_device
from rljob_trainer.rank.parallel import ParallelDims
from rljob_trainer.rank.results import LARGEST_NORM, StepSums
from rljob_trainer.rank.shard import Column, Shard, ShardSample, column, column_if_known, loss_tokens, scatter, split
from rljob_trainer.rank.sums import PassTerms, RunningSums

LEAST_WEIGHT = 1e-10
"""Added to a weight before its logarithm, which IcePop may have made 0. verl has the same."""


@dataclass(frozen=True, slots=True)
class Trainee(Generic[M_co]):
    """A model that has an optimizer, as one rank sees it."""

    role: ModelRole[M_co]
    optimizer: ShardedAdamW
    device: torch.device
    parallel: ParallelDims
    grad_clip: float

    @property
    def module(self) -> M_co:
        return self.role.module

    def backward(self, loss: Tensor) -> None:
        """Add this rank's part of the minibatch's gradient. loss: this rank's part of the minibatch's loss."""
        (loss * self.parallel.loss).backward()

    def finish_minibatch(self, learning_rate: float, norm_bound: float = LARGEST_NORM) -> Tensor:
        """Clip, step, forget the gradients. Returns the norm before clipping, a scalar on the device.

        norm_bound: the device leaves out the step of a gradient with a larger norm, or of one that is not finite.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.grad_clip)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.optimizer.skip = (~torch.isfinite(norm) | (norm > norm_bound)).float()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


def score_samples(policy: Policy, shard: Shard, name: Column, device: torch.device) -> None:
    """Set `name` (old_log_probs or reference_log_probs) of every sample of the shard."""
    _score_passes(policy, list(shard.micro_batches()), name, device)


def _score_passes(policy: Policy, passes: Sequence[Sequence[ShardSample]], name: Column, device: torch.device) -> None:
    scored = [score_only(policy, packed(policy, samples, device)) for samples in passes]
    for samples, log_probs in zip(passes, scored, strict=True):  # then only: it waits for the device
        scatter(samples, name, log_probs)


def find_likeliest(teacher: Policy, shard: Shard, count: int, device: torch.device) -> None:
    """Set teacher_ids and teacher_log_probs of every sample to the `count` tokens that the teacher finds likeliest."""
    passes = list(shard.micro_batches())
    found = [likeliest_only(teacher, packed(teacher, samples, device), count) for samples in passes]
    for samples, (ids, log_probs) in zip(passes, found, strict=True):  # then only: it waits for the device
        scatter(samples, "teacher_log_probs", log_probs)
        for sample, part in zip(samples, split(ids.int().cpu().numpy(), samples), strict=True):
            sample.teacher_ids = part


def supervised_step(
    trainee: Trainee[Policy], shard: Shard, learning_rate: float, norm_bound: float = LARGEST_NORM
) -> StepSums:
    """One optimizer step on given answers: the mean of -log p over all tokens in the loss."""
    sums = RunningSums.on(trainee.device, norm_bound)
    for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
        for samples in shard.passes(minibatch):
            batch = packed(trainee.module, samples, trainee.device)
            log_probs, entropies = score(trainee.module, batch)
            loss = -log_probs.sum() / totals.tokens
            trainee.backward(loss)
            sums.add(entropies.numel(), loss, PassTerms(entropies))
        sums.finished(trainee.finish_minibatch(learning_rate, norm_bound))
    return sums.read()


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A training step that the device has been given whole; the host has waited for none of it.

    scored: samples that had no old_log_probs, with the log-probabilities that their pass computed.
    """

    sums: RunningSums
    scored: list[tuple[Sequence[ShardSample], Tensor]]

    def read(self) -> StepSums:
        """Wait for it, and set those old_log_probs."""
        sums = self.sums.read()
        for samples, log_probs in self.scored:
            scatter(samples, "old_log_probs", log_probs)
        return sums


def queue_policy_step(
    trainee: Trainee[Policy], shard: Shard, spec: ResolvedSpec, learning_rate: float, kl_coefficient: float,
    norm_bound: float = LARGEST_NORM,
) -> QueuedStep:  # fmt: skip
    """All optimizer steps of one training step: `actor.epochs` passes over its minibatches, or fewer (early_stop.py).

    Samples without old_log_probs get the ones that their first pass computes: in the first minibatch, the policy of the
    start of the step is the policy that is trained.
    """
    sums = RunningSums.on(trainee.device, norm_bound)
    if spec.algorithm.loss in BY_COVARIANCE:
        choose_tokens(shard, spec.algorithm)
    scored: list[tuple[Sequence[ShardSample], Tensor]] = []
    for epoch in range(spec.actor.epochs):
        for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
            before, passes = sums.counted(), list(shard.passes(minibatch))
            remaining = _corrected(trainee, passes, spec.algorithm) or totals
            for samples in passes:
                log_probs = _policy_pass(trainee, samples, spec, remaining, kl_coefficient, sums)
                if epoch == 0 and samples and samples[0].old_log_probs is None:
                    scored.append((samples, log_probs))
            if exceeded(spec.algorithm.early_stop, sums.counted() - before):
                sums.minibatches += 1
                trainee.optimizer.zero_grad()
                return QueuedStep(sums, scored)
            sums.finished(trainee.finish_minibatch(learning_rate, norm_bound))
    return QueuedStep(sums, scored)


def _corrected(
    trainee: Trainee[Policy], passes: Sequence[Sequence[ShardSample]], algorithm: ResolvedAlgorithm
) -> BatchTotals | None:
    """Decide mask and weights of a minibatch by the policy that learns from it, if old log-probabilities are bypassed.

    Returns what remains of it over all ranks; None if no token can leave it.
    """
    correction = algorithm.rollout_correction
    if not (correction.bypass_mode and (correction.rollout_rs or correction.rollout_is_batch_normalize)):
        return None
    _score_passes(trainee.module, passes, "current_log_probs", trainee.device)
    samples = [sample for each in passes for sample in each]
    if correction.rollout_is != "none":
        weigh(samples, correction)
    rejection = rejection_of(correction)
    return reject([samples], rejection)[0] if rejection else None


def _policy_pass(
    trainee: Trainee[Policy],
    samples: Sequence[ShardSample],
    spec: ResolvedSpec,
    totals: BatchTotals,
    kl_coefficient: float,
    sums: RunningSums,
) -> Tensor:
    """Forward and backward of one micro-batch. Returns the log-probabilities, [sum of R], without gradient."""
    algorithm, device = spec.algorithm, trainee.device
    pack = replace(packed(trainee.module, samples, device), candidates=_candidates(samples, device))
    log_probs, entropies, of_candidates = score_with_candidates(
        trainee.module, pack, entropy_gradient=algorithm.entropy_coefficient > 0
    )
    if not samples:
        trainee.backward(log_probs.sum())  # idle: a gradient of zero, for every rank takes part in the collectives
        return log_probs.detach()
    batch = _policy_batch(log_probs, samples, spec)
    per_token, terms = _token_losses(batch, entropies, spec, kl_coefficient)
    if of_candidates is not None and algorithm.teacher is not None:
        divergence = top_k_reverse_kl(of_candidates, on_device(column(samples, "teacher_log_probs"), device))
        per_token = per_token + algorithm.teacher.coefficient * weighted(divergence, batch, algorithm)
        terms = replace(terms, reverse_kl=divergence)
    loss = (loss_weights(samples, totals, spec, device) * per_token).sum()
    if algorithm.positive_nll_coefficient > 0:
        loss = loss + algorithm.positive_nll_coefficient * positive_nll(log_probs, _positive(batch, samples), totals)
    trainee.backward(loss)
    remaining = [sample.remaining for sample in samples]
    sums.add(sum(remaining), loss, terms, batch.mask, trajectories=sum(count > 0 for count in remaining))
    return log_probs.detach()


def _candidates(samples: Sequence[ShardSample], device: torch.device) -> Tensor | None:
    """The teacher's tokens, [sum of R, K]; None if it has none."""
    known = column_if_known(samples, "teacher_ids", device) if samples else None
    return None if known is None else known.long()


def _positive(batch: PolicyBatch, samples: Sequence[ShardSample]) -> Tensor:
    """[sum of R], bool: tokens that count, of episodes with a reward above 0."""
    positive = np.repeat([sample.positive for sample in samples], loss_tokens(samples))
    on = on_device(torch.from_numpy(positive), batch.log_probs.device)
    return on if batch.mask is None else on & batch.mask


def packed(policy: PackedModel, samples: Sequence[ShardSample], device: torch.device) -> PackedBatch:
    return policy.pack([sample.trajectory for sample in samples], device)


def _policy_batch(log_probs: Tensor, samples: Sequence[ShardSample], spec: ResolvedSpec) -> PolicyBatch:
    """In a bypass, the engine's log-probabilities take the place of the old ones."""
    device, bypass = log_probs.device, spec.algorithm.rollout_correction.bypass_mode
    return PolicyBatch(
        log_probs,
        on_device(column(samples, "advantages"), device),
        old_log_probs=column_if_known(samples, "engine_log_probs" if bypass else "old_log_probs", device),
        engine_log_probs=column_if_known(samples, "engine_log_probs", device),
        reference_log_probs=column_if_known(samples, "reference_log_probs", device),
        mask=column_if_known(samples, "mask", device),
        lengths=on_device(torch.from_numpy(loss_tokens(samples)), device),
        weights=column_if_known(samples, "weights", device),
        chosen=column_if_known(samples, "chosen", device),
        pairs=_pairs(samples, device) if spec.pairs else None,
    )


def _pairs(samples: Sequence[ShardSample], device: torch.device) -> Pairs:
    """samples: pair after pair."""
    _, starts, counts = np.unique([sample.group for sample in samples], return_index=True, return_counts=True)
    order = np.argsort(starts)
    lengths = np.add.reduceat(loss_tokens(samples), starts[order])
    return Pairs(*(on_device(torch.from_numpy(each), device) for each in (lengths, counts[order])))


def loss_weights(
    samples: Sequence[ShardSample], totals: BatchTotals, spec: ResolvedSpec, device: torch.device
) -> Tensor:
    """What the loss of each token counts, [sum of R]."""
    mask = None if samples[0].mask is None else column(samples, "mask")
    lengths = torch.from_numpy(loss_tokens(samples))
    weights = token_weights(spec.algorithm.aggregation, lengths, totals, spec.data.max_response_tokens, mask)
    return on_device(weights, device)


def _token_losses(
    batch: PolicyBatch, entropies: Tensor, spec: ResolvedSpec, kl_coefficient: float
) -> tuple[Tensor, PassTerms]:
    """The loss of each token, and what the step's metrics are made of."""
    algorithm, reference = spec.algorithm, batch.reference_log_probs
    terms = loss_of(algorithm)(batch, algorithm)
    per_token = weighted(terms.per_token, batch, algorithm) - algorithm.entropy_coefficient * entropies
    kl = None
    if algorithm.kl.placement == "loss" and reference is not None:
        kl = kl_estimate(algorithm.kl.estimator, batch.log_probs, reference, algorithm.kl.clip)
        per_token = per_token + kl_coefficient * kl
    return per_token, PassTerms(
        entropies, kl, terms.clipped, _drift(batch), batch.advantages, batch.log_probs, terms.preference
    )


def weighted(per_token: Tensor, batch: PolicyBatch, algorithm: ResolvedAlgorithm) -> Tensor:
    """The loss of each token times its importance weight; geo_mean's and sppo's is of the sequence."""
    correction, weights = algorithm.rollout_correction, batch.weights
    if correction.rollout_is == "none":
        return per_token
    if weights is None:  # bypass: by the policy of this very pass
        assert batch.engine_log_probs is not None
        assert batch.lengths is not None
        ratios = LogRatios(batch.log_probs.detach() - batch.engine_log_probs, batch.lengths)
        weights = importance_weights(ratios, correction).applied
    if algorithm.loss in {"geo_mean", "sppo"}:
        weights = bounded_exp(batch.sequence_means((weights + LEAST_WEIGHT).log()))
    return per_token * weights


@torch.no_grad()
def _drift(batch: PolicyBatch) -> Tensor:
    """k3 of each token with the old policy, which sampled it: exp(d) - 1 - d, with d = log pi - log pi_old."""
    log_ratio = batch.log_ratio().clamp(max=MAX_LOG_RATIO)
    return torch.expm1(log_ratio) - log_ratio
