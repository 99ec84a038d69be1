"""The protocol between an environment and the policy that plays in it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from rljob_trainer.engines.engine import Completion
from rljob_trainer.types import Episode, Ids, Task


class Policy(Protocol):
    """The policy, as one episode sees it.

    sample: which attempt at the task this episode is. temperature: at which it samples. max_tokens: most of a turn.
    trains: whether the episode is for the loss; what limits leave out of the loss counts in a validation.
    """

    @property
    def sample(self) -> int: ...

    @property
    def temperature(self) -> float: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def trains(self) -> bool: ...

    async def generate(
        self, token_ids: Ids, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Completion:  # fmt: skip
        """The policy's next turn after these tokens [T], exactly as an engine sampled it.

        max_tokens: fewer than a turn may have otherwise. stop: strings that end it, besides the job's; they stay in it.
        """

    def restart(self) -> None:
        """The episode is played again from its first turn, with the same seeds."""


Environment = Callable[[Task, Policy], Awaitable[Episode]]
"""Plays one episode. It never scores it: rewards do, which add to the reward that the environment sets."""
