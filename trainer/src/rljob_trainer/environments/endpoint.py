"""An OpenAI-compatible endpoint on loopback, whose answers are turns of episodes, each with an address and a key.

    agent ── POST /7/v1/chat/completions, episode 7's key ──> Endpoint ── Asked ──> the episode's inbox ──> Session
          <── the answer ───────────────────────────────────         <── reply ──────────────────────────┘

    POST .../v1/chat/completions, /v1/completions  openai_api.py has their fields; streams, too
    GET  .../v1/models                             one: policy
    POST .../v1/reward                             {"reward": 1.0, "metrics": {...}}: the reward of the episode

Errors have OpenAI's form. 401: not the key of a running episode at this address. 400: the request cannot be answered;
with the code episode_over at a limit of turns or tokens. 503: the episode ended meanwhile. For one thread: the pool's
event loop.
"""

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from rljob_trainer.environments import openai_api as api
from rljob_trainer.environments.session import Over, Refused, Session

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

log = structlog.get_logger()

_LARGEST = 1 << 26
"""Bytes of a request."""

_IDLE_SECONDS = 3600
"""A connection stays open while its agent thinks."""

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a request wants of its episode. ask: a method of the session. reply: its value; cancelled if it gave up."""

    ask: Callable[[Session], Awaitable[Any]]
    reply: "asyncio.Future[Any]"

    def given_up(self, cancel: Callable[[], object]) -> None:
        """Call `cancel` once the client has gone."""
        self.reply.add_done_callback(lambda reply: cancel() if reply.cancelled() else None)


@dataclass(slots=True, eq=False)
class Access:
    """The endpoint of one try of an episode.

    inbox: of the episode. address, key: "" before it is opened. reward, metrics: what a request posted.
    over: a request was refused at a limit.
    """

    inbox: "asyncio.Queue[tuple[Any, ...]]"
    address: str = ""
    key: str = ""
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    over: bool = False
    waiting: "set[asyncio.Future[Any]]" = field(default_factory=set)


class _Wrong(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, code: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.field = status, message, code, field


class Endpoint:
    """The endpoint of a pool. It listens from the first `open` on."""

    def __init__(self) -> None:
        self._accesses: dict[str, Access] = {}  # by address
        self._serving: asyncio.Task[None] | None = None
        self._server: uvicorn.Server | None = None
        self._port = self._answers = self._opened = 0
        self._said: set[str] = set()

    async def open(self, access: Access) -> tuple[str, str]:
        """base_url and api_key for one try of an episode, until `shut`."""
        if self._serving is None:
            self._listen()
        if not access.key:
            self._opened += 1
            access.address, access.key = str(self._opened), secrets.token_urlsafe(32)
            self._accesses[access.address] = access
        return f"http://127.0.0.1:{self._port}/{access.address}/v1", access.key

    def shut(self, access: Access) -> None:
        """Refuse the key from now on; requests that wait end."""
        self._accesses.pop(access.address, None)
        for reply in access.waiting:
            reply.cancel()

    async def close(self) -> None:
        if self._serving is not None and self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving

    # ------------------------------------------------------------------ the server

    def _listen(self) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # signals belong to the process

        def route(path: str, handle: Callable[["Request", Access], Awaitable["Response"]], method: str) -> Route:
            return Route(f"/{{episode}}/v1/{path}", self._guarded(handle), methods=[method])

        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        app = Starlette(
            routes=[
                route("chat/completions", self._chat, "POST"), route("completions", self._complete, "POST"),
                route("models", _models, "GET"), route("reward", self._reward, "POST"),
            ]
        )  # fmt: skip
        self._server = Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11", server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
            )
        )  # fmt: skip
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    def _guarded(
        self, handle: "Callable[[Request, Access], Awaitable[Response]]"
    ) -> "Callable[[Request], Awaitable[Response]]":
        from starlette.responses import JSONResponse

        async def answer(request: "Request") -> "Response":
            try:
                return await handle(request, self._access(request))
            except _Wrong as wrong:
                challenge = {"WWW-Authenticate": "Bearer"} if wrong.status == 401 else None
                content = api.error_answer(wrong.message, wrong.code, wrong.field)
                return JSONResponse(content, wrong.status, challenge)

        return answer

    def _access(self, request: "Request") -> Access:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        access = self._accesses.get(request.path_params["episode"])
        if access is None or kind.lower() != "bearer" or not hmac.compare_digest(key.encode(), access.key.encode()):
            raise _Wrong(401, "this is not the key of a running episode at this address", "invalid_api_key")
        return access

    # ------------------------------------------------------------------ routes

    async def _chat(self, request: "Request", access: Access) -> "Response":
        body = await _body(request, api.ChatRequest)
        try:
            messages = body.plain_messages()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _Wrong(400, f"messages: {error}", "invalid_messages", "messages") from error
        self._say(body.asked_sampling(), body.tool_choice)
        limits, tools = body.turn_limits(), body.offered() or None
        chatted = await self._asked(
            request, access, lambda session: session.chat(messages, tools, limits, whole_calls=True)
        )
        number = self._number()
        if body.stream:
            return _events(api.chat_stream(chatted, number, body))
        return _json(api.chat_answer(chatted, number, body))

    async def _complete(self, request: "Request", access: Access) -> "Response":
        body = await _body(request, api.CompletionRequest)
        self._say(body.asked_sampling(), None)
        prompt, limits = body.one_prompt(), body.turn_limits()
        completed = await self._asked(request, access, lambda session: session.complete(prompt, limits))
        number = self._number()
        if body.stream:
            return _events(api.completion_stream(completed, number, body))
        return _json(api.completion_answer(completed, number, body))

    async def _reward(self, request: "Request", access: Access) -> "Response":
        body = await _body(request, api.RewardRequest)
        access.reward, access.metrics = body.reward, body.metrics
        return _json({"reward": body.reward})

    async def _asked(self, request: "Request", access: Access, ask: Callable[[Session], Awaitable[Any]]) -> Any:
        """What the session answers, unless the client gives up before."""
        reply = asyncio.get_running_loop().create_future()
        gone = asyncio.create_task(_disconnected(request))
        access.waiting.add(reply)
        access.inbox.put_nowait((Asked(ask, reply),))
        try:
            await asyncio.wait([reply, gone], return_when=asyncio.FIRST_COMPLETED)
            reply.cancel()  # no effect on one that is done
            return await reply
        except Over as over:
            access.over = True
            raise _Wrong(400, str(over), "episode_over") from over
        except Refused as refused:
            raise _Wrong(400, str(refused), "refused") from refused
        except asyncio.CancelledError:
            raise _Wrong(503, "the episode has ended", "episode_ended") from None
        finally:
            gone.cancel()
            access.waiting.discard(reply)

    def _number(self) -> int:
        self._answers += 1
        return self._answers

    def _say(self, sampling: list[str], tool_choice: str | None) -> None:
        """Log once what has no effect."""
        names = [*sampling, *(["tool_choice"] if tool_choice == "required" else [])]
        for name in names:
            if name not in self._said:
                self._said.add(name)
                reason = "the policy cannot be forced to call" if name == "tool_choice" else "spec.rollout decides it"
                log.warning("request_field_without_effect", name=name, reason=reason)


async def _models(_request: "Request", _access: Access) -> "Response":
    return _json(api.models_answer())


async def _body(request: "Request", kind: type[Body]) -> Body:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _LARGEST:
            raise _Wrong(413, f"the request has more than {_LARGEST} bytes", "too_large")
    try:
        return kind.model_validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        raise _Wrong(400, f"{field or 'body'}: {first['msg']}", "unsupported_request", field) from error


async def _disconnected(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(content: Any) -> "Response":
    from starlette.responses import JSONResponse

    return JSONResponse(content)


def _events(chunks: Iterator[Any]) -> "Response":
    from starlette.responses import StreamingResponse

    async def lines() -> AsyncIterator[str]:
        for chunk in chunks:
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
