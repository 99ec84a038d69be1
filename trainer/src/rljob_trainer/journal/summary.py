"""What the controller is told of a group; the same from the scorer as from the journal."""

import numpy as np

from rljob_trainer.journal.fingerprint import content_hash
from rljob_trainer.old_types import Group, GroupScore, GroupSummary


def summarise(group: Group, score: GroupScore) -> GroupSummary:
    """The group's lengths, rewards and digest."""
    return GroupSummary(
        prompt_id=group.prompt.id,
        policy_version=group.policy_version,
        prompt_tokens=len(group.prompt.token_ids),
        response_tokens=tuple(len(sample.token_ids) for sample in group.samples),
        truncated=tuple(sample.finish_reason == "length" for sample in group.samples),
        score=score,
        digest=group_digest(group, score),
    )


def group_digest(group: Group, score: GroupScore) -> str:
    """Hash of all that an update can depend on: prompt, responses with their log-probabilities, rewards."""
    parts: list[str | bytes] = [prompt_hash(group.prompt.token_ids), score.rewards.astype("<f4").tobytes()]
    for sample in group.samples:
        ids, log_probs = sample.token_ids.astype("<i4").tobytes(), sample.log_probs.astype("<f4").tobytes()
        parts += [ids, log_probs, sample.finish_reason]
    return content_hash(*parts)


def prompt_hash(token_ids: np.ndarray) -> str:
    """Hash of a prompt's token ids [P]."""
    return content_hash(token_ids.astype("<i4").tobytes())
