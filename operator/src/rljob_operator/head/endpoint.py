"""One HTTP server of a head pod: deadline, token, errors, and validated answers.

Users' code runs beside these servers, so nothing that they answer is trusted: its size, its redirects, its JSON.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from pydantic import TypeAdapter, ValidationError

from rljob_operator.head.errors import HeadRefused, HeadUnreachable

DEADLINE_SECONDS = 5.0

ANSWER_BYTES = 1 << 20
"""Size of the longest answer that is read; parsing one takes a tenth of a second at most. Four thousand checkpoints
fit, for each of which an agent reads a file within the deadline. Ray's answers are far shorter."""

QUOTED_CHARACTERS = 400

T = TypeVar("T")


def shared_session() -> aiohttp.ClientSession:
    """For the calls of all heads. A head that hangs takes no connection from others, and no cookie of one reaches
    another: a head may set some for the domain that all of them are in.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """name: what messages call the server. url: without a slash at its end. deadline: of one call, in seconds."""

    session: aiohttp.ClientSession
    name: str
    url: str
    token: str = field(repr=False)
    deadline: float = DEADLINE_SECONDS

    async def call(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> bytes:  # fmt: skip
        """The body of a 2xx answer. Raises HeadUnreachable or HeadRefused for everything else."""
        try:
            async with asyncio.timeout(self.deadline):
                status, content = await self._exchange(method, path, params, body)
        except TimeoutError as error:
            raise HeadUnreachable(f"{self.name} gave no answer within {self.deadline:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise HeadUnreachable(f"{self.name} cannot be reached: {str(error) or type(error).__name__}") from error
        if 200 <= status < 300:
            return content
        answer = content.decode(errors="replace")
        failure = HeadUnreachable if status >= 500 else HeadRefused
        raise failure(f"{self.name} answered {status}: {_words(answer)}", status=status, answer=answer)

    async def _exchange(self, method: str, path: str, params: Mapping[str, str] | None, body: Any) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.session.request(
            method, self.url + path, params=params, json=body, headers=headers, allow_redirects=False
        ) as response:
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > ANSWER_BYTES:
                    raise HeadRefused(f"{self.name} answered with more than {ANSWER_BYTES} bytes")
            return response.status, bytes(content)

    def parse(self, adapter: TypeAdapter[T], content: bytes) -> T:
        """The answer as an object; fields that only a newer server knows are ignored."""
        try:
            return adapter.validate_python(_decode(content), extra="ignore")
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False)[0]
            what = ": ".join([".".join(map(str, problem["loc"])) or "it", problem["msg"]])
            raise HeadRefused(f"{self.name} gave an answer that is not understood: {what}") from error
        except ValueError as error:
            raise HeadRefused(f"{self.name} gave an answer that is not JSON: {error}") from error


def _decode(content: bytes | str) -> Any:
    """Raises ValueError for invalid JSON, and for numbers that JSON cannot write again."""
    try:
        return json.loads(content, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:QUOTED_CHARACTERS]} is not a number")


def _words(answer: str) -> str:
    """The server's message. A traceback has it at its end."""
    try:
        value = _decode(answer)
    except ValueError:
        value = None
    found = value.get("error", value.get("message")) if isinstance(value, dict) else None
    text = " ".join((found if isinstance(found, str) else answer).split())
    return text if len(text) <= QUOTED_CHARACTERS else f"... {text[-QUOTED_CHARACTERS:]}"
