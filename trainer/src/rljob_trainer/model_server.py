"""A server of models, of vLLM or with OpenAI's API, as reward models and teachers ask it. It retries failures.

200                         an answer
400, 413, 422               the server rejects this text, for example because it is too long: Rejected
408, 429, 5xx, no answer    retried with backoff for at most lostAfter, then InfrastructureError
501, any other              NotServed: this server does not serve the model
"""

import asyncio
from collections.abc import Set
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import PurePath
from typing import Any

import httpx
import structlog

from rljob_api import reward_server
from rljob_api.durations import parse_duration
from rljob_trainer.errors import InfrastructureError

log = structlog.get_logger()

FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds between two tries; doubles up to the second value."""

CONNECT_SECONDS = 5.0

_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BUSY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_SHOWN = 300


class Rejected(Exception):
    """Why the server refuses what it was sent."""


class NotServed(Exception):
    """Why the server is not the one of this model; ends with what to check."""


class _Again(Exception):
    """Why the request should be sent again."""


@dataclass(frozen=True, slots=True)
class Access:
    """url: without /v1. key: of its API; None without one. timeout, lost_after: durations, of one request and of all
    tries. concurrency: requests at a time. rate_limit: requests a minute; None: no limit.
    """

    url: str
    key: str | None
    timeout: str
    lost_after: str
    concurrency: int
    rate_limit: int | None = None


class ModelServer:
    """Use it in one event loop. kind: reward_model or teacher. name: the model's, in messages and in the log."""

    def __init__(self, kind: str, name: str, access: Access) -> None:
        self._kind, self._name, self._access = kind, name, access
        self._event = f"{kind}_retried"
        self.room = asyncio.Semaphore(access.concurrency)
        self._pace = _Pace(access.rate_limit)
        self._http = httpx.AsyncClient(
            base_url=access.url,
            headers={} if access.key is None else {"Authorization": f"Bearer {access.key}"},
            timeout=httpx.Timeout(parse_duration(access.timeout), connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer, from JSON. Raises Rejected, NotServed or InfrastructureError."""
        wait, tries, why = FIRST_WAIT, 0, "no answer"
        lost_after = self._access.lost_after
        try:
            async with asyncio.timeout(parse_duration(lost_after)) as limit:
                while True:
                    tries += 1
                    await self._pace.wait(limit)
                    try:
                        return await self._try(method, path, body)
                    except _Again as again:
                        why = str(again)
                    log.warning(self._event, model=self._name, reason=why, tries=tries, again_in=wait)
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)
        except TimeoutError:
            who = f"{self._kind.replace('_', ' ')} {self._name} at {self._access.url}"
            raise InfrastructureError(f"{who} gave no answer for {lost_after}: {why}") from None

    async def check_serves(self, names: Set[str]) -> list[dict[str, Any]]:
        """What it says of its models. Raises NotServed if none has one of the names, InfrastructureError."""
        try:
            answer = await self.ask("GET", reward_server.MODELS)
        except Rejected as error:
            raise self._not_served(str(error)) from error
        try:
            served = names_of(answer)
        except (KeyError, TypeError, AttributeError):
            raise self._not_served(f"answered {str(answer)[:_SHOWN]}, which names no models") from None
        if not served & names:
            raise self._not_served(f"serves {', '.join(sorted(served)) or 'no model'}")
        models: list[dict[str, Any]] = answer["data"]
        return models

    def _not_served(self, what: str) -> NotServed:
        return NotServed(f"{self._access.url} {what}, not {self._name}; check the server's URL and model")

    async def _try(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise _Again(f"{type(error).__name__} {error}".strip()) from error
        status, text = answer.status_code, answer.text[:_SHOWN]
        if status in _REFUSED:
            raise Rejected(f"rejected it with {status}: {text}")
        if status in _BUSY or (status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED):
            raise _Again(f"it answered {status}: {text}")
        if status != HTTPStatus.OK:
            url = f"{self._access.url}{path}"
            raise NotServed(f"{url} answered {status}: {text}; check the server's URL, model and key")
        try:
            return answer.json()
        except ValueError as error:
            raise _Again(f"its answer is not JSON: {text}") from error


def names_of(answer: Any) -> set[str]:
    """What a server calls its models: their names, folders and the folders' last parts."""
    given = {str(name) for model in answer["data"] for key in ("id", "root") if (name := model.get(key))}
    return given | {PurePath(name).name for name in given}


class _Pace:
    """Spreads requests evenly. limit: requests a minute; None for no limit."""

    def __init__(self, limit: int | None) -> None:
        self._interval, self._next = 60.0 / limit if limit else 0.0, 0.0

    async def wait(self, deadline: asyncio.Timeout) -> None:
        """Until the next request may be sent. The server does not answer for this time, so the deadline moves."""
        if not self._interval:
            return
        now = asyncio.get_running_loop().time()
        at = max(self._next, now)
        self._next = at + self._interval
        deadline.reschedule((deadline.when() or now) + at - now)
        await asyncio.sleep(at - now)
