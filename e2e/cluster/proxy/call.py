"""What a request asks of the API server, in the terms of RBAC."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}

_OF_A_COLLECTION = {"get": "list", "delete": "deletecollection"}

_OF_NAMESPACES = {"status", "finalize"}


@dataclass
class Call:
    """One request.

    resource: with the subresource, as in rljobs/status; "" for a path that names none, such as /version.
    status: the API server's answer, whether or not the caller got it; None before it, or where it was not asked.
    injected: a fault struck. at: when it came, in seconds of the monotonic clock.
    """

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    path: str
    status: int | None = None
    injected: bool = False
    at: float = field(default_factory=time.monotonic)

    @property
    def writes(self) -> bool:
        return self.verb in WRITES and bool(self.resource)


def parse(method: str, path: str, query: Mapping[str, str]) -> Call:
    match path.strip("/").split("/"):
        case ["api", _, *rest] if rest:
            group = ""
        case ["apis", group, _, *rest] if rest:
            pass
        case _:
            return Call(method.lower(), "", "", "", "", path)
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in _OF_NAMESPACES:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource, *_ = [*rest, "", ""]
    verb = _VERBS.get(method, method.lower())
    if not name:
        verb = _OF_A_COLLECTION.get(verb, verb)
    if query.get("watch", "false").lower() in {"true", "1"}:
        verb = "watch"
    return Call(verb, group, f"{resource}/{subresource}".rstrip("/"), namespace, name, path)
