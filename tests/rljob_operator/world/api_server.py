"""An API server without HTTP: versions, preconditions, finalizers, graceful deletion, server-side apply.

It keeps no field managers but ours: what the last apply named and this one does not is removed. Whoever watches is told
of every change, in order. Objects are never changed in place, so who holds one may keep it.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from rljob_operator.kube.kinds import (
    DEPLOYMENT,
    KINDS,
    POD,
    RAY_CLUSTER,
    RLJOB,
    VOLUME_CLAIM,
    WORKLOAD,
    Key,
    Kind,
    Manifest,
)
from tests.rljob_operator.kube_server import merged
from tests.rljob_operator.world.clock import now, stamp

FOREGROUND = "foregroundDeletion"

_WITH_STATUS = (RLJOB, RAY_CLUSTER, DEPLOYMENT, WORKLOAD)
"""Kinds whose status has a path of its own here; writes to the object leave it alone."""

_POD_SECONDS = 30
"""What a pod has to end in, where nobody says."""

Watcher = Callable[[Kind, str, Manifest], None]


class Refusal(Exception):
    """An answer other than 2xx. cause: its first cause, for programs."""

    def __init__(self, code: int, reason: str, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.cause = code, reason, message, cause


class ApiServer:
    """closed: namespaces in which the operator may do nothing, not even look. leaving: those that are being deleted.
    absent: kinds that are not installed. forced: uids of objects of which a person removed the finalizers.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, Key], Manifest] = {}
        self.watchers: list[Watcher] = []
        self.version = 100
        self.closed: set[str] = set()
        self.leaving: set[str] = set()
        self.absent: set[Kind] = set()
        self.forced: set[str] = set()
        self._numbers = count(1)
        self._applied: dict[str, Manifest] = {}  # by uid

    # ---- reads

    def find(self, kind: Kind, key: Key) -> Manifest | None:
        return self.objects.get((kind, key))

    def get(self, kind: Kind, key: Key) -> Manifest:
        found = self.find(kind, key)
        if found is None:
            raise Refusal(404, "NotFound", f"{kind} {key} not found")
        return found

    def all(self, kind: Kind) -> list[Manifest]:
        return [manifest for (each, _), manifest in self.objects.items() if each == kind]

    def owned_by(self, uid: str) -> list[Manifest]:
        return [each for each in self.objects.values() if uid in owners(each)]

    # ---- writes

    def create(self, manifest: Manifest) -> Manifest:
        kind, key = kind_of(manifest), Key.of(manifest)
        if (kind, key) in self.objects:
            raise Refusal(409, "AlreadyExists", f"{kind} {key} already exists")
        if key.namespace in self.leaving:
            words = f"{kind} {key} is forbidden: unable to create new content: its namespace is being terminated"
            raise Refusal(403, "Forbidden", words, "NamespaceTerminating")
        metadata = manifest["metadata"] | {
            "uid": f"{next(self._numbers):08x}-{kind.plural}", "generation": 1, "creationTimestamp": stamp(now()),
        }  # fmt: skip
        return self._save("ADDED", kind, {**manifest, "metadata": metadata})

    def apply(self, manifest: Manifest) -> Manifest:
        kind, key = kind_of(manifest), Key.of(manifest)
        held = self.find(kind, key)
        asked = {name: manifest["metadata"].get(name) for name in ("uid", "resourceVersion")}
        manifest = {
            **manifest,
            "metadata": {name: manifest["metadata"][name] for name in manifest["metadata"] if name not in asked},
        }
        if held is not None and asked["resourceVersion"] not in (None, held["metadata"]["resourceVersion"]):
            raise Refusal(409, "Conflict", f"Operation cannot be fulfilled on {kind.plural}: it has been modified")
        if held is not None and asked["uid"] not in (None, held["metadata"]["uid"]):
            raise Refusal(409, "Conflict", f"{kind} {key} has another uid")
        if held is not None and kind == VOLUME_CLAIM and held["spec"]["accessModes"] != manifest["spec"]["accessModes"]:
            raise Refusal(422, "Invalid", f"{kind} {key.name} is invalid: spec: Forbidden: spec is immutable")
        if held is None:
            if asked["uid"]:
                raise Refusal(409, "Conflict", f"{kind} {key} with that uid does not exist")
            after = self.create(manifest)
        else:
            kept = without(held, self._applied.get(held["metadata"]["uid"], {}), manifest)
            after = self._update(kind, held, merged(kept, manifest))
        self._applied[after["metadata"]["uid"]] = manifest
        return after

    def patch(self, kind: Kind, key: Key, patch: Manifest, subresource: str | None = None) -> Manifest:
        """patch: an RFC 7386 merge patch; its resourceVersion, if any, must be the object's."""
        held = self.get(kind, key)
        if patch.get("metadata", {}).get("resourceVersion") not in (None, held["metadata"]["resourceVersion"]):
            raise Refusal(409, "Conflict", f"{kind} {key} has been modified; apply your changes to the latest version")
        if subresource == "status":
            return self._update(kind, held, {**held, "status": merged(held.get("status", {}), patch["status"])})
        own = ("status",) if kind in _WITH_STATUS else ()
        return self._update(kind, held, merged(held, {name: patch[name] for name in patch if name not in own}))

    def delete(self, held: Manifest, *, propagation: str = "Background", grace: int | None = None) -> None:
        """With finalizers, and of pods that run, only the beginning: others finish it."""
        kind, metadata = kind_of(held), held["metadata"]
        foreground = [FOREGROUND] if propagation == "Foreground" else []
        finalizers = [*metadata.get("finalizers", ()), *foreground]
        graceful = kind == POD and held["spec"].get("nodeName") is not None and grace != 0
        if not (finalizers or graceful):
            self._remove(kind, held)
        elif "deletionTimestamp" not in metadata:
            begun = {"deletionTimestamp": stamp(now()), "generation": metadata["generation"] + 1}
            seconds = {"deletionGracePeriodSeconds": _POD_SECONDS if grace is None else grace} if graceful else {}
            self._update(kind, held, merged(held, {"metadata": begun | seconds | {"finalizers": finalizers}}))
        elif graceful and grace is not None and grace < metadata["deletionGracePeriodSeconds"]:
            self._update(kind, held, merged(held, {"metadata": {"deletionGracePeriodSeconds": grace}}))

    def _update(self, kind: Kind, held: Manifest, after: Manifest) -> Manifest:
        """What changes nothing has no version of its own; what takes the last finalizer away ends a deletion."""
        if after == held:
            return held
        metadata = after["metadata"] | {"resourceVersion": held["metadata"]["resourceVersion"]}
        if {**after, "metadata": metadata} == held:
            return held
        if after.get("spec") != held.get("spec"):
            metadata["generation"] = held["metadata"]["generation"] + 1
        after = {**after, "metadata": metadata}
        if kind != POD and "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            return self._remove(kind, after)
        return self._save("MODIFIED", kind, after)

    def _remove(self, kind: Kind, held: Manifest) -> Manifest:
        del self.objects[kind, Key.of(held)]
        return self._tell("DELETED", kind, held)

    def _save(self, event: str, kind: Kind, manifest: Manifest) -> Manifest:
        told = self._tell(event, kind, manifest)
        self.objects[kind, Key.of(told)] = told
        return told

    def _tell(self, event: str, kind: Kind, manifest: Manifest) -> Manifest:
        self.version += 1
        told = {**manifest, "metadata": manifest["metadata"] | {"resourceVersion": str(self.version)}}
        for watcher in self.watchers:
            watcher(kind, event, told)
        return told


def pod_of(owner: Manifest, name: str, template: Manifest, labels: Manifest) -> Manifest:
    """A pod that a controller makes for what it controls. labels: besides those of its template."""
    metadata = owner["metadata"]
    reference = {name: owner[name] for name in ("apiVersion", "kind")} | {
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return POD.manifest(
        {
            "name": f"{metadata['name']}-{name}", "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"] | labels,
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [reference | {name: metadata[name] for name in ("name", "uid")}],
        },
        spec=template["spec"], status={"phase": "Pending"},
    )  # fmt: skip


def kind_of(manifest: Manifest) -> Kind:
    return KINDS[manifest["apiVersion"], manifest["kind"]]


def owners(manifest: Manifest) -> Iterator[str]:
    return (owner["uid"] for owner in manifest["metadata"].get("ownerReferences", ()))


def without(held: Any, before: Any, after: Any) -> Any:
    """`held` without the fields that `before` names and `after` does not."""
    if not (isinstance(held, dict) and isinstance(before, dict)):
        return held
    after = after if isinstance(after, dict) else {}
    given_up = {name for name in before if name not in after and not isinstance(before[name], dict)}
    return {
        name: without(value, before.get(name), after.get(name)) for name, value in held.items() if name not in given_up
    }
