"""Who asked for a turn of an episode, its code or a request to the endpoint, gets what the session answers."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_trainer.environments.process import EnvironmentProcess, Inbox
from rljob_trainer.environments.session import Over, Refused


class Reply(Protocol):
    """Where an answer goes to."""

    def answer(self, value: Any) -> None: ...

    def refuse(self, error: Over | Refused) -> None: ...


@dataclass(frozen=True, slots=True)
class ToCode:
    """To a call of api.Policy. number: of the episode in its process. call: of the call."""

    process: EnvironmentProcess
    number: int
    call: int

    def answer(self, value: Any) -> None:
        self.process.send("answer", self.number, self.call, value)

    def refuse(self, error: Over | Refused) -> None:
        kind = "over" if isinstance(error, Over) else "wrong"
        self.process.send("refuse", self.number, self.call, kind, str(error))


@dataclass(frozen=True, slots=True)
class ToRequest:
    """To a request to the endpoint, which may have given up."""

    reply: "asyncio.Future[Any]"

    def answer(self, value: Any) -> None:
        if not self.reply.done():
            self.reply.set_result(value)

    def refuse(self, error: Over | Refused) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


async def answer(asked: Awaitable[Any], reply: Reply, inbox: Inbox) -> None:
    """Answer, then tell the episode's inbox that this task ended, and with it an error of an engine."""
    error: Exception | None = None
    try:
        reply.answer(await asked)
    except (Over, Refused) as refused:
        reply.refuse(refused)
    except Exception as wrong:  # noqa: BLE001  of an engine: the order fails
        error = wrong
    finally:
        inbox.put_nowait(("answered", asyncio.current_task(), error))
