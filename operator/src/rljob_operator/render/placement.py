"""Where pods may go, and which scheduler places them: one argument of the renderers, for queues and gangs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_operator import names
from rljob_operator.kube.kinds import Key, Manifest
from rljob_operator.render.merge import merged


@dataclass(frozen=True, slots=True)
class Placement:
    """What is added to a pod template. tolerations and scheduling gates come on top of the template's own."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    scheduler_name: str | None = None
    scheduling_gates: tuple[str, ...] = ()

    def on(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """The template, placed. The placement wins: the quota was granted for it."""
        spec: dict[str, Any] = {}
        given = template.get("spec", {})
        if self.node_selector:
            spec["nodeSelector"] = dict(self.node_selector)
        if self.tolerations:
            spec["tolerations"] = [*given.get("tolerations", ()), *self.tolerations]
        if self.scheduling_gates:
            spec["schedulingGates"] = [
                *given.get("schedulingGates", ()),
                *({"name": gate} for gate in self.scheduling_gates),
            ]
        if self.scheduler_name is not None:
            spec["schedulerName"] = self.scheduler_name
        metadata = {"labels": dict(self.labels), "annotations": dict(self.annotations)}
        placed: dict[str, Any] = merged(template, {"metadata": metadata, "spec": spec})
        return placed


class UnknownFlavor(Exception):
    """An admission names a ResourceFlavor that the operator has not seen."""


Placements = Mapping[str, Placement]
"""By group; a group without one goes anywhere."""

ANYWHERE = Placement()

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def avoiding(template: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """The template, without these nodes; the same one if it avoids them already.

    The terms of its own node affinity are alternatives, so each gets the condition. An empty one matches no node.
    """
    if not nodes:
        return dict(template)
    elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [*nodes]}
    affinity = template["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = [
        _also(term, elsewhere) for term in required.get("nodeSelectorTerms") or [{"matchExpressions": [elsewhere]}]
    ]
    on_nodes = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: {**required, "nodeSelectorTerms": terms}}
    return {**template, "spec": {**template["spec"], "affinity": {**affinity, "nodeAffinity": on_nodes}}}


def _also(term: Mapping[str, Any], expression: Manifest) -> Mapping[str, Any]:
    given = term.get("matchExpressions") or []
    if expression in given or not (given or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*given, expression]}


def placements(workload: Manifest, flavors: Mapping[Key, Manifest]) -> Placements:
    """What Kueue decided for each group of an admitted job. flavors: ResourceFlavors. Raises UnknownFlavor."""
    assigned = workload["status"]["admission"]["podSetAssignments"]
    return {each["name"]: _placement(workload, each, flavors) for each in assigned}


_CONTRADICTED = ("labels", "annotations", "nodeSelector")


def contradiction(workload: Manifest, flavors: Mapping[Key, Manifest]) -> str | None:
    """The first label, annotation or node selector that an admission sets otherwise than the pod template, or twice.
    None if there is none. Kueue starts no job of its own integrations then. Raises UnknownFlavor.
    """
    templates = {each["name"]: each["template"] for each in workload["spec"]["podSets"]}
    for assigned in workload["status"]["admission"]["podSetAssignments"]:
        said: dict[tuple[str, str], tuple[str, str]] = {}  # value, and who says so
        for source, given in _sources(workload, assigned, templates[assigned["name"]], flavors):
            for name, key, value in _entries(given):
                before, other = said.setdefault((name, key), (value, source))
                if before != value:
                    where = f"pods of {assigned['name']}"
                    return f"{source} sets {name} {key}={value} for {where}, and {other} sets {key}={before}"
    return None


def _sources(
    workload: Manifest, assigned: Manifest, template: Manifest, flavors: Mapping[Key, Manifest]
) -> Iterator[tuple[str, Manifest]]:
    """Who has a say in the pods of one group, and what each says."""
    name = assigned["name"]
    yield "the pod template", {**template.get("metadata", {}), "nodeSelector": template["spec"].get("nodeSelector")}
    for flavor in dict.fromkeys(assigned.get("flavors", {}).values()):
        yield f"ResourceFlavor {flavor}", {"nodeSelector": _flavor(flavors, flavor).get("nodeLabels")}
    for check in workload["status"].get("admissionChecks", ()):
        for update in check.get("podSetUpdates", ()):
            if update["name"] == name:
                yield f"admission check {check['name']}", update
    gated = assigned.get("topologyAssignment") is not None
    yield "Kueue", {"labels": _labels(workload, name), "annotations": _annotations(workload, name, gated=gated)}


def _entries(given: Manifest) -> Iterator[tuple[str, str, str]]:
    for name in _CONTRADICTED:
        yield from ((name, key, value) for key, value in (given.get(name) or {}).items())


def _placement(workload: Manifest, assigned: Manifest, flavors: Mapping[Key, Manifest]) -> Placement:
    name, updates = assigned["name"], _updates(workload, assigned["name"])
    found = [_flavor(flavors, each) for each in dict.fromkeys(assigned.get("flavors", {}).values())]
    tolerations = [toleration for each in (*found, *updates) for toleration in each.get("tolerations", ())]
    gated = assigned.get("topologyAssignment") is not None
    return Placement(
        labels=_joined(updates, "labels") | _labels(workload, name),
        annotations=_joined(updates, "annotations") | _annotations(workload, name, gated=gated),
        tolerations=tuple(each for place, each in enumerate(tolerations) if each not in tolerations[:place]),
        node_selector=_joined(found, "nodeLabels") | _joined(updates, "nodeSelector"),
        scheduling_gates=(names.TOPOLOGY_GATE,) if gated else (),
    )


def _flavor(flavors: Mapping[Key, Manifest], name: str) -> Manifest:
    found = flavors.get(Key("", name))
    if found is None:
        raise UnknownFlavor(f"ResourceFlavor {name} of the admission is unknown to the operator")
    spec: Manifest = found.get("spec") or {}
    return spec


def _updates(workload: Manifest, group: str) -> list[Manifest]:
    """Of the admission checks, for example of a provisioning request."""
    checks = workload["status"].get("admissionChecks", ())
    return [each for check in checks for each in check.get("podSetUpdates", ()) if each["name"] == group]


def _joined(parts: list[Manifest], field_name: str) -> dict[str, str]:
    return {key: value for part in parts for key, value in (part.get(field_name) or {}).items()}


def _labels(workload: Manifest, group: str) -> dict[str, str]:
    """As Kueue labels the pods of its own integrations. A ClusterQueue's name may be too long for a label."""
    labels = {names.POD_SET_LABEL: group, names.LOCAL_QUEUE_LABEL: workload["spec"]["queueName"]}
    cluster_queue = workload["status"]["admission"]["clusterQueue"]
    return labels | ({names.CLUSTER_QUEUE_LABEL: cluster_queue} if len(cluster_queue) <= 63 else {})


def _annotations(workload: Manifest, group: str, *, gated: bool) -> dict[str, str]:
    """gated: by topology-aware scheduling, which finds its pods by their Workload."""
    annotations = {names.WORKLOAD_ANNOTATION: workload["metadata"]["name"]}
    asked = [each for each in workload["spec"]["podSets"] if each["name"] == group and each.get("topologyRequest")]
    return annotations | ({names.TOPOLOGY_ANNOTATION % "unconstrained": "true"} if gated and not asked else {})
