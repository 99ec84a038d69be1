"""Gang schedulers as far as the operator can tell them from real ones: a pod waits until all of its PodGroup are there.

A PodGroup of Kubernetes has a finalizer until no pod names it. Others go at once, unless a person holds them.
"""

from collections.abc import Iterator

from rljob_operator import names
from rljob_operator.kube.kinds import POD, POD_GROUPS, Key, Kind, Manifest
from rljob_operator.observe.snapshot import annotation, is_deleting, label
from tests.rljob_operator.world.api_server import ApiServer

PROTECTION, HELD = "scheduling.k8s.io/podgroup-protection", "x.y/held"


class Gangs:
    """taken: kinds whose PodGroup a person deleted, or that were removed, until there is one again."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self.taken = server, set[Kind]()
        server.watchers.append(self._see)

    @property
    def pod_groups(self) -> list[Manifest]:
        return [each for kind in POD_GROUPS.values() for each in self._server.all(kind)]

    def step(self) -> bool:
        """As the controller that protects PodGroups of Kubernetes does."""
        before = self._server.version
        for each in self._server.all(POD_GROUPS["native"]):
            if not is_deleting(each):
                self._finalize(each, PROTECTION, present=True)
            elif not any(self._members(POD_GROUPS["native"], Key.of(each))):
                self._finalize(each, PROTECTION, present=False)
        return self._server.version > before

    def lets(self, pod: Manifest) -> bool:
        """Whether a node may have the pod."""
        kind, group = self.group_of(pod) or (None, None)
        if kind is None:
            return True
        spec = {} if group is None else group["spec"]
        least = spec.get("minMember") or spec.get("schedulingPolicy", {}).get("gang", {}).get("minCount")
        return group is not None and sum(1 for _ in self._members(kind, Key.of(group))) >= least

    def group_of(self, pod: Manifest) -> tuple[Kind, Manifest | None] | None:
        """The kind of PodGroup that a pod, or its template, names, and the PodGroup. None without a name."""
        if (mark := named(pod)) is None:
            return None
        kind, name = mark
        return kind, self._server.find(kind, Key(pod["metadata"]["namespace"], name))

    def delete(self) -> None:
        """As a person does."""
        for each in self.pod_groups:
            self._server.delete(each)
            self._take(_kind_of(each))

    def hold(self) -> None:
        """As a person does, or a controller."""
        for each in self.pod_groups:
            if not is_deleting(each):
                self._finalize(each, HELD, present=True)

    def let_go(self) -> None:
        for each in self.pod_groups:
            self._finalize(each, HELD, present=False)

    def uninstall(self) -> None:
        """With every PodGroup, whatever its finalizers."""
        for kind in POD_GROUPS.values():
            for each in self._server.all(kind):
                self._server.patch(kind, Key.of(each), {"metadata": {"finalizers": None}})
                if (left := self._server.find(kind, Key.of(each))) is not None:
                    self._server.delete(left)
                self._take(kind)
        self._server.absent |= {*POD_GROUPS.values()}

    def install(self) -> None:
        self._server.absent -= {*POD_GROUPS.values()}

    def _take(self, kind: Kind) -> None:
        self.taken.add(kind)

    def _see(self, kind: Kind, event: str, _manifest: Manifest) -> None:
        if event == "ADDED":
            self.taken.discard(kind)

    def _members(self, kind: Kind, group: Key) -> Iterator[Manifest]:
        """Pods that have not ended."""
        for pod in self._server.all(POD):
            mine = named(pod) == (kind, group.name) and pod["metadata"]["namespace"] == group.namespace
            if mine and pod["status"]["phase"] not in ("Failed", "Succeeded"):
                yield pod

    def _finalize(self, group: Manifest, finalizer: str, *, present: bool) -> None:
        others = [each for each in group["metadata"].get("finalizers", ()) if each != finalizer]
        if present != (len(others) < len(group["metadata"].get("finalizers", ()))):
            after = [*others, finalizer] if present else others
            self._server.patch(_kind_of(group), Key.of(group), {"metadata": {"finalizers": after}})


def named(pod: Manifest) -> tuple[Kind, str] | None:
    """The kind and name of the PodGroup that a pod or a template names."""
    marks = {
        "volcano": annotation(pod, names.VOLCANO_GROUP_ANNOTATION),
        "coscheduling": label(pod, names.COSCHEDULING_GROUP_LABEL),
        "native": label(pod, names.POD_GROUP_LABEL),
    }
    return next(((POD_GROUPS[scheduler], name) for scheduler, name in marks.items() if name), None)


def _kind_of(group: Manifest) -> Kind:
    return next(kind for kind in POD_GROUPS.values() if kind.api_version == group["apiVersion"])
