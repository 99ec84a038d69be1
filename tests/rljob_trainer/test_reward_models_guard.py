"""No request without the job's key reaches a reward model, whatever its path."""

import asyncio
from typing import Any

import pytest

from rljob_trainer.rewards.models.guard import KeyGuard

HTTP: dict[str, Any] = {"type": "http", "path": "/pooling", "headers": []}
KEYED = {**HTTP, "headers": [(b"authorization", b"Bearer sesame")]}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "without a key": (HTTP, "401"),
    "another key": ({**HTTP, "headers": [(b"authorization", b"Bearer other")]}, "401"),
    "the key": (KEYED, "served"),
    "a path of vLLM's own check": ({**HTTP, "path": "/v1/models"}, "401"),
    "a path like the open one": ({**HTTP, "path": "/health/x"}, "401"),
    "a probe": ({**HTTP, "path": "/health"}, "served"),
    "a websocket": ({**HTTP, "type": "websocket"}, "websocket.close"),
    "the server's own life": ({"type": "lifespan"}, "served"),
}


def _answer(scope: dict[str, Any]) -> str:
    found: list[str] = []

    async def app(*_: Any) -> None:
        found.append("served")

    async def send(message: Any) -> None:
        found.append(str(message.get("status", message["type"])))

    async def receive() -> Any: ...

    asyncio.run(KeyGuard(app)(scope, receive, send))
    return found[0]


@pytest.mark.parametrize(("scope", "answer"), CASES.values(), ids=CASES)
def test_only_who_has_the_key_is_served(scope: dict[str, Any], answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    assert _answer(scope) == answer


def test_without_a_key_all_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert _answer(HTTP) == "served"
