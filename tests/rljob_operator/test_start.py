"""The operator's start, where KubeRay is installed after it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest

from rljob_operator import main
from rljob_operator.kube import Connection, Kube, NotFound
from rljob_operator.settings import Settings
from rljob_operator.store import Store
from rljob_operator.watches import list_all
from tests.rljob_operator.kube_server import KubeServer, not_found, response
from tests.rljob_operator.loops import in_loop


@in_loop
async def test_a_kind_that_is_not_there_yet_is_named() -> None:
    async with KubeServer() as server, server.connect() as connection:
        none = {"metadata": {"resourceVersion": "7"}, "items": []}
        server.answers += [response((200, none)), response(not_found("/apis/ray.io/v1/rayclusters"))]
        with pytest.raises(NotFound, match=r"no rayclusters of ray\.io/v1 yet: install their CRD"):
            await list_all(Kube(connection), Store())


@in_loop
async def test_kopf_which_looks_but_once_begins_when_all_kinds_are_there() -> None:
    begun = asyncio.Event()

    async def kopf_operator(**_: Any) -> None:
        begun.set()

    parts = SimpleNamespace(
        listed=asyncio.Event(), store=Store(), changed=set[Any], lease=SimpleNamespace(identity="me")
    )
    options = main.Options(Settings(), (), "127.0.0.1:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kopf, "operator", kopf_operator)
        operator, over = cast(main.Operator, parts), asyncio.Event()
        watch = asyncio.create_task(main._watch(operator, cast(Connection, None), options, asyncio.Event(), over))
        await asyncio.sleep(0.1)
        assert not begun.is_set()
        parts.listed.set()
        await watch
    assert begun.is_set()
