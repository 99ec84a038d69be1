"""An API server of a few kinds: versions, preconditions, paging and Status objects as the real one has them.

KubeObjects         in memory; it keeps no field managers: an apply merges
KubeServer          answers from them over HTTP
MemoryConnection    answers from them on the loop's clock, so that a test may take hours of it

tests/e2e/test_kube_client.py asks the real one the same questions.
"""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl

from aiohttp import web
from kubernetes.aio.client import Configuration

from rljob_operator.kube.connection import Answer, Connection, Fence
from rljob_operator.kube.errors import Unavailable
from rljob_operator.kube.kinds import Manifest

REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid"}

Result = tuple[int, Manifest]


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass
class KubeObjects:
    """requests: those whose whole body arrived, in their order."""

    objects: dict[str, Manifest] = field(default_factory=dict)  # by path, such as /api/v1/namespaces/ns/pods/a
    requests: list[Request] = field(default_factory=list)
    _versions: Any = field(default_factory=lambda: itertools.count(100))

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.method != "GET"]

    def put(self, path: str, manifest: Manifest) -> Manifest:
        """As another client's write."""
        version = next(self._versions)
        metadata = {"uid": f"uid-{version}", **manifest.get("metadata", {}), "resourceVersion": str(version)}
        self.objects[path] = {**manifest, "metadata": metadata}
        return self.objects[path]

    def answer(self, request: Request) -> Result:
        result: Result = getattr(self, f"_{request.method.lower()}")(request)
        return result

    def _get(self, request: Request) -> Result:
        if request.path in self.objects:
            return 200, self.objects[request.path]
        return not_found(request.path) if is_object(request.path) else self._list(request)

    def _list(self, request: Request) -> Result:
        folder, _, resource = request.path.rpartition("/")
        inside = [o for p, o in sorted(self.objects.items()) if p.startswith(folder) and f"/{resource}/" in p]
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        more = {"continue": str(start + limit)} if len(inside) > start + limit else {}
        items = [{k: v for k, v in o.items() if k not in ("apiVersion", "kind")} for o in inside[start : start + limit]]
        return 200, {"metadata": {"resourceVersion": "5000", **more}, "items": items}

    def _post(self, request: Request) -> Result:
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            return status(409, f'"{path}" already exists', reason="AlreadyExists")
        return 201, self.put(path, request.body)

    def _patch(self, request: Request) -> Result:
        path = request.path.removesuffix("/status")
        held = self.objects.get(path)
        if request.headers["Content-Type"] == "application/apply-patch+yaml":
            wanted = merged(request.body, {"metadata": {"resourceVersion": None}})
            return 200 if held else 201, self.put(path, merged(held or {}, wanted))
        if held is None:
            return not_found(path)
        if request.body["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
            return status(409, f"the object at {path} has been modified")
        return 200, self.put(path, merged(held, request.body))

    def _delete(self, request: Request) -> Result:
        held = self.objects.get(request.path)
        if held is None:
            return not_found(request.path)
        wanted = request.body["preconditions"]["uid"]
        if wanted != held["metadata"]["uid"]:
            return status(409, f"Precondition failed: UID in precondition: {wanted}")
        del self.objects[request.path]
        return 200, {"kind": "Status", "status": "Success"}


@dataclass
class KubeServer(KubeObjects):
    """answers: given, first to last, before it looks further. Requests wait while the gate is closed."""

    answers: list[web.Response] = field(default_factory=list)
    token: str = "first"
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # the first request is here
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        self.gate.set()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def connect(self, limit: int = 64) -> Connection:
        async def load(configuration: Configuration) -> None:
            configuration.api_key["BearerToken"] = f"Bearer {self.token}"

        configuration = Configuration(host=f"http://127.0.0.1:{self.port}")
        configuration.api_key["BearerToken"] = "Bearer first"
        return Connection(configuration, load, limit=limit)

    async def _handle(self, request: web.Request) -> web.Response:
        content = await request.read()
        body = json.loads(content) if content else None
        told = Request(request.method, request.path, dict(request.query), dict(request.headers), body)
        self.requests.append(told)
        self.arrived.set()
        await self.gate.wait()
        if self.answers:
            return self.answers.pop(0)
        authorized = request.headers.get("Authorization") == f"Bearer {self.token}"
        return response(self.answer(told) if authorized else status(401, "Unauthorized"))


class MemoryConnection(Connection):
    """latency: seconds on the way there, and again on the way back. reachable: whether it is answered at all.
    writing: how many writes have left and not arrived.
    """

    def __init__(self, objects: KubeObjects, latency: float = 0.0) -> None:
        self._objects = objects
        self.latency = latency
        self.reachable = True
        self.writing = 0

    async def read(self, path: str, *, timeout: float) -> Answer:
        place, _, query = path.partition("?")
        return await self._exchange(Request("GET", place, dict(parse_qsl(query))), timeout)

    async def write(
        self, method: str, path: str, body: bytes, content_type: str, *, fence: Fence, timeout: float
    ) -> Answer:  # fmt: skip
        fence()
        headers = {"Content-Type": content_type}
        return await self._exchange(Request(method, path.partition("?")[0], {}, headers, json.loads(body)), timeout)

    async def _exchange(self, request: Request, timeout: float) -> Answer:
        try:
            async with asyncio.timeout(timeout):
                return await self._answered(request)
        except TimeoutError as error:
            raise Unavailable("no answer", reason="Timeout") from error

    async def _answered(self, request: Request) -> Answer:
        self.writing += request.method != "GET"
        try:
            await asyncio.sleep(self.latency if self.reachable else 1e9)
        finally:
            self.writing -= request.method != "GET"
        self._objects.requests.append(request)
        code, manifest = self._objects.answer(request)
        content = json.dumps(manifest).encode()
        await asyncio.sleep(self.latency if self.reachable else 1e9)
        return Answer(code, {}, content)


def is_object(path: str) -> bool:
    """/api/v1/namespaces/ns/pods/a against /api/v1/namespaces/ns/pods, and /api/v1/nodes/a against /api/v1/nodes."""
    rest = path.split("/")[3 if path.startswith("/api/") else 4 :]
    return len(rest[2:] if rest[0] == "namespaces" and len(rest) > 2 else rest) > 1


def not_found(path: str) -> Result:
    return status(404, f'"{path}" not found')


def status(code: int, message: str, reason: str | None = None, **details: Any) -> Result:
    reason = reason or REASONS.get(code, "InternalError")
    told = {"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason}
    return code, told | {"details": details}


def response(result: Result) -> web.Response:
    code, manifest = result
    return web.json_response(manifest, status=code)


def merged(held: Any, patch: Any) -> Any:
    """RFC 7386. Lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(held) if isinstance(held, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
