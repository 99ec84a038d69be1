"""What may go wrong between a client and the API server, and when."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from aiohttp import web

from e2e.cluster.proxy.call import Call
from e2e.cluster.proxy.exchange import Exchange

Action = Callable[[Exchange], Awaitable[web.StreamResponse]]

REASONS = {
    403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError",
}  # fmt: skip


@dataclass
class Fault:
    """Strikes calls that match: the `nth` one alone, or else each with `probability`.

    verbs, resource: None matches any; a resource with its subresource, as in rljobs/status.
    """

    action: Action
    verbs: Collection[str] | None = None
    resource: str | None = None
    nth: int | None = None
    probability: float = 1.0
    seed: int = 0
    matched: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def strikes(self, call: Call) -> bool:
        """To be asked once a call."""
        if self.verbs is not None and call.verb not in self.verbs:
            return False
        if self.resource is not None and call.resource != self.resource:
            return False
        self.matched += 1
        return self.matched == self.nth if self.nth is not None else self._dice.random() < self.probability


def answer(status: int, retry_after: int | None = None) -> Action:
    """The API server is not asked. retry_after: seconds, as a busy API server says with 429."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = json.dumps(_status(status))

    async def act(_: Exchange) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, text=body, content_type="application/json")

    return act


def delay(seconds: float) -> Action:
    async def act(exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await exchange.forward()

    return act


def hang(*, landed: bool = False) -> Action:
    """No answer until the client gives up. landed: the API server got the request."""

    async def act(exchange: Exchange) -> web.StreamResponse:
        if landed:
            await exchange.send()
        never: asyncio.Future[web.StreamResponse] = asyncio.get_running_loop().create_future()
        return await never

    return act


def drop(*, landed: bool = False) -> Action:
    """The connection breaks. landed: after the API server did what it was asked, which the client does not learn."""
    return run(lambda: None, landed=landed)


def run(callback: Callable[[], object], *, landed: bool = False) -> Action:
    """Call back, from the proxy's thread, and break the connection: so a test kills the client at its n-th write."""

    async def act(exchange: Exchange) -> web.StreamResponse:
        if landed:
            await exchange.send()
        callback()
        return exchange.drop()

    return act


def cut_watch(events: int = 0) -> Action:
    """A watch whose connection breaks after so many events."""

    async def act(exchange: Exchange) -> web.StreamResponse:
        return await exchange.forward(lines=events)

    return act


def expire_watch() -> Action:
    """A watch that says at once that its resource version is too old."""
    return fail_watch(410)


def fail_watch(code: int) -> Action:
    """A watch that begins, and says at once what went wrong, as the API server does: with status 200."""
    event = json.dumps({"type": "ERROR", "object": _status(code)}) + "\n"

    async def act(_: Exchange) -> web.StreamResponse:
        return web.Response(text=event, content_type="application/json")

    return act


def _status(code: int) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": REASONS.get(code, "InternalError"),
        "message": "injected by a test",
        "code": code,
    }
