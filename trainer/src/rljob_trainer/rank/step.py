"""What one rank computes: log-probabilities without gradient, supervised steps, policy-gradient steps.

Losses are sums of weighted tokens whose weights already know the whole minibatch, so neither the number of ranks nor
the split into micro-batches changes a gradient. FSDP averages gradients over ranks; the factor `world` undoes that.

Between two optimizer steps nothing reads a number back from the device: the host would wait there, and the GPU after.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rljob_api import ResolvedSpec
from rljob_trainer.errors import JobError
from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.policy import LOSSES, PolicyBatch
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.forward import Policy, score, score_only
from rljob_trainer.rank.packing import on_device
from rljob_trainer.rank.results import StepSums
from rljob_trainer.rank.shard import Column, Shard, ShardSample, column, packed, response_lengths, scatter


@dataclass(slots=True)
class RunningSums:
    """StepSums as they grow. values: loss, entropy, kl and clipped, [4] float64 on the device."""

    values: Tensor
    tokens: int = 0
    grad_norms: list[float] = field(default_factory=list)

    @classmethod
    def on(cls, device: torch.device) -> "RunningSums":
        return cls(torch.zeros(4, dtype=torch.float64, device=device))

    @torch.no_grad()
    def add(self, loss: Tensor, entropies: Tensor, kl: Tensor | None = None, clipped: Tensor | None = None) -> None:
        """One pass. loss: a scalar; the others: of each token."""
        for index, value in enumerate((loss, entropies, kl, clipped)):
            if value is not None:
                self.values[index] += value.sum(dtype=torch.float64)
        self.tokens += entropies.numel()

    def read(self) -> StepSums:
        loss, entropy, kl, clipped = self.values.tolist()
        return StepSums(loss, entropy, kl, clipped, self.tokens, self.grad_norms)


@dataclass(frozen=True, slots=True)
class Trainee:
    """A policy and its optimizer, as one rank sees them."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    device: torch.device
    world: int
    grad_clip: float

    def backward(self, loss: Tensor) -> None:
        """Add this rank's part of the minibatch's gradient. loss: this rank's part of the minibatch's loss."""
        (loss * self.world).backward()

    def finish_minibatch(self, learning_rate: float) -> float:
        """Clip, step, forget the gradients. Returns the norm before clipping.

        Raises JobError where it is not finite; nothing has been stepped then.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.grad_clip)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if not torch.isfinite(norm):
            raise JobError(f"the gradient's norm is {norm.item()}: lower it", field="spec.actor.learningRate")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item()


def score_samples(policy: Policy, shard: Shard, temperature: float, name: Column, device: torch.device) -> None:
    """Set `name` (old_log_probs or reference_log_probs) of every sample of the shard."""
    for samples in shard.micro_batches():
        log_probs = score_only(policy, packed(samples, device, share=policy.shares_prompts(device)), temperature)
        if samples:
            scatter(samples, name, log_probs)


def supervised_step(trainee: Trainee, shard: Shard, learning_rate: float) -> StepSums:
    """One optimizer step on given responses: the mean of -log p over all target tokens."""
    sums = RunningSums.on(trainee.device)
    for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
        for samples in shard.passes(minibatch):
            batch = packed(samples, trainee.device, share=trainee.policy.shares_prompts(trainee.device))
            log_probs, entropies = score(trainee.policy, batch, temperature=1.0)
            loss = -log_probs.sum() / totals.tokens
            trainee.backward(loss)
            sums.add(loss, entropies)
        sums.grad_norms.append(trainee.finish_minibatch(learning_rate))
    return sums.read()


def policy_step(
    trainee: Trainee, shard: Shard, spec: ResolvedSpec, learning_rate: float, kl_coefficient: float
) -> StepSums:
    """All optimizer steps of one training step: `actor.epochs` passes over its minibatches.

    Samples without old_log_probs get the ones that their pass computes: with one minibatch and one epoch, the policy
    of the start of the step is the policy that is trained.
    """
    sums = RunningSums.on(trainee.device)
    for _ in range(spec.actor.epochs):
        for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
            scored = [
                (samples, _policy_pass(trainee, samples, spec, totals, kl_coefficient, sums))
                for samples in shard.passes(minibatch)
            ]
            sums.grad_norms.append(trainee.finish_minibatch(learning_rate))
            for samples, log_probs in scored:
                if samples and samples[0].old_log_probs is None:
                    scatter(samples, "old_log_probs", log_probs)
    return sums.read()


def _policy_pass(
    trainee: Trainee,
    samples: Sequence[ShardSample],
    spec: ResolvedSpec,
    totals: BatchTotals,
    kl_coefficient: float,
    sums: RunningSums,
) -> Tensor:
    """Forward and backward of one micro-batch. Returns the log-probabilities, [sum of R], without gradient."""
    algorithm, device = spec.algorithm, trainee.device
    log_probs, entropies = score(
        trainee.policy,
        packed(samples, device, share=trainee.policy.shares_prompts(device)),
        spec.rollout.temperature,
        entropy_gradient=algorithm.entropy_coefficient > 0,
    )
    if not samples:
        trainee.backward(log_probs.sum())  # idle: a gradient of zero, for every rank takes part in the collectives
        return log_probs.detach()
    per_token, kl, clipped = _token_losses(log_probs, entropies, samples, spec, kl_coefficient)
    lengths = torch.from_numpy(response_lengths(samples))
    weights = token_weights(algorithm.aggregation, lengths, totals, spec.data.max_response_tokens)
    loss = (on_device(weights, device) * per_token).sum()
    trainee.backward(loss)
    sums.add(loss, entropies, kl, clipped)
    return log_probs.detach()


def _token_losses(
    log_probs: Tensor, entropies: Tensor, samples: Sequence[ShardSample], spec: ResolvedSpec, kl_coefficient: float
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Of each token: the loss, the KL estimate where it acts in the loss, and whether the loss was clipped."""
    algorithm, device = spec.algorithm, log_probs.device
    old = log_probs.detach()
    if samples[0].old_log_probs is not None:
        old = on_device(column(samples, "old_log_probs"), device)
    advantages = on_device(column(samples, "advantages"), device)
    terms = LOSSES[algorithm.loss](PolicyBatch(log_probs, old, advantages), algorithm)
    per_token = terms.per_token - algorithm.entropy_coefficient * entropies
    if algorithm.kl.placement != "loss" or not spec.needs_reference:
        return per_token, None, terms.clipped
    reference = on_device(column(samples, "reference_log_probs"), device)
    kl = kl_estimate(algorithm.kl.estimator, log_probs, reference)
    return per_token + kl_coefficient * kl, kl, terms.clipped
