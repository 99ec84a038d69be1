"""Middleware of a reward model's server: no request without the job's key. Light: vLLM imports it by its name.

vLLM's own check guards /v1 alone, and classifiers are asked elsewhere.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

OPEN = ("/health",)
"""For probes, which have no key."""


class KeyGuard:
    """ASGI middleware. Without VLLM_API_KEY it lets everything through, as vLLM does."""

    def __init__(self, app: App) -> None:
        self._app, self._key = app, os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"this needs the job's key as Authorization: Bearer"})

    def _knows(self, scope: Mapping[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return not self._key or hmac.compare_digest(given, f"Bearer {self._key}".encode())
