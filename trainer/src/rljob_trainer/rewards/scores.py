"""Scores of the responses of one group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_trainer.rewards.spans import Spans
from rljob_trainer.types import Floats


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Rewards of one group.

    rewards: [responses], the weighted sum; NaN if the group has an error.
    components: each reward's own value and its logged numbers, [responses] each.
    spans: of each response, (end character, weighted value) of rewards inside it; empty if no response has any.
    error: why the group is left out (rewards.onError: drop_group), naming the response; None if it is scored.
    """

    task_id: str
    rewards: Floats
    components: Mapping[str, Floats] = field(default_factory=dict)
    error: str | None = None
    spans: Sequence[Spans] = ()
