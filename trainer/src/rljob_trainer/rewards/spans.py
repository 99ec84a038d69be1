"""Rewards inside a response: from characters of its text to tokens in the loss."""

from collections.abc import Callable, Sequence, Set

import numpy as np

from rljob_trainer.errors import RewardError
from rljob_trainer.types import Episode, Trajectory

Spans = Sequence[tuple[int, float]]
"""(end, value): the value belongs to the text's character end - 1, the last one of text[:end]."""


def credited(
    episode: Episode, spans: Spans, decode: Callable[[Sequence[int]], str], ends: Set[int]
) -> tuple[tuple[int, float], ...]:
    """(index among the episode's tokens in the loss, value) of each span of its last trajectory's text, by index.

    A span belongs to the token that contains its last character; to the last one in the loss before it, if that token
    is not in the loss. Without any in the loss there is nothing to credit. Values of one token are summed.
    Raises RewardError for a span that ends outside of the text.
    """
    last = episode.trajectories[-1]
    if not spans or not last.in_loss.any():
        return ()
    places, kept = _places(last, ends), last.response_ids(ends)
    length = len(decode(kept))
    before = sum(part.loss_tokens for part in episode.trajectories[:-1])
    index_at = before + np.cumsum(last.in_loss) - 1
    values: dict[int, float] = {}
    for end, value in spans:
        if not 1 <= end <= length:
            raise RewardError(
                f"a span ends at {end}, and the response has {length} characters: return (end, value) with"
                " 1 <= end <= len(response)",
                field="spec.rewards.functions",
            )
        place = places[_token_of(kept, end, decode)]
        index = max(before, int(index_at[place]))
        values[index] = values.get(index, 0.0) + value
    return tuple(sorted(values.items()))


def _places(part: Trajectory, ends: Set[int]) -> list[int]:
    """Where each token of response_ids is in the trajectory."""
    ids = part.token_ids.tolist()
    turns = [range(turn.start, turn.end - (turn.end > turn.start and ids[turn.end - 1] in ends)) for turn in part.turns]
    return [place for turn in turns for place in turn]


def _token_of(ids: Sequence[int], end: int, decode: Callable[[Sequence[int]], str]) -> int:
    """The first token with which the text has `end` characters; found by halving, for each step decodes a prefix."""
    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if len(decode(ids[: middle + 1])) >= end:
            high = middle
        else:
            low = middle + 1
    return low
