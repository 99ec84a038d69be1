"""Between one operator process and everything outside it. Each call meets a turn of fate.

before      something happens meanwhile
fate        DONE      as it should be
            FAILED    without an effect: 503, or nobody there
            CONFLICT  409, without an effect; FORBIDDEN: 403, INVALID: 422
            LOST      it has its effect, and no answer comes
            KILLED    it has its effect, and the process is dead before the answer
            UNSENT    the process is dead before it leaves
            LATE      the process is dead, and the effect comes when nobody expects it any more
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

T = TypeVar("T")


class Fate(Enum):
    DONE = auto()
    FAILED = auto()
    CONFLICT = auto()
    FORBIDDEN = auto()
    INVALID = auto()
    LOST = auto()
    KILLED = auto()
    UNSENT = auto()
    LATE = auto()


REFUSALS = {
    Fate.FAILED: (503, "ServiceUnavailable"),
    Fate.CONFLICT: (409, "Conflict"),
    Fate.FORBIDDEN: (403, "Forbidden"),
    Fate.INVALID: (422, "Invalid"),
}
_DEADLY = (Fate.KILLED, Fate.UNSENT, Fate.LATE)


@dataclass(frozen=True)
class Call:
    """words: such as "create RayCluster". writes: it changes something outside. kube: of the API server, or a head."""

    words: str
    writes: bool
    kube: bool = True

    def __str__(self) -> str:
        return self.words


@dataclass
class Turn:
    fate: Fate = Fate.DONE
    happening: Callable[[], object] = lambda: None


class Wire:
    """next_turn: asked for each call. late: effects that are to come. calls: all so far."""

    def __init__(self, next_turn: Callable[[Call], Turn], late: list[Callable[[], object]]) -> None:
        self._next_turn, self._late = next_turn, late
        self.dead = False
        self.calls: list[Call] = []

    async def send(
        self, call: Call, effect: Callable[[], T], lost: Callable[[], Exception], refuse: Callable[[Fate], T]
    ) -> T:
        """lost: what the caller gets where no answer comes. refuse: the answer of whoever says no."""
        if self.dead:
            await _for_ever()
        turn = self._next_turn(call)
        turn.happening()
        self.calls.append(call)
        if turn.fate in _DEADLY:
            self.dead = True
            if turn.fate is Fate.LATE:
                self._late.append(effect)
            elif turn.fate is Fate.KILLED:
                effect()
            await _for_ever()
        if turn.fate in REFUSALS:
            return refuse(turn.fate)
        answer = effect()
        if turn.fate is Fate.LOST:
            raise lost()
        return answer


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()
