"""The protocol between an environment and the policy that plays in it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from rljob_trainer.engines.engine import Completion
from rljob_trainer.types import Episode, Ids, Task


class Policy(Protocol):
    """The policy, as one episode sees it.

    sample: which attempt at the task this episode is. temperature: at which it samples.
    """

    @property
    def sample(self) -> int: ...

    @property
    def temperature(self) -> float: ...

    async def generate(self, token_ids: Ids) -> Completion:
        """The policy's next turn after these tokens [T], exactly as an engine sampled it."""


Environment = Callable[[Task, Policy], Awaitable[Episode]]
"""Plays one episode. It never scores it: rewards do, unless the environment sets turn rewards."""
