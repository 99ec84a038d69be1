"""How the operator's two clients reach the world: what they expect of HTTP, each call over the wire."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from rljob_operator.kube.connection import Answer, Fence
from rljob_operator.kube.errors import Unavailable
from rljob_operator.kube.kinds import KINDS, Key, Kind, Manifest
from tests.rljob_operator.world.api_server import ApiServer, Refusal
from tests.rljob_operator.world.heads import Heads, Unreachable
from tests.rljob_operator.world.wire import REFUSALS, Call, Wire


class Connection:
    """What rljob_operator.kube.Connection offers to a Kube. deleted: told the uid of each object that is deleted."""

    def __init__(self, wire: Wire, server: ApiServer, deleted: Callable[[str], None]) -> None:
        self._wire, self._server, self._deleted = wire, server, deleted

    async def read(self, path: str, *, timeout: float) -> Answer:
        return await self._send("GET", path, b"{}", "")

    async def write(
        self, method: str, path: str, body: bytes, content_type: str, *, fence: Fence, timeout: float
    ) -> Answer:  # fmt: skip
        fence()
        return await self._send(method, path, body, content_type)

    async def _send(self, method: str, url: str, body: bytes, content_type: str) -> Answer:
        place, content = _Place.of(url), json.loads(body)
        verb = "APPLY" if "apply" in content_type else method
        return await self._wire.send(
            Call(f"{verb.lower()} {place.kind}{' status' if place.subresource else ''}", method != "GET"),
            lambda: self._answer(verb, place, content),
            lambda: Unavailable("the connection was closed", reason="NoConnection"),
            lambda fate: _status(Refusal(*REFUSALS[fate], "so it was fated")),
        )

    def _answer(self, verb: str, place: "_Place", body: Manifest) -> Answer:
        try:
            return _json(200, self._handle(verb, place, body))
        except Refusal as refusal:
            return _status(refusal)

    def _handle(self, verb: str, place: "_Place", body: Manifest) -> Manifest:
        key = Key(place.namespace, place.name)
        if place.namespace in self._server.closed:
            raise Refusal(403, "Forbidden", f'{place.kind.plural} is forbidden in the namespace "{place.namespace}"')
        if place.kind in self._server.absent:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if verb == "GET" and not place.name:
            items = [each for each in self._server.all(place.kind) if _selects(place.label, each)]
            items = [each for each in items if place.namespace in ("", Key.of(each).namespace)]
            items = [each for each in items if place.only in (None, each["metadata"]["name"])]
            return {"metadata": {"resourceVersion": str(self._server.version)}, "items": items}
        if verb == "GET":
            return self._server.get(place.kind, key)
        if verb == "POST":
            return self._server.create(body)
        if verb == "APPLY":
            return self._server.apply(body)
        if verb == "PATCH":
            return self._server.patch(place.kind, key, body, place.subresource)
        return self._delete(place.kind, key, body)

    def _delete(self, kind: Kind, key: Key, options: Manifest) -> Manifest:
        held = self._server.get(kind, key)
        wanted = options.get("preconditions", {}).get("uid", held["metadata"]["uid"])
        if wanted != held["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"Precondition failed: UID in precondition: {wanted}")
        self._deleted(held["metadata"]["uid"])
        self._server.delete(held, propagation=options["propagationPolicy"])
        return {"kind": "Status", "status": "Success"}


@dataclass(frozen=True)
class _Place:
    """/apis/ray.io/v1/namespaces/team/rayclusters/job/status?labelSelector=..."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str | None = None
    label: str | None = None
    only: str | None = None

    @classmethod
    def of(cls, url: str) -> "_Place":
        parts = urlsplit(url)
        rest = parts.path.strip("/").split("/")
        rest = rest[2:] if rest[0] == "api" else rest[3:]
        namespace, rest = (rest[1], rest[2:]) if rest[0] == "namespaces" else ("", rest)
        kind = next(kind for kind in KINDS.values() if (kind.plural, kind.api_version in url) == (rest[0], True))
        name, subresource = (*rest[1:], *("", "")[len(rest) - 1 :])[:2]
        query = parse_qs(parts.query)
        label, field = (query.get(each, [None])[0] for each in ("labelSelector", "fieldSelector"))
        return cls(kind, namespace, name, subresource or None, label, field and field.removeprefix("metadata.name="))


class Session:
    """What aiohttp.ClientSession offers to the clients of head pods."""

    def __init__(self, wire: Wire, heads: Heads) -> None:
        self._wire, self._heads = wire, heads

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *,
        params: Mapping[str, str] | None, json: Any, headers: Mapping[str, str], **_: Any,
    ) -> AsyncIterator["_Response"]:  # fmt: skip
        def effect() -> _Response:
            try:
                return _Response(*self._heads.answer(method, url, dict(params or {}), json, headers["Authorization"]))
            except Unreachable as error:
                raise aiohttp.ClientConnectionError(str(error)) from error

        closed = aiohttp.ServerDisconnectedError
        call = Call(f"{method.lower()} {urlsplit(url).path}", method == "POST", kube=False)
        yield await self._wire.send(call, effect, closed, lambda fate: _Response(500, {"error": "so it was fated"}))


class _Response:
    def __init__(self, status: int, content: Any) -> None:
        self.status, self._content = status, content
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield json.dumps(self._content).encode()


def _selects(label: str | None, manifest: Manifest) -> bool:
    """label: a name, or name=value."""
    if label is None:
        return True
    name, _, value = label.partition("=")
    found = _labels(manifest).get(name)
    return found is not None and value in ("", found)


def _labels(manifest: Manifest) -> Mapping[str, str]:
    labels: Mapping[str, str] = manifest["metadata"].get("labels", {})
    return labels


def _json(status: int, content: Manifest) -> Answer:
    return Answer(status, {}, json.dumps(content).encode())


def _status(refusal: Refusal) -> Answer:
    told: Manifest = {"kind": "Status", "status": "Failure", "message": refusal.message, "reason": refusal.reason}
    if refusal.cause:
        told["details"] = {"causes": [{"reason": refusal.cause}]}
    return _json(refusal.code, told)
