"""What a ServiceAccount is allowed to do, by its roles, and what it did, by the API server's audit log."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

CREATED = 201


@dataclass(frozen=True, order=True)
class Call:
    """One request for an object or a list. resource: such as rljobs.rljob.dev/status."""

    verb: str
    resource: str
    namespace: str
    name: str
    allowed: bool


@dataclass(frozen=True, order=True)
class Right:
    """namespace: empty for all of them. name: of the only object; empty for all of them."""

    verb: str
    resource: str
    namespace: str
    name: str

    def covers(self, call: Call) -> bool:
        return (
            (self.verb, self.resource) == (call.verb, call.resource)
            and self.namespace in ("", call.namespace)
            and self.name in ("", call.name)
        )


def calls(audit_log: Path, user: str) -> set[Call]:
    """What the user asked for. To make an object by server-side apply is to patch and to create."""
    return {call for line in audit_log.open() for call in _calls(json.loads(line), user)}


def _calls(event: dict[str, Any], user: str) -> Iterator[Call]:
    target = event.get("objectRef")
    if event["user"].get("username") != user or target is None:  # a refused token has no name
        return
    resource = _resource(target.get("apiGroup", ""), target["resource"], target.get("subresource"))
    code = event.get("responseStatus", {}).get("code")
    for verb in (event["verb"], "create") if (event["verb"], code) == ("patch", CREATED) else (event["verb"],):
        yield Call(verb, resource, target.get("namespace", ""), target.get("name", ""), code != 403)


def granted(objects: Iterable[dict[str, Any]], account: str) -> set[Right]:
    """By the roles among these objects that their bindings give to the ServiceAccount of that name."""
    objects = list(objects)
    roles = {_identity(each): each for each in objects if each["kind"] in ("Role", "ClusterRole")}
    found: set[Right] = set()
    for binding in objects:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding") and _binds(binding, account):
            namespace = binding["metadata"].get("namespace", "")
            kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
            role = roles[kind, "" if kind == "ClusterRole" else namespace, name]
            found |= {right for rule in role["rules"] for right in _rights(rule, namespace)}
    return found


def _identity(role: dict[str, Any]) -> tuple[str, str, str]:
    return role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]


def _binds(binding: dict[str, Any], account: str) -> bool:
    return any(each["kind"] == "ServiceAccount" and each["name"] == account for each in binding["subjects"])


def _rights(rule: dict[str, Any], namespace: str) -> Iterator[Right]:
    names = rule.get("resourceNames", [""])
    for group, path, verb, name in product(rule["apiGroups"], rule["resources"], rule["verbs"], names):
        resource, _, subresource = path.partition("/")
        yield Right(verb, _resource(group, resource, subresource), namespace, name)


def _resource(group: str, resource: str, subresource: str | None) -> str:
    return ".".join(filter(None, (resource, group))) + (f"/{subresource}" if subresource else "")


def missing(rights: Iterable[Right], asked: Iterable[Call]) -> list[Call]:
    """Calls that were refused, or that some other role allows."""
    rights = list(rights)
    return sorted(call for call in asked if not call.allowed or not any(right.covers(call) for right in rights))


def unused(rights: Iterable[Right], asked: Iterable[Call]) -> list[Right]:
    asked = list(asked)
    return sorted(right for right in rights if not any(right.covers(call) for call in asked))
