"""Which groups teach nothing: whatever the advantage compares in them is equal, so their gradient is 0."""

from collections.abc import Callable, Sequence

import numpy as np

from rljob_api.resolve import ResolvedAlgorithm
from rljob_api.v1alpha1.terms import WITHOUT_GROUPS
from rljob_trainer.advantage import AdvantageBatch, by_state, per_step, uninformative_groups
from rljob_trainer.loop.batches import turns_of
from rljob_trainer.loop.metrics import all_rewards
from rljob_trainer.types import Floats, GroupSummary


def flat_groups(groups: Sequence[GroupSummary], algorithm: ResolvedAlgorithm) -> set[int]:
    """Indices of the groups that teach nothing.

    By default the rewards of a group's episodes are compared, and the greedy answer's; with per_step the returns of
    turns; with gigpo both. With gamma 0.5 the rewards 1 in one turn and 0 1 in two are equal, and the returns of the
    first turns, 1 and 0.5, are not. Unless the advantage compares episodes, one that is alone teaches, and so does a
    group with rewards inside responses.
    """
    if algorithm.advantage == "distillation":  # it reads no rewards
        return set()
    outcomes = [_compared(group) for group in groups]
    owners = np.repeat(np.arange(len(groups)), [len(each) for each in outcomes])
    flat = set(uninformative_groups(np.concatenate(outcomes), owners).tolist())
    if algorithm.advantage in WITHOUT_GROUPS:
        return {index for index in flat if len(outcomes[index]) > 1 and not groups[index].token_rewards}
    if algorithm.stepwise_advantage == "per_step":
        return set(range(len(groups))) - _teach(groups, algorithm.gamma, per_step)
    if algorithm.advantage == "gigpo" and algorithm.step_advantage_w != 0:
        return flat - _teach(groups, algorithm.gamma, by_state)
    return flat


def _teach(
    groups: Sequence[GroupSummary], gamma: float, comparing: Callable[[AdvantageBatch], AdvantageBatch]
) -> set[int]:  # fmt: skip
    """Indices of groups with turns that are compared, differ, and have tokens in the loss: a mask may leave none."""
    tokens = [np.bincount(each.owners, each.loss_tokens, len(each.rewards)) for each in groups]
    owners = np.repeat(np.arange(len(groups)), [len(each) for each in tokens])
    lengths = np.concatenate(tokens).astype(np.int64)
    episodes = AdvantageBatch(all_rewards(groups), owners, lengths, gamma=gamma, turns=turns_of(groups))
    compared = comparing(episodes)
    trained = np.bincount(compared.groups, compared.lengths) > 0
    trained[uninformative_groups(compared.rewards, compared.groups)] = False
    return set(owners[episodes.known_turns().owners][trained[compared.groups]].tolist())


def _compared(group: GroupSummary) -> Floats:
    """What a reward of the group is compared with: [episodes], and the baseline's."""
    return group.rewards if group.baseline is None else np.append(group.rewards, np.float32(group.baseline))
