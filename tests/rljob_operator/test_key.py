"""The operator's key in its Secret."""

import base64
from typing import Any

import pytest

from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import KubeError
from rljob_operator.runtime.key import KEY_BYTES, NAME, operator_key
from tests.rljob_operator.kube_server import KubeObjects, MemoryConnection
from tests.rljob_operator.loops import in_loop

PATH = f"/api/v1/namespaces/ns/secrets/{NAME}"


def encoded(key: bytes) -> dict[str, Any]:
    return {"data": {"key": base64.b64encode(key).decode()}}


async def read(content: dict[str, Any] | None) -> bytes:
    objects = KubeObjects()
    if content is not None:
        objects.put(PATH, content)
    return await operator_key(Kube(MemoryConnection(objects)), "ns")


@in_loop
async def test_a_key_that_exists_is_used_and_a_first_one_is_long_enough() -> None:
    assert await read(encoded(b"k" * KEY_BYTES)) == b"k" * KEY_BYTES
    assert len(await read(None)) == KEY_BYTES


@pytest.mark.parametrize(
    "content",
    [encoded(b"k" * (KEY_BYTES - 1)), encoded(b""), {"data": {"key": "no base64!"}}, {"data": {"other": ""}}, {}],
)
@in_loop
async def test_a_key_that_others_could_guess_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(KubeError) as error:
        await read(content)
    assert error.value.reason == "KeyTooShort"
