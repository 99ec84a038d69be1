"""The newest known version of every object, from the watches, the lists and the operator's own writes.

Three sources report one object in any order:

    watch   put(7)         put(9)   remove(12)
    write           put(9)                         put(9)   the answer was late: the object must not come back
    list                                     replace_all(at 11)

resourceVersions of one resource count upwards, so the newest wins. What is known to be gone stays gone: a deletion is
remembered until a list is newer than it, and from then on nothing older than that list appears for the first time. A
list knows of its own namespace only.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from rljob_operator.kube.kinds import (
    DEPLOYMENT,
    OF_KUEUE,
    POD,
    POD_GROUPS,
    RAY_CLUSTER,
    RLJOB,
    WORKLOAD,
    Key,
    Kind,
    Manifest,
    Ref,
)
from rljob_operator.names import JOB_LABEL, QUEUE_LABEL
from rljob_operator.runtime.missing import Missing

WITH_STATUS = frozenset({RLJOB, RAY_CLUSTER, POD, DEPLOYMENT, WORKLOAD})
"""Kinds whose status matters for a decision. That of a disruption budget, for example, changes with every pod."""


class Store:
    """Holds the objects themselves: callers must not change what it returns. It keeps no managedFields, and a status
    only of kinds WITH_STATUS.

    Methods that change it return the keys of the RLJobs to look at again: none if nothing that it keeps is new.
    unreadable: namespaces of which it may not know everything that a decision needs.
    missing: OPTIONAL kinds that could not be listed last.
    """

    def __init__(self) -> None:
        self._shelves: dict[Kind, _Shelf] = {}
        self.unreadable: set[str] = set()
        self.missing = Missing()

    @property
    def lacks_kinds(self) -> bool:
        """Whether a job needs a kind that is missing: it may be installed later."""
        return any(optional_kinds(job) & self.missing.there(key.namespace) for key, job in self.all(RLJOB).items())

    def get(self, kind: Kind, key: Key) -> Manifest | None:
        return self._shelf(kind).objects.get(key)

    def all(self, kind: Kind) -> Mapping[Key, Manifest]:
        return self._shelf(kind).objects

    def children(self, kind: Kind, job: Key) -> list[Manifest]:
        return list(self._shelf(kind).children.get(job, {}).values())

    def jobs_with(self, kind: Kind) -> set[Key]:
        """RLJobs, also those that have gone, of which there are children of the kind."""
        return set(self._shelf(kind).children)

    def put(self, kind: Kind, manifest: Manifest) -> set[Key]:
        shelf, key = self._shelf(kind), Key.of(manifest)
        if _version(manifest) <= shelf.known_until(key):
            return set()
        kept, held = _kept(kind, manifest), shelf.objects.get(key)
        changed = shelf.drop(key) | shelf.hold(key, kept)
        return set() if held is not None and _same(held, kept) else changed

    def goes(self, ref: Ref, when: datetime) -> None:
        """The operator has deleted it, and it may be gone before its watch reports that. A pod has a grace period."""
        shelf, held = self._shelf(ref.kind), self.get(ref.kind, ref.key)
        if ref.kind == POD or held is None or held["metadata"]["uid"] != ref.uid:
            return
        metadata = {"deletionTimestamp": when.isoformat(timespec="seconds")} | held["metadata"]
        shelf.hold(ref.key, held | {"metadata": metadata})

    def remove(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """manifest: as the deletion left it, with the deletion's version. A later object of that name stays."""
        shelf, key, version = self._shelf(kind), Key.of(manifest), _version(manifest)
        held = shelf.objects.get(key)
        if held is not None and _version(held) > version:
            return set()
        shelf.deleted[key] = max(version, shelf.known_until(key))
        return shelf.drop(key)

    def replace_all(
        self, kind: Kind, manifests: Iterable[Manifest], resource_version: str, namespace: str | None = None
    ) -> set[Key]:
        """Takes a whole list, and drops what it lacks: deletions that no watch reported. namespace: None for all."""
        shelf, listed_at = self._shelf(kind), int(resource_version)
        listed = {Key.of(manifest): manifest for manifest in manifests}
        here = {key: held for key, held in shelf.objects.items() if namespace in (None, key.namespace)}
        gone = [key for key, held in here.items() if key not in listed and _version(held) <= listed_at]
        changed = [shelf.drop(key) for key in gone] + [self.put(kind, manifest) for manifest in listed.values()]
        shelf.forget_deletions(listed_at, namespace)
        return set[Key]().union(*changed)

    def forget(self, kind: Kind, namespace: str | None = None) -> set[Key]:
        """The operator cannot read the kind any more. namespace: None for all."""
        shelf = self._shelf(kind)
        shelf.forget_lists(namespace)
        gone = [key for key in shelf.objects if namespace in (None, key.namespace)]
        return set[Key]().union(*[shelf.drop(key) for key in gone])

    def _shelf(self, kind: Kind) -> "_Shelf":
        if kind not in self._shelves:
            self._shelves[kind] = _Shelf(kind)
        return self._shelves[kind]


class _Shelf:
    """The objects of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.children: dict[Key, dict[Key, Manifest]] = {}  # by job
        self.deleted: dict[Key, int] = {}  # the deletions' versions
        self._kind = kind
        self._listed_at: dict[str | None, int] = {}  # by namespace; None for all

    def known_until(self, key: Key) -> int:
        """Older versions of the key are no news."""
        held = self.objects.get(key)
        return _version(held) if held is not None else self.deleted.get(key, self._listed(key))

    def hold(self, key: Key, manifest: Manifest) -> set[Key]:
        self.objects[key] = manifest
        self.deleted.pop(key, None)
        if (job := job_of(self._kind, manifest)) is None:
            return set()
        self.children.setdefault(job, {})[key] = manifest
        return {job}

    def drop(self, key: Key) -> set[Key]:
        held = self.objects.pop(key, None)
        if held is None or (job := job_of(self._kind, held)) is None:
            return set()
        siblings = self.children[job]
        del siblings[key]
        if not siblings:
            del self.children[job]
        return {job}

    def forget_deletions(self, listed_at: int, namespace: str | None) -> None:
        self._listed_at[namespace] = max(listed_at, self._listed_at.get(namespace, 0))
        self.deleted = {key: version for key, version in self.deleted.items() if version > self._listed(key)}

    def forget_lists(self, namespace: str | None) -> None:
        """What they had may come back in the version that it had then."""
        self._listed_at.pop(namespace, None)

    def _listed(self, key: Key) -> int:
        """The version of the newest list that would have had the key."""
        return max(self._listed_at.get(key.namespace, 0), self._listed_at.get(None, 0))


def job_of(kind: Kind, manifest: Manifest) -> Key | None:
    """The RLJob that an object is or belongs to."""
    key = Key.of(manifest)
    if kind == RLJOB:
        return key
    name = manifest["metadata"].get("labels", {}).get(JOB_LABEL)
    return Key(key.namespace, name) if name else None


def optional_kinds(job: Manifest) -> set[Kind]:
    """The OPTIONAL kinds that an RLJob needs."""
    queue = OF_KUEUE if QUEUE_LABEL in job["metadata"].get("labels", {}) else ()
    gang = POD_GROUPS.get(job.get("spec", {}).get("gang", {}).get("scheduler"))
    return {*queue, *([] if gang is None else [gang])}


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def _kept(kind: Kind, manifest: Manifest) -> Manifest:
    kept = {name: value for name, value in manifest.items() if name != "status" or kind in WITH_STATUS}
    return kept | {"metadata": _without(manifest["metadata"], "managedFields")}


def _same(one: Manifest, other: Manifest) -> bool:
    """But for their versions."""
    return one | {"metadata": _without(one["metadata"], "resourceVersion")} == other | {
        "metadata": _without(other["metadata"], "resourceVersion")
    }


def _without(metadata: Manifest, name: str) -> Manifest:
    return {each: value for each, value in metadata.items() if each != name}
