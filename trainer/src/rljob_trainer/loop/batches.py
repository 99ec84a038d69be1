"""From a step's groups to each rank's plan, and from advantages back to each rank's samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_api import ResolvedSpec
from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch
from rljob_trainer.loop.metrics import all_rewards
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.old_types import Floats
from rljob_trainer.rank.plan import RankPlan, plan_step
from rljob_trainer.rank.sequence import TokenSequence
from rljob_trainer.rollouts.rollouts import ScoredGroup


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The samples of one step, numbered 0..N-1 through the groups.

    plans: one for each rank. totals: of each minibatch. owners: [N], the group of each sample.
    prompt_tokens, response_tokens: [N].
    """

    plans: list[RankPlan]
    totals: list[BatchTotals]
    owners: np.ndarray
    prompt_tokens: np.ndarray
    response_tokens: np.ndarray

    @property
    def tokens(self) -> int:
        return int(self.prompt_tokens.sum() + self.response_tokens.sum())


def batch_of_groups(groups: Sequence[ScoredGroup], spec: ResolvedSpec) -> StepBatch:
    """Minibatches are of `actor.miniBatchSize` prompts, in the order of the groups; the last may be smaller."""
    summaries = [group.summary for group in groups]
    response = np.array([tokens for summary in summaries for tokens in summary.response_tokens])
    sizes = [len(summary.response_tokens) for summary in summaries]
    owners = np.repeat(np.arange(len(groups)), sizes)
    prompt = np.repeat([summary.prompt_tokens for summary in summaries], sizes)
    size = spec.actor.mini_batch_size
    minibatches = [np.flatnonzero(owners // size == i) for i in range(-(-len(groups) // size))]
    return _batch(minibatches, owners, prompt, response, spec)


def batch_of_sequences(sequences: Sequence[TokenSequence], spec: ResolvedSpec) -> StepBatch:
    """One minibatch of supervised examples."""
    prompt = np.array([sequence.prompt_tokens for sequence in sequences])
    response = np.array([sequence.response_tokens for sequence in sequences])
    every = np.arange(len(sequences))
    return _batch([every], every, prompt, response, spec)


def _batch(
    minibatches: list[np.ndarray], owners: np.ndarray, prompt: np.ndarray, response: np.ndarray, spec: ResolvedSpec
) -> StepBatch:
    samples = [minibatch.tolist() for minibatch in minibatches]
    plans = plan_step((prompt + response).tolist(), samples, spec.ranks, spec.actor.tokens_per_micro_batch)
    totals = [BatchTotals(tokens=int(response[part].sum()), responses=len(part)) for part in minibatches]
    return StepBatch(plans, totals, owners, prompt, response)


def advantages(
    groups: Sequence[ScoredGroup], batch: StepBatch, penalties: Floats | None, spec: ResolvedSpec
) -> list[list[Floats]]:
    """For each rank, the advantages [R] of each of its samples, in the order of its plan.

    penalties: [all response tokens], coefficient x KL of each token where the KL acts in the reward.
    """
    flat = ADVANTAGES[spec.algorithm.advantage](
        AdvantageBatch(all_rewards(groups), batch.owners, batch.response_tokens, penalties, spec.algorithm.gamma)
    )
    per_sample = np.split(flat, np.cumsum(batch.response_tokens)[:-1])
    return [[per_sample[sample] for sample in plan.samples] for plan in batch.plans]


def gather(batch: StepBatch, parts: Sequence[Sequence[Floats]]) -> Floats:
    """[all response tokens] from what each rank computed for its samples, in the order of its plan."""
    by_sample = {
        sample: values
        for plan, part in zip(batch.plans, parts, strict=True)
        for sample, values in zip(plan.samples, part, strict=True)
    }
    return np.concatenate([by_sample[sample] for sample in range(len(batch.owners))])
