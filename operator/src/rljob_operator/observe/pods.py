"""What pods say: why they do not run, and what no waiting mends. Pure functions of manifests."""

import re
from collections.abc import Iterable, Iterator

from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.snapshot import is_deleting

_SCHEDULER = "default-scheduler"
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")
_NEVER_PULLED = ("InvalidImageName", "ErrImageNeverPull")
_PULLING = ("ErrImagePull", "ImagePullBackOff")
_REFUSED = ("not found", "manifest unknown", "unauthorized", "denied", "does not exist", "invalid reference",
            "403 forbidden")  # fmt: skip
_NOT_STORED = re.compile(r"content digest|failed to extract layer|/\S+: permission denied")
"""Of a node whose store of images is broken or full. Another node, or the same one later, may have the image."""

_NOT_STARTED = ("RunContainerError", "StartError", "ContainerCannotRun")
_NO_PROGRAM = ('exec: "', "executable file", "exec format error")
"""Of an image that does not start anywhere. All else may be its node's fault: a device, a driver, a mount."""

_OF_ITS_NODE = "nvidia-container"
"""Programs that a node runs for its containers, and may lack."""


def troubles(pods: Iterable[Manifest]) -> Iterator[str]:
    """What keeps each pod from running, in the words of its conditions and containers."""
    for pod in pods:
        name = pod["metadata"]["name"]
        if (why := unscheduled(pod)) is not None:
            yield f"{name} is not scheduled: {why}"
        if (scheduler := _silent_scheduler(pod)) is not None:
            yield f"{name} waits for scheduler {scheduler}, which has said nothing of it: does that run?"
        if waits_for_its_node(pod) and not any(map(_is_told, containers(pod))):
            yield f"{name} waits for its image, or for what it mounts: its events say for what"
        if _is_unheard_of(pod):
            yield f"nothing is heard of node {pod.get('spec', {}).get('nodeName')}, which has {name}"
        for container in containers(pod):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, *_ON_ITS_WAY):
                said = [waiting.get("message", ""), *last_words(container)]
                yield ": ".join(word for word in (name, waiting["reason"], *said) if word)
            elif not container.get("ready", True) and (said := [*last_words(container)]):
                yield ": ".join([name, f"{container['name']} is not ready, {_restarts(container)}", *said])


def unscheduled(pod: Manifest) -> str | None:
    """Why no node takes it, in the scheduler's words; None where one does."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", condition.get("reason")))
    return None


def _silent_scheduler(pod: Manifest) -> str | None:
    """The name of one that is not Kubernetes' own, which may not be there, or be a slip of the pen."""
    scheduler: str | None = pod.get("spec", {}).get("schedulerName")
    said = any(each["type"] == "PodScheduled" for each in pod.get("status", {}).get("conditions", ()))
    placed = said or pod.get("spec", {}).get("nodeName") is not None or is_deleting(pod)
    return None if placed or scheduler == _SCHEDULER else scheduler


def _is_told(container: Manifest) -> bool:
    """Whether its own state says how far it is."""
    return container.get("state", {}).get("waiting", {}).get("reason") not in _ON_ITS_WAY


def _is_unheard_of(pod: Manifest) -> bool:
    """Kubernetes counts pods of a node that does not report as unready, and leaves all else as the node has told it."""
    said = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
    return said.get("Ready") == "False" and said.get("ContainersReady") == "True"


def _restarts(container: Manifest) -> str:
    count = container.get("restartCount", 0)
    return f"after {count} restart{'' if count == 1 else 's'}"


def last_words(container: Manifest) -> Iterator[str]:
    """How it ended the last time, with the end of its output where the kubelet kept that."""
    ended = container.get("lastState", {}).get("terminated")
    if ended:
        words = (ended.get("message") or "").strip().splitlines()
        yield f"{ended.get('reason', 'ended')} with code {ended['exitCode']}"
        yield from words[-1:]


def unusable_image(pods: Iterable[Manifest]) -> str | None:
    """What no waiting mends: an image that is not there, may not be pulled, or does not start."""
    for pod in pods:
        for container in () if is_deleting(pod) else containers(pod):
            if (found := _unusable(pod["metadata"]["name"], container)) is not None:
                return found
    return None


def has_just_failed_to_pull(pod: Manifest) -> bool:
    """Seconds later it backs off, with the same words. A node that is new may lack its credentials for as long."""
    return any(each.get("state", {}).get("waiting", {}).get("reason") == "ErrImagePull" for each in containers(pod))


def waits_for_its_node(pod: Manifest) -> bool:
    """It has one, and that has not started it yet: it pulls its image, or waits for what the pod mounts."""
    placed = pod.get("spec", {}).get("nodeName") is not None and pod.get("status", {}).get("phase") == "Pending"
    return placed and not is_deleting(pod)


def is_up(pod: Manifest) -> bool:
    """Whether it runs, and nobody finds it unready."""
    status = pod.get("status", {})
    unready = any(each["type"] == "Ready" and each["status"] != "True" for each in status.get("conditions", ()))
    return status.get("phase") == "Running" and not unready


def how_it_ended(pod: Manifest) -> str:
    status = pod.get("status", {})
    ended = [each.get("state", {}).get("terminated") for each in containers(pod)]
    codes = [f"{each.get('reason', 'ended')} with code {each['exitCode']}" for each in ended if each]
    return status.get("message") or ", ".join(codes)


def containers(pod: Manifest) -> Iterable[Manifest]:
    """Their statuses."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _unusable(pod: str, container: Manifest) -> str | None:
    state = container.get("state", {})
    now = state.get("waiting") or state.get("terminated") or {}
    reason, message = now.get("reason"), now.get("message", "")
    words = message.lower()
    refused = reason in _PULLING and _has(words, _REFUSED) and not _NOT_STORED.search(words)
    broken = reason in _NOT_STARTED and _OF_ITS_NODE not in message and _has(message, _NO_PROGRAM)
    if not (refused or reason in _NEVER_PULLED or broken):
        return None
    return f"{pod}: {reason} of image {container.get('image')}{': ' if message else ''}{message}"


def _has(message: str, words: Iterable[str]) -> bool:
    return any(word in message for word in words)
