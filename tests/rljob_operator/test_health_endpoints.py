from functools import partial

import aiohttp
import pytest

from rljob_operator.runtime.health import CannotListen, serve
from rljob_operator.runtime.metrics import CONTENT_TYPE, Metrics
from tests.rljob_operator.loops import in_loop


@in_loop
async def test_each_endpoint_answers_from_its_own_checks() -> None:
    state = {"queue": True, "watches": False}
    async with (
        serve(
            "127.0.0.1:0",
            healthy={"queue": lambda: state["queue"]},
            ready={"watches": lambda: state["watches"]},
            metrics=Metrics().exposition,
            content_type=CONTENT_TYPE,
        ) as url,
        aiohttp.ClientSession(url) as session,
    ):

        async def ask(path: str) -> tuple[int, object]:
            async with session.get(path) as answer:
                return answer.status, await answer.json()

        assert await ask("/healthz") == (200, {"failed": []})
        assert await ask("/readyz") == (503, {"failed": ["watches"]})
        state |= {"queue": False, "watches": True}
        assert await ask("/healthz") == (503, {"failed": ["queue"]})
        assert await ask("/readyz") == (200, {"failed": []})

        async with session.get("/metrics") as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert "rljob_operator_leader" in await answer.text()


@in_loop
async def test_an_address_that_is_taken_is_named() -> None:
    serving = partial(serve, healthy={}, ready={}, metrics=bytes, content_type=CONTENT_TYPE)
    async with serving("127.0.0.1:0") as url:
        for address in (url.removeprefix("http://"), "127.0.0.1:99999"):
            with pytest.raises(CannotListen, match="choose another address or port"):
                async with serving(address):
                    pass
    async with serving(url.removeprefix("http://")):
        """It is free again."""
