"""What pods lack and nobody makes by himself, in the words of those who looked for it. Pure functions of a snapshot.

A StorageClass that is not there is no part of it: only an event of the claim tells, and the operator reads no events.
Nor is what no node has: nodes come.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from rljob_operator import names
from rljob_operator.kube.kinds import DEPLOYMENT, Manifest
from rljob_operator.observe.cluster import replica_failures
from rljob_operator.observe.pods import unscheduled
from rljob_operator.observe.snapshot import Snapshot, is_deleting

PATIENCE_SECONDS = 60.0
"""How old a pod is before the claim that it lacks counts as missing: who creates a job may create its claim with it."""

_NO_PRIORITY = re.compile(r"no PriorityClass with name (\S+) was found")
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted)')


def missing(snapshot: Snapshot) -> str | None:
    """What the RayCluster's pods lack, and the way out; None where it is nothing, or not for long enough."""
    return _told(snapshot, [snapshot.cluster or {}], snapshot.ray_pods)


def missing_of_servers(snapshot: Snapshot) -> str | None:
    """The same of the pods of reward models."""
    pods = [pod for model in snapshot.job.spec.rewards.models for pod in snapshot.servers_of(model.name)]
    return _told(snapshot, snapshot.children.get(DEPLOYMENT, {}).values(), pods)


def _told(snapshot: Snapshot, makers: Iterable[Manifest], pods: Iterable[Manifest]) -> str | None:
    found = dict(_missing(snapshot, makers, pods))
    if not found:
        return None
    gone = [what for what, goes in found.items() if not goes]
    words = [f"{' and '.join(gone)} {'do' if len(gone) > 1 else 'does'} not exist"] if gone else []
    words += [f"{what} is being deleted, and goes when no pod has it" for what, goes in found.items() if goes]
    then = "create it" if gone else "then create it anew"
    own = f"PersistentVolumeClaim {snapshot.job.spec.checkpoint.volume.existing_claim}"
    suspended = "set spec.suspend, and name another one in the spec"
    other = "make another RLJob with another claim" if own in found else suspended  # checkpoint.volume never changes
    return f"{'; '.join(words)}: {then}, and the job goes on; or {other}"


def lacks_claim(snapshot: Snapshot) -> bool:
    """Whether a pod does now: nobody tells that it has lasted long enough."""
    return any(_claim(snapshot, pod) is not None for pod in snapshot.ray_pods)


def _missing(snapshot: Snapshot, makers: Iterable[Manifest], pods: Iterable[Manifest]) -> Iterator[tuple[str, bool]]:
    """Each with whether it is still there, but being deleted. makers: of the pods."""
    for said in (said for maker in makers for said in replica_failures(maker)):
        yield from ((f"PriorityClass {name}", False) for name in _NO_PRIORITY.findall(said))
    for pod in pods:
        age = (snapshot.now - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])).total_seconds()
        if age > PATIENCE_SECONDS and (claim := _claim(snapshot, pod)) is not None:
            yield f"PersistentVolumeClaim {claim[1]}", claim[2] == "is being deleted"


def _claim(snapshot: Snapshot, pod: Manifest) -> re.Match[str] | None:
    """Which claim the pod lacks, and how. That of the job itself is made again."""
    job = snapshot.job
    found = None if is_deleting(pod) else _NO_CLAIM.search(unscheduled(pod) or "")
    made_again = job.spec.checkpoint.volume.existing_claim is None and found and found[1] == names.claim(job.name)
    return None if made_again else found
