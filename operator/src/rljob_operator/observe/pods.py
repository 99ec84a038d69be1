"""What pods report: why they do not run, and which of it waiting does not fix. Pure functions of manifests."""

import re
from collections.abc import Iterable, Iterator

from rljob_operator.kube.errors import one_line
from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.snapshot import is_deleting

_DEFAULT_SCHEDULER = "default-scheduler"
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")
_NEVER_PULLED = ("InvalidImageName", "ErrImageNeverPull")
_PULLING = ("ErrImagePull", "ImagePullBackOff")
_REFUSED = ("not found", "manifest unknown", "unauthorized", "denied", "does not exist", "invalid reference",
            "403 forbidden")  # fmt: skip
_NOT_STORED = re.compile(r"content digest|failed to extract layer|/\S+: permission denied")
"""The node's image store is broken or full. Another node, or the same one later, may have the image."""


def troubles(pods: Iterable[Manifest]) -> Iterator[str]:
    """What keeps each pod from running, quoting its conditions and containers."""
    for pod in pods:
        name = pod["metadata"]["name"]
        if (why := unscheduled(pod)) is not None:
            yield f"{name} is not scheduled: {why}"
        if (scheduler := _silent_scheduler(pod)) is not None:
            yield f"{name} is not scheduled: scheduler {scheduler} has not reported on it; check that it runs"
        if waits_for_its_node(pod) and all(map(_is_on_its_way, containers(pod))):
            yield f"{name} waits for its image or its volumes; its events say for which"
        if _is_unheard_of(pod):
            yield f"node {pod.get('spec', {}).get('nodeName')} of {name} does not report"
        yield from (f"{name}: {trouble}" for each in containers(pod) if (trouble := _trouble(each)))


def _trouble(container: Manifest) -> str:
    """Empty if the container is fine or on its way."""
    waiting = container.get("state", {}).get("waiting", {})
    if waiting.get("reason") not in (None, *_ON_ITS_WAY):
        words = [waiting["reason"], waiting.get("message", ""), *_last_end(container)]
        return ": ".join(filter(None, words))
    if not container.get("ready", True) and (words := [*_last_end(container)]):
        count = container.get("restartCount", 0)
        restarts = f"after {count} restart{'' if count == 1 else 's'}"
        return ": ".join([f"{container['name']} is not ready {restarts}", *words])
    return ""


def unscheduled(pod: Manifest) -> str | None:
    """Why no node takes it, quoting the scheduler; None if one does."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", condition.get("reason")))
    return None


def _silent_scheduler(pod: Manifest) -> str | None:
    """The scheduler, other than that of Kubernetes, which has said nothing about the pod."""
    spec, conditions = pod.get("spec", {}), pod.get("status", {}).get("conditions", ())
    known = spec.get("nodeName") is not None or any(each["type"] == "PodScheduled" for each in conditions)
    name: str | None = spec.get("schedulerName")
    return None if known or is_deleting(pod) or name == _DEFAULT_SCHEDULER else name


def _is_on_its_way(container: Manifest) -> bool:
    return container.get("state", {}).get("waiting", {}).get("reason") in _ON_ITS_WAY


def _is_unheard_of(pod: Manifest) -> bool:
    """Kubernetes marks pods of a node that does not report as unready, and keeps the node's last report otherwise."""
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "False" and conditions.get("ContainersReady") == "True"


def _last_end(container: Manifest) -> Iterator[str]:
    """How it last ended, with the last line of its output if the kubelet kept it."""
    if ended := container.get("lastState", {}).get("terminated"):
        yield _exit(ended)
        yield from (ended.get("message") or "").strip().splitlines()[-1:]


def unusable_image(pods: Iterable[Manifest]) -> str | None:
    """What waiting does not fix: an image that is missing or may not be pulled."""
    for pod in pods:
        for container in () if is_deleting(pod) else containers(pod):
            if (found := _unusable(pod["metadata"]["name"], container)) is not None:
                return found
    return None


def has_just_failed_to_pull(pod: Manifest) -> bool:
    """Seconds later it backs off with the same message. A new node may lack its credentials for as long."""
    return any(each.get("state", {}).get("waiting", {}).get("reason") == "ErrImagePull" for each in containers(pod))


def waits_for_its_node(pod: Manifest) -> bool:
    """Its node pulls its image, or waits for what the pod mounts."""
    placed = pod.get("spec", {}).get("nodeName") is not None and pod.get("status", {}).get("phase") == "Pending"
    return placed and not is_deleting(pod)


def is_up(pod: Manifest) -> bool:
    """Whether it runs, and no condition calls it unready."""
    status = pod.get("status", {})
    unready = any(each["type"] == "Ready" and each["status"] != "True" for each in status.get("conditions", ()))
    return status.get("phase") == "Running" and not unready


def is_over(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def how_it_ended(pod: Manifest) -> str:
    ended = [each.get("state", {}).get("terminated") for each in containers(pod)]
    return pod.get("status", {}).get("message") or ", ".join(_exit(each) for each in ended if each)


def _exit(terminated: Manifest) -> str:
    return f"{terminated.get('reason', 'ended')} with exit code {terminated['exitCode']}"


def containers(pod: Manifest) -> Iterable[Manifest]:
    """The statuses of its containers."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def replica_failures(maker: Manifest) -> Iterator[str]:
    """Why the controller of a RayCluster or Deployment cannot create a pod, quoted."""
    for condition in maker.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            yield one_line(condition.get("message", condition["reason"]))


def _unusable(pod: str, container: Manifest) -> str | None:
    now = container.get("state", {}).get("waiting", {})
    reason, message = now.get("reason"), now.get("message", "")
    words = message.lower()
    refused = reason in _PULLING and any(word in words for word in _REFUSED) and not _NOT_STORED.search(words)
    if not (refused or reason in _NEVER_PULLED):
        return None
    return f"{pod}: {reason} of image {container.get('image')}{': ' if message else ''}{message}"
