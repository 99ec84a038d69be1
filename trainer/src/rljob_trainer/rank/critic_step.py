"""What one rank computes with the critic: values without gradient, and the optimizer steps of a training step.

Minibatches are of critic.miniBatchSize prompts: the actor's, cut or joined. Losses are aggregated as the policy's are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rljob_api import ResolvedSpec
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.losses.value import value_loss
from rljob_trainer.rank.forward import Critic, value_only
from rljob_trainer.rank.packing import on_device
from rljob_trainer.rank.results import CriticOrder
from rljob_trainer.rank.shard import Shard, ShardSample, column, column_if_known, scatter
from rljob_trainer.rank.step import Trainee, loss_weights, packed
from rljob_trainer.rank.sums import PassTerms, RunningSums


def value_samples(critic: Critic, shard: Shard, device: torch.device) -> None:
    """Set `values` of every sample of the shard."""
    passes = list(shard.micro_batches())
    found = [value_only(critic, packed(critic, samples, device)) for samples in passes]
    for samples, values in zip(passes, found, strict=True):  # then only: it waits for the device
        scatter(samples, "values", values)


def queue_critic_step(trainee: Trainee[Critic], shard: Shard, spec: ResolvedSpec, order: CriticOrder) -> RunningSums:
    """All optimizer steps of one training step: `critic.epochs` passes over the samples, which have `values`.

    shard: in the critic's minibatches.
    """
    assert spec.critic is not None
    for sample, returns in zip(shard.ordered, order.returns, strict=True):
        sample.returns = returns
    sums = RunningSums.on(trainee.device, order.norm_bound)
    for _ in range(spec.critic.epochs):
        for minibatch, totals in zip(shard.plan.minibatches, shard.totals, strict=True):
            for samples in shard.passes(minibatch):
                _critic_pass(trainee, samples, spec, totals, sums)
            sums.finished(trainee.finish_minibatch(order.learning_rate, order.norm_bound))
    return sums


def _critic_pass(
    trainee: Trainee[Critic], samples: Sequence[ShardSample], spec: ResolvedSpec, totals: BatchTotals, sums: RunningSums
) -> None:
    """Forward and backward of one micro-batch."""
    assert spec.critic is not None
    device = trainee.device
    values: Tensor = trainee.module(packed(trainee.module, samples, device))
    if not samples:
        trainee.backward(values.sum())  # idle: a gradient of zero, for every rank takes part in the collectives
        return
    old, returns = (on_device(column(samples, name), device) for name in ("values", "returns"))
    terms = value_loss(values, old, returns, spec.critic.clip_range)
    loss = (loss_weights(samples, totals, spec, device) * terms.per_token).sum()
    trainee.backward(loss)
    remaining = sum(sample.remaining for sample in samples)
    mask = column_if_known(samples, "mask", device)
    sums.add(remaining, loss, PassTerms(clipped=terms.clipped), mask)
