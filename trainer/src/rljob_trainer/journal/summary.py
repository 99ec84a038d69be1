"""What the driver learns of a group; the same whether it was made now or read from the journal."""

import numpy as np

from rljob_trainer.journal.fingerprint import content_hash
from rljob_trainer.journal.record import prompt_hash
from rljob_trainer.types import NOT_SAMPLED, Group, GroupSummary, Trajectory, stacked


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
        oldest_version=min((episode.oldest_version for episode in episodes), default=NOT_SAMPLED),
        digest=group_digest(group),
        error=group.error,
        counts=stacked([episode.counts for episode in episodes]),
        failed=len(group.episodes) - len(episodes),
        token_rewards=tuple(e.token_rewards for e in episodes) if any(e.token_rewards for e in episodes) else (),
        baseline=None if group.baseline is None else group.baseline.reward,
    )


def group_digest(group: Group) -> str:
    """Hash of all that an update can depend on: prompt, trajectories, their media, and rewards, also the baseline's."""
    parts: list[str | bytes] = [prompt_hash(group.task.token_ids)]
    for episode in group.episodes:
        parts.append(np.float32(episode.reward).tobytes())
        if episode.turn_rewards is not None:
            parts.append(episode.turn_rewards.astype("<f4").tobytes())
        if episode.token_rewards:
            parts.append(repr(episode.token_rewards))
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
    return [*(array.tobytes() for array in arrays), repr(tuple(map(tuple, trajectory.turns))), *trajectory.media]
