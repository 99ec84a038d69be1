"""The calls of the API server that the operator makes: raw JSON in and out, and no retries.

    apply           server-side apply of the operator's fields, to the object with this uid or to a new one
    create          only if the name is free
    delete          only the object with this uid
    patch_*         only if the object is still at this resourceVersion
    get, list       what etcd holds now

So a write is harmless if it is late or repeated. The caller tries again: a queue, with backoff.
"""

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from rljob_operator.kube.connection import Answer, Connection, Fence
from rljob_operator.kube.errors import AlreadyExists, Conflict, Invalid, KubeError, NotFound, Unavailable, error_from
from rljob_operator.kube.events import Event
from rljob_operator.kube.kinds import Kind, Manifest, Ref

FIELD_MANAGER = "rljob-operator"
PAGE = 500

_METHODS = {"apply": "PATCH", "create": "POST", "delete": "DELETE", "patch": "PATCH"}
_JSON, _APPLY, _MERGE_PATCH = "application/json", "application/apply-patch+yaml", "application/merge-patch+json"
_OF_NO_OBJECT = "1"
"""A resourceVersion that means a new object, or Conflict. etcd begins to count above it."""

_NO_QUERY: Mapping[str, str] = {}

Observer = Callable[[str, str, str, float], None]
"""Called after each call: verb, resource, the answer's status or why there was none, seconds."""


_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML reads as a line's end, or refuses."""


class Listing(NamedTuple):
    items: list[Manifest]
    resource_version: str


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True)
class Kube:
    """Every method raises KubeErrors.

    fence: called right before each write goes out. `dataclasses.replace(kube, fence=...)` shares the connections.
    timeout: seconds that one request may take, with its wait for a free connection. A list is one request a page.
    """

    connection: Connection
    fence: Fence = field(default=_nothing, kw_only=True)
    observe: Observer = field(default=_nothing, kw_only=True)
    timeout: float = field(default=10.0, kw_only=True)

    async def apply(self, manifest: Manifest, uid: str = "") -> Manifest:
        """uid: of the object to change; raises Conflict if it is gone, or another has its name. Without one it creates
        the object, and raises AlreadyExists if the name is taken: to apply to that would be to take it over.
        """
        ref, query = Ref.of(manifest), {"fieldManager": FIELD_MANAGER, "force": "true"}
        condition = {"uid": uid} if uid else {"resourceVersion": _OF_NO_OBJECT}
        asked = {**manifest, "metadata": {**manifest["metadata"], **condition}}
        try:
            return await self._write("apply", ref.kind, ref.path(), asked, _APPLY, query)
        except Conflict as error:
            if uid or f"on {ref.kind.plural}" not in error.message:  # a quota's, for one
                raise
            raise AlreadyExists(f"{ref} exists already", status=error.status, reason="AlreadyExists") from error
        except Invalid as error:
            if "metadata.uid" not in error.fields:
                raise
            raise Conflict(f"another object has become {ref}", status=error.status, reason="Conflict") from error

    async def create(self, manifest: Manifest, warned: Callable[[str], None] = _nothing) -> Manifest:
        """warned: called with the API server's warning about each field that it does not know and leaves out."""
        ref = Ref.of(manifest)
        path, query = ref.kind.path(ref.namespace), {"fieldManager": FIELD_MANAGER, "fieldValidation": "Warn"}
        return await self._write("create", ref.kind, path, manifest, _JSON, query, warned)

    async def delete(self, ref: Ref, grace_period: int | None = None) -> None:
        """Its dependents go with it, later. An object that is gone, or replaced by another, counts as deleted.

        grace_period: seconds, instead of the object's own.
        """
        if not ref.uid:
            raise ValueError(f"deleting {ref} takes its uid")
        options: Manifest = {"preconditions": {"uid": ref.uid}, "propagationPolicy": "Background"}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        try:
            await self._write("delete", ref.kind, ref.path(), options)
        except NotFound:
            return
        except Conflict:
            if await self._exists(ref):
                raise

    async def patch(self, ref: Ref, resource_version: str, patch: Manifest, subresource: str | None = None) -> Manifest:
        """JSON merge patch: null removes a field, a list replaces the list. Raises Conflict if the object changed."""
        metadata = {**patch.get("metadata", {}), "resourceVersion": resource_version}
        path, query = ref.path(subresource), {"fieldManager": FIELD_MANAGER}
        return await self._write("patch", ref.kind, path, {**patch, "metadata": metadata}, _MERGE_PATCH, query)

    async def patch_status(self, ref: Ref, resource_version: str, patch: Manifest) -> Manifest:
        """patch: what changes within the status."""
        return await self.patch(ref, resource_version, {"status": patch}, "status")

    async def patch_metadata(self, ref: Ref, resource_version: str, patch: Manifest) -> Manifest:
        """patch: what changes within the metadata, such as the whole list of finalizers."""
        return await self.patch(ref, resource_version, {"metadata": patch})

    async def get(self, ref: Ref) -> Manifest:
        """Raises NotFound also if the name belongs to another uid."""
        found = await self._read("get", ref.kind, ref.path())
        if ref.uid and found["metadata"]["uid"] != ref.uid:
            raise NotFound(f"{ref} with the uid {ref.uid} is gone", status=404, reason="NotFound")
        return found

    async def list(
        self, kind: Kind, namespace: str | None = None, label_selector: str | None = None, name: str | None = None
    ) -> Listing:
        """All of them at one moment, which is the resource_version, without managedFields, which are half of most
        objects. name: of the only one to list.
        """
        # Page by page and consistent. resourceVersion=0 would be neither, and is no cheaper: since Kubernetes 1.34 the
        # watch cache answers these too.
        query = {"limit": str(PAGE)} | ({"labelSelector": label_selector} if label_selector else {})
        query |= {"fieldSelector": f"metadata.name={name}"} if name else {}
        path, items = kind.path(namespace), []
        while True:
            page = await self._read("list", kind, path, query)
            # Built-in kinds leave their names out in lists.
            for item in page["items"]:
                item["metadata"].pop("managedFields", None)
                items.append({**item, "apiVersion": kind.api_version, "kind": kind.name})
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return Listing(items, metadata["resourceVersion"])
            query["continue"] = metadata["continue"]

    async def post_event(self, event: Event) -> None:
        """Once, even if it is called again."""
        with suppress(AlreadyExists):
            await self.create(event.manifest())

    async def _exists(self, ref: Ref) -> bool:
        """By a list, which takes no right that watching does not."""
        found = await self.list(ref.kind, ref.namespace, name=ref.name)
        return ref.uid in (each["metadata"]["uid"] for each in found.items)

    async def _read(self, verb: str, kind: Kind, path: str, query: Mapping[str, str] = _NO_QUERY) -> Manifest:
        return await self._call(verb, kind, self.connection.read(_url(path, query), timeout=self.timeout))

    async def _write(
        self, verb: str, kind: Kind, path: str, body: Manifest, content_type: str = _JSON,
        query: Mapping[str, str] = _NO_QUERY, warned: Callable[[str], None] = _nothing,
    ) -> Manifest:  # fmt: skip
        content, url = _written(body), _url(path, query)
        sent = self.connection.write(_METHODS[verb], url, content, content_type, fence=self.fence, timeout=self.timeout)
        return await self._call(verb, kind, sent, warned)

    async def _call(
        self, verb: str, kind: Kind, sent: Awaitable[Answer], warned: Callable[[str], None] = _nothing
    ) -> Manifest:  # fmt: skip
        started, code = time.perf_counter(), "Cancelled"
        try:
            answer = await sent
            code = str(answer.status)
            if answer.status >= 300:
                raise error_from(answer.status, answer.headers, answer.body)
            found = _object(answer.body)
        except KubeError as error:
            code = str(error.status or error.reason)
            error.asked = f"{verb} {kind.name}"
            raise
        finally:
            self.observe(verb, kind.plural, code, time.perf_counter() - started)
        for each in answer.warnings:
            if each.startswith("unknown field"):
                warned(each)
        return found


def _url(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _written(body: Manifest) -> bytes:
    """As JSON that is YAML too, as which server-side apply reads it: that knows no pairs of escapes for one character,
    and takes some characters only as escapes.
    """
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode(errors="replace")


def _object(body: bytes) -> Manifest:
    try:
        found: Manifest = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unavailable("the answer is not JSON; check that this is the API server", reason="NoJSON") from error
    return found
