"""Turns of an episode become trajectories: a turn continues a context, or begins another one.

Turns count in the order in which they were begun: which of two that overlap ends first is chance.

    generate([5 9 2])         -> [7 1]      a context  5 9 2 | 7 1
    generate([5 9 2 7 1 4])   -> [8 1]      continued  5 9 2 | 7 1 | 4 | 8 1
    generate([5 9 4])         -> [6 1]      the history was rewritten: another context  5 9 4 | 6 1

Tokens that were sampled stay as they were sampled, and each is in the loss of one trajectory only.
"""

from dataclasses import dataclass, field

import numpy as np

from rljob_trainer.engines.engine import Completion
from rljob_trainer.types import NOT_SAMPLED, Floats, Ids, Trajectory, Turn


@dataclass(slots=True)
class _Context:
    """A trajectory as it grows. numbers: of its turns among all turns of the episode."""

    token_ids: Ids
    log_probs: list[Floats] = field(default_factory=list)
    versions: list[Ids] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def trajectory(self) -> Trajectory:
        T = len(self.token_ids)
        in_loss, log_probs = np.zeros(T, np.bool_), np.zeros(T, np.float32)
        versions = np.full(T, NOT_SAMPLED, np.int32)
        for turn, probabilities, sampled_by in zip(self.turns, self.log_probs, self.versions, strict=True):
            span = slice(turn.start, turn.end)
            in_loss[span], log_probs[span], versions[span] = True, probabilities, sampled_by
        return Trajectory(self.token_ids, in_loss, log_probs, versions, tuple(self.turns))


class Recorder:
    """The turns of one episode."""

    def __init__(self) -> None:
        self._contexts: list[_Context] = []
        self._begun = self._placed = 0
        self._open: set[int] = set()
        self._waiting: dict[int, tuple[Ids, Completion, float]] = {}  # for turns that were begun before

    @property
    def begun(self) -> int:
        """Turns that were taken or are on their way."""
        return self.turns + len(self._open)

    @property
    def turns(self) -> int:
        """Turns that were taken."""
        return self._placed + len(self._waiting)

    @property
    def splits(self) -> int:
        """How often a turn of the trajectories did not continue a context."""
        return max(0, len(self._contexts) - 1)

    def begin(self) -> int:
        """A turn begins. Returns its number, for `add` or `give_up`."""
        self._begun += 1
        self._open.add(self._begun)
        return self._begun

    def give_up(self, number: int) -> None:
        """A turn that was begun is not taken."""
        self._open.discard(number)
        self._place(before=min(self._open, default=self._begun + 1))

    def add(self, number: int, prompt: Ids, completion: Completion, temperature: float) -> None:
        """One turn: `completion` of `prompt` [P]."""
        self._waiting[number] = prompt, completion, temperature
        self.give_up(number)

    def _place(self, before: int) -> None:
        """Put the turns with smaller numbers into their contexts."""
        for number in sorted(each for each in self._waiting if each < before):
            self._append(*self._waiting.pop(number))

    def _append(self, prompt: Ids, completion: Completion, temperature: float) -> None:
        context = self._continued(prompt)
        if context is None:
            context = _Context(prompt)
        # The last one has the last turn: its text is what rewards score, and its end is the episode's.
        self._contexts = [*(each for each in self._contexts if each is not context), context]
        start = len(prompt)
        context.token_ids = np.concatenate([prompt, completion.token_ids]).astype(np.int32)
        context.log_probs.append(completion.log_probs)
        context.versions.append(completion.versions)
        context.turns.append(Turn(start, len(context.token_ids), temperature, completion.finish_reason))
        context.numbers.append(self._placed)
        self._placed += 1

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Those of the turns so far; a turn that ends later counts as a later one."""
        self._place(before=self._begun + 1)
        return tuple(context.trajectory() for context in self._contexts)

    def order(self) -> tuple[int, ...]:
        """Episode.order of the turns of the trajectories."""
        numbers = tuple(number for context in self._contexts for number in context.numbers)
        return () if list(numbers) == sorted(numbers) else numbers

    def in_order(self, of_turns: list[float]) -> Floats:
        """[turns of all trajectories], from one number for each turn in the order in which they were taken.

        Turns behind the last of `of_turns` have 0.
        """
        padded = of_turns + [0.0] * (self.turns - len(of_turns))
        return np.array([padded[number] for context in self._contexts for number in context.numbers], np.float32)

    def _continued(self, prompt: Ids) -> _Context | None:
        """The longest context that `prompt` begins with."""
        fitting = [each for each in self._contexts if np.array_equal(prompt[: len(each.token_ids)], each.token_ids)]
        return max(fitting, key=lambda each: len(each.token_ids), default=None)
