"""What a step says about itself: from groups, sums and reports to the flat metrics of one line."""

from collections.abc import Sequence

import numpy as np

from rljob_trainer.losses.diagnostics import ImportanceSums
from rljob_trainer.progress import names
from rljob_trainer.rank.results import StepSums, Updated
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.rollouts.weight_sync import Synced

Metrics = dict[str, float]


def reward_metrics(groups: Sequence[GroupRef]) -> Metrics:
    """Mean, spread and components of the rewards, over responses."""
    rewards = all_rewards(groups)
    metrics = {
        names.REWARD_MEAN: float(rewards.mean()),
        names.REWARD_STD: float(rewards.std()),
        names.REWARD_MIN: float(rewards.min()),
        names.REWARD_MAX: float(rewards.max()),
    }
    components = [group.summary.components for group in groups]
    for name in {name for each in components for name in each}:
        values = np.concatenate([each[name] for each in components if name in each])
        metrics[f"reward/{name}"] = float(values.mean())
    return metrics


def all_rewards(groups: Sequence[GroupRef]) -> np.ndarray:
    """[responses], in the order of the groups."""
    return np.concatenate([group.summary.rewards for group in groups])


def length_metrics(groups: Sequence[GroupRef]) -> Metrics:
    lengths = np.array([tokens for group in groups for tokens in group.summary.loss_tokens])
    return {
        names.RESPONSE_LENGTH_MEAN: float(lengths.mean()),
        names.RESPONSE_LENGTH_MAX: float(lengths.max()),
        names.RESPONSE_TRUNCATED: float(np.mean([cut for group in groups for cut in group.summary.truncated])),
        names.PROMPT_LENGTH_MEAN: float(np.mean([group.summary.prompt_tokens for group in groups])),
    }


def supervised_metrics(parts: Sequence[StepSums], learning_rate: float) -> Metrics:
    """parts: of every rank."""
    return {
        names.ACTOR_LOSS: sum(part.loss for part in parts) / len(parts[0].grad_norms),
        names.ACTOR_ENTROPY: sum(part.entropy for part in parts) / sum(part.tokens for part in parts),
        names.ACTOR_GRAD_NORM: float(np.mean(parts[0].grad_norms)),
        names.ACTOR_LEARNING_RATE: learning_rate,
    }


def update_metrics(parts: Sequence[Updated], learning_rate: float) -> Metrics:
    """parts: of every rank."""
    sums = [part.sums for part in parts]
    importance = sum((part.importance for part in parts), start=ImportanceSums()).finish()
    return supervised_metrics(sums, learning_rate) | {
        names.ACTOR_CLIP_FRACTION: sum(each.clipped for each in sums) / sum(each.tokens for each in sums),
        names.ROLLOUT_LOG_PROB_DIFF_MEAN: importance.mean_difference,
        names.ROLLOUT_LOG_PROB_DIFF_MAX: importance.max_difference,
        names.ROLLOUT_EFFECTIVE_SAMPLE_SIZE: importance.effective_sample_size,
    }


def mean_kl(parts: Sequence[StepSums]) -> float:
    """KL estimate per token, where it acts in the loss. parts: of every rank."""
    return sum(part.kl for part in parts) / sum(part.tokens for part in parts)


def recovery_metrics(journaled: int, groups: int) -> Metrics:
    """What the step took from the journal; nothing in the usual case that it took nothing.

    journaled: of all `groups` that the step collected.
    """
    if journaled == 0:
        return {}
    replayed = float(journaled == groups)
    return {names.RECOVERY_JOURNALED_GROUPS: float(journaled), names.RECOVERY_REPLAYED_UPDATES: replayed}


def sync_metrics(synced: Synced) -> Metrics:
    probes = synced.probes
    return {
        names.SYNC_BYTES: float(sum(synced.sent)),
        names.SYNC_PROBE_MEAN: float(np.mean([probe.mean for probe in probes])),
        names.SYNC_PROBE_MAX: max(probe.max for probe in probes),
    }
