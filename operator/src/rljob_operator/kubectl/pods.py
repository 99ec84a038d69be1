"""The pods of a job: which is which, and how each is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rljob_operator import names
from rljob_operator.kubectl.calls import Kubectl, Manifest, Problem
from rljob_operator.kubectl.jobs import Job


@dataclass(frozen=True, slots=True)
class Pods:
    """Head first, then the workers in the order of their creation, which is their number."""

    job: Job
    items: Sequence[Manifest]

    @property
    def head(self) -> Manifest:
        return self._one(names.HEAD, 0)

    def worker(self, number: int) -> Manifest:
        return self._one(names.WORKER, number)

    def _one(self, role: str, number: int) -> Manifest:
        found = [pod for pod in self.items if role_of(pod) == role]
        if number < len(found):
            return found[number]
        phase = f"the job is {self.job.phase or self.job.unseen}"
        there = f"it has {len(found)}, counted from 0" if found else phase
        wanted = "head pod" if role == names.HEAD else f"worker {number}"
        raise Problem(f"{self.job.name} has no {wanted}: {there}; see kubectl rljob describe {self.job.name}")


def pods_of(kubectl: Kubectl, job: Job) -> Pods:
    found = kubectl.get("pods", f"--selector={names.JOB_LABEL}={job.name}")["items"]
    return Pods(job, sorted(found, key=_order))


def _order(pod: Manifest) -> tuple[bool, str, str]:
    metadata = pod["metadata"]
    return role_of(pod) != names.HEAD, metadata["creationTimestamp"], metadata["name"]


def role_of(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"].get(names.ROLE_LABEL, ""))


def state_of(pod: Manifest) -> str:
    """Its phase, or better what keeps it from running."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"Pending, not scheduled: {condition.get('message', '')}"
    troubles = list(_troubles(status))
    return f"{status.get('phase', '')}{': ' if troubles else ''}{', '.join(troubles)}"


def _troubles(status: Manifest) -> Iterator[str]:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        state = container.get("state", {})
        now = state.get("waiting") or state.get("terminated")
        if now and now.get("reason") != "Completed":
            yield f"{container['name']} {now.get('reason', 'has ended')}"


def ready_of(pod: Manifest) -> str:
    containers = pod.get("status", {}).get("containerStatuses", ())
    return f"{sum(each['ready'] for each in containers)}/{len(pod['spec']['containers'])}"


def restarts_of(pod: Manifest) -> int:
    return sum(each["restartCount"] for each in pod.get("status", {}).get("containerStatuses", ()))
