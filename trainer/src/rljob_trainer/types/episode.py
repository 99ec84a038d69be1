"""One attempt at one task, and all attempts at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.types.task import Floats, Task
from rljob_trainer.types.trajectory import NOT_SAMPLED, Taught, Trajectory, Turn, supervised

EpisodeStatus = Literal["finished", "truncated", "timed_out", "environment_failed", "aborted"]

_COLUMNS = ("token_ids", "in_loss", "log_probs", "versions")
"""The arrays of a trajectory, in the order of its fields."""

_OTHERS = ("turns", "media", "taught")
"""Its other fields, in their order."""

_REST = (
    "sample",
    "status",
    "reward",
    "components",
    "turn_rewards",
    "counts",
    "reason",
    "token_rewards",
    "given",
    "order",
)
"""Fields of an episode besides its task and its trajectories, in their order."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at one task.

    task_id, sample: together its name; sample counts the episodes of a task from 0.
    trajectories: one, or more if the context was rewritten on the way; none if it is left out of its group.
    status: how it ended; truncated: at a limit of tokens or turns.
    reward: its environment's, plus the weighted sum of its rewards; NaN until it has one, and if it cannot have one.
    components: each reward's own value and its logged numbers.
    turn_rewards: [turns of all trajectories], rewards that belong to a turn; None if there are none.
    counts: numbers that the environment logs, such as tool calls.
    reason: why it is left out; "" if it is not.
    token_rewards: (index among its tokens in the loss, reward) of rewards inside it, besides `reward`; ascending.
    given: it is the row's own response, which no policy sampled (Group.with_response).
    order: [turns of all trajectories], when each was taken, from 0; () if in their order. Turns of several contexts may
        alternate, as those of two agents do.
    """

    task_id: str
    sample: int
    trajectories: tuple[Trajectory, ...]
    status: EpisodeStatus = "finished"
    reward: float = float("nan")
    components: Mapping[str, float] = field(default_factory=dict)
    turn_rewards: Floats | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    token_rewards: tuple[tuple[int, float], ...] = ()
    given: bool = False
    order: tuple[int, ...] = ()

    @property
    def oldest_version(self) -> int:
        """The smallest version among its sampled tokens; NOT_SAMPLED if there is none."""
        sampled = [part.versions[part.versions != NOT_SAMPLED] for part in self.trajectories]
        return min((int(versions.min()) for versions in sampled if versions.size), default=NOT_SAMPLED)


@dataclass(frozen=True, slots=True)
class Group:
    """All episodes of one task, in the order of `sample`: the unit of advantage.

    error: why the group has no rewards and is left out (rewards.onError: drop_group); None if it is scored.
    baseline: a greedy answer that is scored and not trained on (remax); None without one.
    """

    task: Task
    episodes: tuple[Episode, ...]
    error: str | None = None
    baseline: Episode | None = None

    @property
    def made(self) -> tuple[Episode, ...]:
        """All that was made for the task, the baseline last."""
        made = tuple(episode for episode in self.episodes if not episode.given)
        return made if self.baseline is None else (*made, self.baseline)

    def with_response(self) -> "Group":
        """With the response of its row, if the task has it, as a last episode that is preferred: its reward is 1.

        It is compared at the temperature of the sampled responses.
        """
        prompt, response = self.task.token_ids, self.task.response
        if response is None:
            return self
        whole = np.concatenate([prompt, response]).astype(np.int32)
        part = supervised(whole, [slice(len(prompt), len(whole))])
        if sampled := next((turn for each in self.trajectories for turn in each.turns), None):
            part = replace(part, turns=(Turn(len(prompt), len(whole), sampled.temperature, "stop"),))
        own = Episode(self.task.id, len(self.episodes), (part,), reward=1.0, given=True)
        return replace(self, episodes=(*self.episodes, own))

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Those of all episodes, in their order."""
        return tuple(trajectory for episode in self.episodes for trajectory in episode.trajectories)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle tokens as four arrays, whatever the number of trajectories: a group crosses processes several times.

        Arrays of a group that was unpickled are views of these four.
        """
        parts = self.trajectories
        if not parts:
            return Group, (self.task, self.episodes, self.error, self.baseline)
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS]
        ends = np.cumsum([len(part.token_ids) for part in parts])
        rest = [
            (
                [tuple(getattr(part, name) for name in _OTHERS) for part in each.trajectories],
                [getattr(each, name) for name in _REST],
            )
            for each in self.episodes
        ]
        return _group, (self.task, rest, columns, ends, self.error, self.baseline)


def _group(
    task: Task, rest: list[tuple[list[tuple[Any, ...]], list[Any]]],
    columns: list[NDArray[Any]], ends: NDArray[np.int64], error: str | None, baseline: Episode | None,
) -> Group:  # fmt: skip
    """What Group.__reduce__ took apart."""
    arrays = zip(*(_parts(column, ends.tolist()) for column in columns), strict=True)

    def trajectory(turns: tuple[Turn, ...], media: tuple[str, ...], taught: Taught | None) -> Trajectory:
        token_ids, in_loss, log_probs, versions = next(arrays)
        return Trajectory(token_ids, in_loss, log_probs, versions, turns, media, taught)

    episodes = (
        Episode(task.id, sample, tuple(trajectory(*each) for each in trajectories), *others)
        for trajectories, (sample, *others) in rest
    )
    return Group(task, tuple(episodes), error, baseline)


def _parts(column: NDArray[Any], ends: list[int]) -> list[NDArray[Any]]:
    """np.split, which takes several times as long."""
    return [column[start:end] for start, end in pairwise([0, *ends])]


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """The turns of a group's episodes, those of episode 0 first, in the order of its trajectories.

    owners, tokens, rewards, states, order: [turns]. owners: the episode of each. tokens: those in the loss.
    rewards: those of an episode add up to its reward; what no turn's own reward accounts for belongs to its last turn.
    states: hashes of the tokens between the answer before, or the beginning, and the turn.
    order: when each was taken, from 0 in each episode.
    """

    owners: tuple[int, ...]
    tokens: tuple[int, ...]
    rewards: Floats
    states: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What the driver knows of a group while its tensors stay where they are.

    [episodes] are those that have trajectories; failed: how many have none and are left out.
    rewards: [episodes]. components, counts: [episodes] each; a number that an episode lacks is NaN there.
    owners: [trajectories], the episode of each. tokens, loss_tokens, turns: [trajectories].
    truncated: [episodes]. oldest_version: over all its tokens in the loss.
    digest: names the group by all that an update can depend on. error: the group's.
    baseline: reward of its baseline; None without one. turns: None if each episode is one turn.
    token_rewards: [episodes], or empty if no episode has any.
    given: whether the last episode is the response of the row, which no policy sampled.
    """

    task_id: str
    rewards: Floats
    components: Mapping[str, Floats]
    owners: tuple[int, ...]
    tokens: tuple[int, ...]
    loss_tokens: tuple[int, ...]
    prompt_tokens: int
    truncated: tuple[bool, ...]
    oldest_version: int
    digest: str
    error: str | None = None
    baseline: float | None = None
    counts: Mapping[str, Floats] = field(default_factory=dict)
    failed: int = 0
    turns: TurnSummary | None = None
    token_rewards: tuple[tuple[tuple[int, float], ...], ...] = ()
    given: bool = False

    @property
    def sampled(self) -> int:
        """Episodes that the policy sampled and that have trajectories, the first ones."""
        return len(self.rewards) - self.given

    @property
    def made(self) -> int:
        """Episodes that were made, those that failed and the baseline included."""
        return self.sampled + self.failed + (self.baseline is not None)

    def age(self, version: int) -> int:
        """How many updates lie between the oldest token in the loss and the update of `version`."""
        return version - self.oldest_version


def stacked(values: list[Mapping[str, float]]) -> dict[str, Floats]:
    """{name: [episodes]} of each episode's numbers; NaN if an episode lacks one."""
    names = dict.fromkeys(name for each in values for name in each)
    return {name: np.array([each.get(name, np.nan) for each in values], dtype=np.float32) for name in names}
