"""What the driver learns of a group; the same whether it was made now or read from the journal."""

import hashlib
from collections.abc import Sequence

import numpy as np

from rljob_trainer.journal.fingerprint import content_hash
from rljob_trainer.journal.record import prompt_hash, taught_bytes
from rljob_trainer.types import (
    NOT_SAMPLED,
    Episode,
    Floats,
    Group,
    GroupSummary,
    Ids,
    Trajectory,
    TurnSummary,
    stacked,
)


def summarise(group: Group) -> GroupSummary:
    """The group's rewards, lengths and digest."""
    episodes = [episode for episode in group.episodes if episode.trajectories]
    trajectories = [(owner, part) for owner, each in enumerate(episodes) for part in each.trajectories]
    return GroupSummary(
        task_id=group.task.id,
        rewards=np.array([episode.reward for episode in episodes], dtype=np.float32),
        components=stacked([episode.components for episode in episodes]),
        owners=tuple(owner for owner, _ in trajectories),
        tokens=tuple(len(part.token_ids) for _, part in trajectories),
        loss_tokens=tuple(part.loss_tokens for _, part in trajectories),
        prompt_tokens=len(group.task.token_ids),
        truncated=tuple(episode.trajectories[-1].truncated for episode in episodes),
        oldest_version=min((each.oldest_version for each in episodes if not each.given), default=NOT_SAMPLED),
        digest=group_digest(group),
        error=group.error,
        counts=stacked([episode.counts for episode in episodes]),
        failed=len(group.episodes) - len(episodes),
        token_rewards=tuple(e.token_rewards for e in episodes) if any(e.token_rewards for e in episodes) else (),
        baseline=None if group.baseline is None else group.baseline.reward,
        turns=_turns(episodes),
        given=any(each.given for each in episodes),
    )


def _turns(episodes: Sequence[Episode]) -> TurnSummary | None:
    """None if each episode is one turn."""
    if all(sum(len(part.turns) for part in each.trajectories) <= 1 for each in episodes):
        return None
    owners: list[int] = []
    tokens: list[int] = []
    states: list[int] = []
    order: list[int] = []
    rewards: list[Floats] = []
    for owner, episode in enumerate(episodes):
        for part in episode.trajectories:
            before = 0
            for turn in part.turns:
                tokens.append(int(part.in_loss[turn.start : turn.end].sum()))
                states.append(_state(part.token_ids[before : turn.start]))
                before = turn.end
        order += episode.order or range(len(tokens) - len(owners))
        owners += [owner] * (len(tokens) - len(owners))
        rewards.append(_turn_rewards(episode))
    return TurnSummary(tuple(owners), tuple(tokens), np.concatenate(rewards), tuple(states), tuple(order))


def _turn_rewards(episode: Episode) -> Floats:
    count = sum(len(part.turns) for part in episode.trajectories)
    own = np.zeros(count, np.float32) if episode.turn_rewards is None else episode.turn_rewards.astype(np.float32)
    own = own.copy()
    own[-1:] += np.float32(episode.reward) - own.sum()
    return own


def _state(token_ids: Ids) -> int:
    digest = hashlib.blake2b(token_ids.astype("<i4").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def group_digest(group: Group) -> str:
    """Hash of all that an update can depend on: prompt, trajectories, their media, and rewards, also the baseline's."""
    parts: list[str | bytes] = [prompt_hash(group.task.token_ids)]
    for episode in group.episodes:
        parts.append(np.float32(episode.reward).tobytes())
        if episode.turn_rewards is not None:
            parts.append(episode.turn_rewards.astype("<f4").tobytes())
        if episode.token_rewards:
            parts.append(repr(episode.token_rewards))
        if episode.order:
            parts.append(f"order {episode.order}")
        for trajectory in episode.trajectories:
            parts += _parts(trajectory)
    if group.baseline is not None:
        parts += ["baseline", np.float32(group.baseline.reward).tobytes()]
    return content_hash(*parts)


def _parts(trajectory: Trajectory) -> list[str | bytes]:
    arrays = [
        trajectory.token_ids.astype("<i4"),
        trajectory.in_loss.astype("u1"),
        trajectory.log_probs.astype("<f4"),
        trajectory.versions.astype("<i4"),
    ]
    return [
        *(array.tobytes() for array in arrays),
        repr(tuple(map(tuple, trajectory.turns))),
        *trajectory.media,
        *taught_bytes(trajectory.taught),
    ]
