"""What a step says about itself: from groups, sums and reports to the flat metrics of one line."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from rljob_trainer.losses.covariance import CovarianceSums
from rljob_trainer.losses.diagnostics import ImportanceDiagnostics, ImportanceSums
from rljob_trainer.losses.preference import PreferenceSums
from rljob_trainer.losses.spread import added, reported
from rljob_trainer.progress import names
from rljob_trainer.rank.results import Updated, Usage
from rljob_trainer.rollouts.calls import CacheUse
from rljob_trainer.rollouts.weight_sync import Synced
from rljob_trainer.types import Floats, GroupSummary

Metrics = dict[str, float]

_NO_NAME = re.compile(r"[^\w./ :-]")
"""What some loggers accept in no metric's name."""


def reward_metrics(groups: Sequence[GroupSummary]) -> Metrics:
    """Mean, spread and components of the rewards, over episodes."""
    rewards = all_rewards(groups)
    metrics = {
        names.REWARD_MEAN: float(rewards.mean()),
        names.REWARD_STD: float(rewards.std()),
        names.REWARD_MIN: float(rewards.min()),
        names.REWARD_MAX: float(rewards.max()),
    }
    return metrics | {f"reward/{name}": mean for name, mean in _component_means(groups).items()}


def episode_metrics(groups: Sequence[GroupSummary]) -> Metrics:
    """What environments counted, over episodes; nothing if there are no environments."""
    means = _means_of([group.counts for group in groups])
    failed = {names.EPISODES_FAILED: float(sum(group.failed for group in groups))}
    return {f"episode/{name}": mean for name, mean in means.items()} | failed if means else {}


def baseline_metrics(groups: Sequence[GroupSummary]) -> Metrics:
    """Mean reward of the greedy answers; nothing without them."""
    rewards = [group.baseline for group in groups if group.baseline is not None]
    return {names.GROUPS_BASELINE: float(np.mean(rewards))} if rewards else {}


def validation_metrics(groups: Sequence[GroupSummary], sources: Mapping[str, str]) -> Metrics:
    """Mean reward and components over all episodes, and over those of each data source if there are several.

    sources: the data source of each task. For "aime" and the function exact: validation/reward,
    validation/reward/exact, validation/aime/reward, validation/aime/reward/exact.
    """
    metrics = _means(names.VALIDATION_REWARD, groups)
    by_source: dict[str, list[GroupSummary]] = {}
    for group in groups:
        by_source.setdefault(sources[group.task_id], []).append(group)
    for source, own in by_source.items() if len(set(sources.values())) > 1 else ():
        metrics |= _means(f"validation/{_NO_NAME.sub('_', source)}/reward", own)
    return metrics


def _means(name: str, groups: Sequence[GroupSummary]) -> Metrics:
    if not groups:
        return {}
    components = {f"{name}/{component}": mean for component, mean in _component_means(groups).items()}
    return {name: float(all_rewards(groups).mean())} | components


def _component_means(groups: Sequence[GroupSummary]) -> Metrics:
    """Of each reward and logged number, over the episodes that have it."""
    return _means_of([group.components for group in groups])


def _means_of(groups: Sequence[Mapping[str, Floats]]) -> Metrics:
    """groups: of each, [episodes] by name; NaN where an episode lacks the number."""
    means = {}
    for name in {name for group in groups for name in group}:
        values = np.concatenate([group[name] for group in groups if name in group])
        known = values[~np.isnan(values)]
        if known.size:
            means[name] = float(known.mean())
    return means


def all_rewards(groups: Sequence[GroupSummary]) -> Floats:
    """[episodes], in the order of the groups."""
    return np.concatenate([group.rewards for group in groups])


def length_metrics(groups: Sequence[GroupSummary]) -> Metrics:
    """Lengths of prompts, and of what the policy answered in each episode."""
    lengths = np.concatenate(
        [
            np.bincount(group.owners, weights=group.loss_tokens, minlength=len(group.rewards))[: group.sampled]
            for group in groups
        ]
    )
    return {
        names.RESPONSE_LENGTH_MEAN: float(lengths.mean()),
        names.RESPONSE_LENGTH_MAX: float(lengths.max()),
        names.RESPONSE_TRUNCATED: float(np.mean([cut for group in groups for cut in group.truncated[: group.sampled]])),
        names.PROMPT_LENGTH_MEAN: float(np.mean([group.prompt_tokens for group in groups])),
    }


def supervised_metrics(parts: Sequence[Updated], learning_rate: float) -> Metrics:
    """parts: of every rank. A number that is not finite is left out; only a step with a skipped update has any."""
    sums = [part.sums for part in parts]
    norms, skipped = sums[0].grad_norms, sums[0].skipped
    metrics = {
        names.ACTOR_LOSS: sum(each.loss for each in sums) / max(1, sums[0].minibatches),
        names.ACTOR_ENTROPY: sum(each.entropy for each in sums) / _tokens(parts),
        names.ACTOR_GRAD_NORM: float(np.mean(norms)) if norms else math.nan,
        names.ACTOR_UPDATES: float(len(norms)),
        names.ACTOR_UPDATES_SKIPPED: float(len(skipped)),
        names.ACTOR_LEARNING_RATE: learning_rate,
        **usage_metrics([part.usage for part in parts]),
        **sum((each.preference for each in sums), start=PreferenceSums()).metrics(),
    }
    return _finite(metrics)


def _finite(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def usage_metrics(parts: Sequence[Usage]) -> Metrics:
    """Of the ranks' GPUs in an update; nothing on CPUs."""
    capacity, peak = sum(part.capacity for part in parts), max(part.peak for part in parts)
    mfu = {names.ACTOR_MFU: sum(part.flops for part in parts) / capacity} if capacity else {}
    return mfu | ({names.MEMORY_UPDATE: float(peak)} if peak else {})


def idle_metrics(times: Mapping[str, float], generating: float) -> Metrics:
    """Shares of an RL step in which engines and ranks wait.

    times: of its parts, and the whole. generating: seconds in which an engine had requests, the mean over engines.
    """
    busy = {
        names.IDLE_ENGINES: generating + times.get(names.TIME_SYNC, 0.0),
        names.IDLE_RANKS: sum(times.get(name, 0.0) for name in names.RANK_TIMES),
    }
    return {idle: max(0.0, 1 - seconds / times[names.TIME_STEP]) for idle, seconds in busy.items()}


def update_metrics(parts: Sequence[Updated], learning_rate: float, kl_in_loss: bool) -> Metrics:
    """parts: of every rank. kl_in_loss: whether a KL estimate acts in the loss."""
    tokens = sum((part.importance for part in parts), start=ImportanceSums())
    importance = tokens.finish() if tokens.count else ImportanceDiagnostics(None, None, 1.0)  # no group made a pair
    if parts[0].sums.minibatches:
        metrics = supervised_metrics(parts, learning_rate) | {
            names.ACTOR_CLIP_FRACTION: sum(part.sums.clipped for part in parts) / _tokens(parts),
            names.ACTOR_DRIFT: sum(part.sums.drift for part in parts) / _tokens(parts),
            names.ACTOR_COVARIANCE: sum((part.sums.covariance for part in parts), start=CovarianceSums()).covariance(),
        }
    else:  # only the critic learned
        metrics = {names.ACTOR_UPDATES: 0.0, **usage_metrics([part.usage for part in parts])}
    metrics |= {
        names.ROLLOUT_EFFECTIVE_SAMPLE_SIZE: importance.effective_sample_size,
        **reported(added([part.correction for part in parts])),
    }
    if importance.mean_difference is not None and importance.max_difference is not None:
        metrics[names.ROLLOUT_LOG_PROB_DIFF_MEAN] = importance.mean_difference
        metrics[names.ROLLOUT_LOG_PROB_DIFF_MAX] = importance.max_difference
    if kl_in_loss and parts[0].sums.minibatches:
        metrics[names.ACTOR_KL] = sum(part.sums.kl for part in parts) / _tokens(parts)
    return _finite(metrics) if parts[0].sums.skipped else metrics


def divergence_metrics(parts: Sequence[Updated]) -> Metrics:
    """From a teacher of which the likeliest tokens are compared; nothing if the policy did not learn."""
    if not parts[0].sums.minibatches:
        return {}
    return _finite({names.REVERSE_KL: sum(part.sums.reverse_kl for part in parts) / _tokens(parts)})


def critic_metrics(parts: Sequence[Updated], learning_rate: float) -> Metrics:
    """parts: of every rank; nothing without a critic."""
    sums = [part.critic for part in parts if part.critic is not None]
    if not sums:
        return {}
    norms, tokens = sums[0].grad_norms, max(1, sum(each.tokens for each in sums))
    metrics = {
        names.CRITIC_LOSS: sum(each.loss for each in sums) / max(1, sums[0].minibatches),
        names.CRITIC_CLIP_FRACTION: sum(each.clipped for each in sums) / tokens,
        names.CRITIC_GRAD_NORM: float(np.mean(norms)) if norms else math.nan,
        names.CRITIC_UPDATES: float(len(norms)),
        names.CRITIC_UPDATES_SKIPPED: float(len(sums[0].skipped)),
        names.CRITIC_LEARNING_RATE: learning_rate,
    }
    return _finite(metrics)


def _tokens(parts: Sequence[Updated]) -> int:
    """Tokens that counted in the loss; 1 if a mask left none."""
    return max(1, sum(part.sums.tokens for part in parts))


def recovery_metrics(journaled: int, groups: int) -> Metrics:
    """What the step took from the journal; nothing in the usual case that it took nothing.

    journaled: of all `groups` that the step collected.
    """
    if journaled == 0:
        return {}
    replayed = float(journaled == groups)
    return {names.RECOVERY_JOURNALED_GROUPS: float(journaled), names.RECOVERY_REPLAYED_UPDATES: replayed}


def cache_metrics(rounds: Sequence[CacheUse]) -> Metrics:
    """Of the step's rounds of generation; nothing if their engines have no prefix cache."""
    prompts = sum(each.prompts for each in rounds)
    return {names.ROLLOUT_CACHED: sum(each.found for each in rounds) / prompts} if prompts else {}


def sync_metrics(synced: Synced) -> Metrics:
    probes = synced.probes
    moved = [probe.moved for probe in probes if probe.moved is not None]
    return ({names.SYNC_PROBE_MOVED: float(np.mean(moved))} if moved else {}) | {
        names.SYNC_BYTES: float(sum(synced.sent)),
        names.SYNC_PROBE_MEAN: float(np.mean([probe.mean for probe in probes])),
        names.SYNC_PROBE_MAX: max(probe.max for probe in probes),
    }
