"""The PodGroup: what a gang scheduler has to know of a job's pods; and how the pods name it."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import POD_GROUPS, Manifest
from rljob_operator.render.groups import Group
from rljob_operator.render.placement import ANYWHERE, Placement
from rljob_operator.settings import Settings

Amounts = dict[str, Decimal]
"""By resource."""


def in_gang(job: Job, placement: Placement, settings: Settings) -> Placement:
    """The placement of a pod that also belongs to the job's PodGroup, if the job has one."""
    name, labels, annotations = names.pod_group(job.name), placement.labels, placement.annotations
    match job.spec.gang.scheduler:
        case "volcano":
            mark = {names.VOLCANO_GROUP_ANNOTATION: name}
            return replace(placement, annotations={**annotations, **mark}, scheduler_name=names.VOLCANO_SCHEDULER)
        case "coscheduling":
            mark = {names.COSCHEDULING_GROUP_LABEL: name}
            return replace(placement, labels={**labels, **mark}, scheduler_name=settings.coscheduling_scheduler)
        case "native":
            return replace(placement, labels={**labels, names.POD_GROUP_LABEL: name})
    return placement


def pod_group(job: Job, pods: Sequence[Group]) -> Manifest | None:
    """Of all pods: the job can use no part of them. None without a gang. Raises CannotMerge; never for native."""
    scheduler, count = job.spec.gang.scheduler, sum(each.count for each in pods)
    if scheduler == "none":
        return None
    metadata = {"name": names.pod_group(job.name)}
    if scheduler == "native":
        return POD_GROUPS[scheduler].manifest(metadata, spec={"schedulingPolicy": {"gang": {"minCount": count}}})
    spec: Manifest = {"minMember": count, "minResources": _resources(pods)}
    if scheduler == "volcano" and job.spec.cluster.priority_class_name:
        spec["priorityClassName"] = job.spec.cluster.priority_class_name
    return POD_GROUPS[scheduler].manifest(metadata, spec=spec)


def _resources(pods: Sequence[Group]) -> dict[str, str]:
    """What all pods request together."""
    each = [{name: amount * group.count for name, amount in _of_pod(group).items()} for group in pods]
    return {name: f"{amount:f}" for name, amount in sorted(_sum(each).items())}


def _of_pod(group: Group) -> Amounts:
    """As a scheduler counts: containers beside each other, init containers before them, one after the other."""
    spec = group.template(ANYWHERE)["spec"]
    first, lasting = list[Amounts](), [_of_container(each) for each in spec.get("containers", ())]
    for each in spec.get("initContainers") or ():
        (lasting if each.get("restartPolicy") == "Always" else first).append(_of_container(each))
    stages = [_sum(lasting), *first]
    return {name: max(each.get(name, Decimal(0)) for each in stages) for name in chain(*stages)}


def _of_container(container: Mapping[str, Any]) -> Amounts:
    """A limit is a request too. The API server refuses a pod with what is no quantity."""
    given, found = container.get("resources"), Amounts()
    for kind in ("limits", "requests"):
        amounts = given.get(kind) if isinstance(given, Mapping) else None
        for name, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            with suppress(ValueError):
                found[name] = parse_quantity(amount)
    return found


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total = Amounts()
    for name, amount in chain.from_iterable(part.items() for part in parts):
        total[name] = total.get(name, Decimal(0)) + amount
    return total
