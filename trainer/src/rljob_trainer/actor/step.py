"""What one rank computes: log-probabilities without gradient, supervised steps, policy-gradient steps.

Losses are sums of weighted tokens whose weights already know the whole minibatch, so neither the number of ranks nor
the split into micro-batches changes a gradient. FSDP averages gradients over ranks; the factor `world` undoes that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rljob_api import ResolvedSpec
from rljob_trainer.actor.policy import Policy, score, score_only
from rljob_trainer.actor.shard import Shard, ShardSample, column, packed, scatter
from rljob_trainer.errors import JobError
from rljob_trainer.losses.aggregation import BatchTotals, token_weights
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.policy import LOSSES, PolicyBatch


@dataclass(slots=True)
class StepSums:
    """One rank's contribution to the step's metrics; ranks are added up by the controller.

    loss: sum over minibatches. entropy, kl, clipped: sums over tokens. tokens: response tokens, once for each epoch.
    grad_norms: of each optimizer step, over all ranks and before clipping (equal on every rank).
    """

    loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    tokens: int = 0
    grad_norms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trainee:
    """A policy and its optimizer, as one rank sees them."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    device: torch.device
    world: int
    grad_clip: float

    def finish_minibatch(self, sums: StepSums, learning_rate: float) -> None:
        """Clip, step, forget the gradients. Raises JobError where they are not finite."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.grad_clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not torch.isfinite(norm):
            raise JobError(
                f"the gradient's norm is {norm.item()}: lower the learning rate", field="spec.actor.learningRate"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        sums.grad_norms.append(norm.item())


def score_samples(policy: Policy, shard: Shard, temperature: float, name: str, device: torch.device) -> None:
    """Set `name` (old_log_probs or reference_log_probs) of every sample of the shard."""
    for samples in shard.micro_batches():
        log_probs = score_only(policy, packed(samples, device), temperature)
        if samples:
            scatter(samples, name, log_probs)


def supervised_step(trainee: Trainee, shard: Shard, learning_rate: float) -> StepSums:
    """One optimizer step on given responses: the mean of -log p over all target tokens."""
    sums = StepSums()
    for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
        for samples in shard.passes(minibatch):
            log_probs, entropies = score(trainee.policy, packed(samples, trainee.device), temperature=1.0)
            loss = -log_probs.sum() / totals.tokens
            (loss * trainee.world).backward()
            _count(sums, loss, entropies)
        trainee.finish_minibatch(sums, learning_rate)
    return sums


def policy_step(
    trainee: Trainee, shard: Shard, spec: ResolvedSpec, learning_rate: float, kl_coefficient: float
) -> StepSums:
    """All optimizer steps of one training step: `actor.epochs` passes over its minibatches."""
    sums = StepSums()
    for _ in range(spec.actor.epochs):
        for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
            for samples in shard.passes(minibatch):
                _policy_pass(trainee, samples, spec, totals, kl_coefficient, sums)
            trainee.finish_minibatch(sums, learning_rate)
    return sums


def _policy_pass(
    trainee: Trainee,
    samples: Sequence[ShardSample],
    spec: ResolvedSpec,
    totals: BatchTotals,
    kl_coefficient: float,
    sums: StepSums,
) -> None:
    algorithm, device = spec.algorithm, trainee.device
    bonus = algorithm.entropy_coefficient
    log_probs, entropies = score(
        trainee.policy, packed(samples, device), spec.rollout.temperature, entropy_gradient=bonus > 0
    )
    if not samples:
        log_probs.sum().backward()  # an idle pass: its gradient is zero, but every rank takes part in the collectives
        return
    lengths = torch.tensor([sample.sequence.response_tokens for sample in samples], device=device)
    old = log_probs.detach()
    if samples[0].old_log_probs is None:
        scatter(samples, "old_log_probs", old)
    else:
        old = column(samples, "old_log_probs", device)
    weights = token_weights(algorithm.aggregation, lengths, totals, spec.data.max_response_tokens)
    batch = PolicyBatch(log_probs, old, column(samples, "advantages", device), lengths)
    terms = LOSSES[algorithm.loss](batch, algorithm)
    per_token = terms.per_token - bonus * entropies
    if algorithm.kl.placement == "loss" and spec.needs_reference:
        divergence = kl_estimate(algorithm.kl.estimator, log_probs, column(samples, "reference_log_probs", device))
        per_token = per_token + kl_coefficient * divergence
        sums.kl += divergence.detach().sum().item()
    loss = (weights * per_token).sum()
    (loss * trainee.world).backward()
    sums.clipped += terms.clipped.sum().item()
    _count(sums, loss, entropies)


def _count(sums: StepSums, loss: Tensor, entropies: Tensor) -> None:
    sums.loss += loss.item()
    sums.entropy += entropies.detach().sum().item()
    sums.tokens += entropies.numel()
