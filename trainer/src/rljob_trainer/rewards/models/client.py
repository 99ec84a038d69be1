"""The client of one reward model's server. It retries failures, which never become a reward.

200                         an answer, with or without a score
400, 413, 422               the server rejects this text, for example because it is too long: Unscored
408, 429, 5xx, no answer    retried with backoff for at most lostAfter, then InfrastructureError
501, any other              RewardError: this server does not serve the model
"""

import asyncio
import os
from http import HTTPStatus
from typing import Any

import httpx
import structlog

from rljob_api.durations import parse_duration
from rljob_api.v1alpha1 import RewardModel
from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.models.formats import Format, Unscored, format_of
from rljob_trainer.rewards.models.key import read_key
from rljob_trainer.rewards.policy import Component
from rljob_trainer.types import Task

log = structlog.get_logger()

CONCURRENCY = 64
"""Concurrent requests for each server, which vLLM batches."""

FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds between two tries; doubles up to the second value."""

CONNECT_SECONDS = 5.0

_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BUSY = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_SHOWN = 300


class _Again(Exception):
    """Why the request should be sent again."""


class ModelClient:
    """Scores of one model. url: of its server. field: its field in the spec. Use it in one event loop.

    Raises:
        RewardError: scorePattern is invalid.
        JobError: its key is missing.
    """

    def __init__(self, model: RewardModel, url: str, field: str) -> None:
        self.component, self.weight = Component(model.name, field), model.weight
        self._url, self._lost_after = url, model.lost_after
        self._format: Format = format_of(model, field)
        self._room = asyncio.Semaphore(CONCURRENCY * model.replicas)
        self._pace = _Pace(model.rate_limit)
        timeout = httpx.Timeout(parse_duration(model.timeout), connect=CONNECT_SECONDS, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(
            base_url=url, headers=_authorization(read_key(model, field, os.environ)),
            timeout=timeout, limits=limits, trust_env=False,
        )  # fmt: skip

    async def score(self, task: Task, response: str) -> float:
        """The score of one response.

        Raises:
            Unscored: the answer has no score.
            InfrastructureError: no answer within lostAfter.
            RewardError: the server does not serve this model.
        """
        body = self._format.request(task, response)
        async with self._room:
            answer = await self._ask(body)
        return self._format.score(answer)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, body: dict[str, Any]) -> Any:
        wait, tries, why = FIRST_WAIT, 0, "no answer"
        try:
            async with asyncio.timeout(parse_duration(self._lost_after)) as limit:
                while True:
                    tries += 1
                    await self._pace.wait(limit)
                    try:
                        return await self._try(body)
                    except _Again as again:
                        why = str(again)
                    log.warning(
                        "reward_model_retried", model=self.component.name, reason=why, tries=tries, again_in=wait
                    )
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)
        except TimeoutError:
            message = f"reward model {self.component.name} at {self._url} gave no answer for {self._lost_after}: {why}"
            raise InfrastructureError(message) from None

    async def _try(self, body: dict[str, Any]) -> Any:
        try:
            answer = await self._http.post(self._format.path, json=body)
        except httpx.TransportError as error:
            raise _Again(f"{type(error).__name__} {error}".strip()) from error
        status, text = answer.status_code, answer.text[:_SHOWN]
        if status in _REFUSED:
            raise Unscored(f"rejected it with {status}: {text}")
        if status in _BUSY or (status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED):
            raise _Again(f"it answered {status}: {text}")
        if status != HTTPStatus.OK:
            message = f"{self._url}{self._format.path} answered {status}: {text}; check the server's URL, model and key"
            raise RewardError(message, field=self.component.field)
        try:
            return answer.json()
        except ValueError as error:
            raise _Again(f"its answer is not JSON: {text}") from error


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


def _authorization(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}
