"""What a running operator does with malformed RLJobs that the API server admits: their pods are made, or it says what
they wait for, or it fails them and names a field of theirs; and they go again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.fixtures import new_namespace
from e2e.fuzz.mutations import Mutant
from e2e.fuzz.theirs import names_their_field
from rljob_api.conditions import Reason
from rljob_operator.names import OUR_MANAGERS, ray_cluster
from rljob_operator.observe.pods import replica_failures
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import OperatorProcess, running_operator
from tests.e2e.waiting import eventually

NO_HEADS = "http://127.0.0.1:9"
"""Where no Ray head answers: jobs get as far as their pods."""

TOGETHER = 25
"""Jobs at a time, so that their pods find room."""


Fate = Literal[
    "reconciled", "waits for what is missing", "failed with a message that names a field of theirs", "not ours", "wrong"
]


@dataclass(frozen=True)
class Outcome:
    """fate: wrong if there are findings, and not ours if spec.managedBy names another manager."""

    mutant: Mutant
    fate: Fate
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Reconciler:
    jobs: Jobs
    operator: OperatorProcess

    def outcomes(self, admitted: Sequence[Mutant]) -> Iterator[Outcome]:
        """What becomes of them. They are created, and deleted again.

        Raises RuntimeError where the operator has ended.
        """
        for first in range(0, len(admitted), TOGETHER):
            names = {self._create(mutant): mutant for mutant in admitted[first : first + TOGETHER]}
            fates = {name: self._fate(name) for name in names}
            for name in names:
                self.jobs.delete(name)
            for name, mutant in names.items():
                fate, findings = fates[name]
                left = () if self._deleted(name) else ("it is not deleted",)
                yield Outcome(mutant, "wrong" if left else fate, (*findings, *left))
            if self.operator.gone():
                raise RuntimeError(f"the operator has ended: {self.operator.log.read_text()[-2000:]}")

    def _create(self, mutant: Mutant) -> str:
        """The job's name: every mutant of a seed has the same one."""
        name = f"mutant-{mutant.number}"
        self.jobs.create_from(mutant.document, name)
        return name

    def _fate(self, name: str) -> tuple[Fate, tuple[str, ...]]:
        """With the findings."""
        if self.jobs.get(name)["spec"].get("managedBy") not in OUR_MANAGERS:
            return "not ours", ()
        try:
            job = eventually(lambda: self._settled(name))
        except AssertionError as error:
            return "wrong", (f"the operator gets no further: {error}: {self.jobs.status(name)}",)
        conditions = job["status"]["conditions"]
        if any(each["reason"] == Reason.OPERATOR_ERROR for each in conditions):
            return "wrong", (f"the operator's own code fails: {conditions}",)
        if job["status"]["phase"] != "Failed":
            return "waits for what is missing" if _waits(job) else "reconciled", ()
        said = next(each["message"] for each in conditions if each["type"] == "Failed")
        if names_their_field(said, job):
            return "failed with a message that names a field of theirs", ()
        return "wrong", (f"the operator fails it, and names no field of theirs: {said}",)

    def _settled(self, name: str) -> Any:
        """The job, once the operator has said what becomes of it, and KubeRay has tried to make the pods of one that
        starts: an invalid one fails the job later than its first status.
        """
        job = self.jobs.get(name)
        status = job.get("status", {})
        if status.get("observedGeneration") != job["metadata"]["generation"]:
            return None
        return job if status["phase"] != "Starting" or _waits(job) or self._has_pods(name) else None

    def _has_pods(self, name: str) -> bool:
        """As KubeRay says, which looks whether they are there once it has made them."""
        clusters = {each["metadata"]["name"]: each for each in self.jobs.clusters()}
        cluster = clusters.get(ray_cluster(name), {})
        return "status" in cluster and not any(replica_failures(cluster))

    def _deleted(self, name: str) -> bool:
        with suppress(AssertionError):
            eventually(lambda: not self.jobs.exists(name))
        return not self.jobs.exists(name)


def _waits(job: Any) -> bool:
    """Whether it says that it gets no further by itself, or quotes why KubeRay cannot create its pods."""
    conditions = {each["type"]: each for each in job["status"]["conditions"]}
    return conditions["Stalled"]["status"] == "True" or "KubeRay: " in conditions["Ready"]["message"]


@contextmanager
def reconciler(access: Access, client: ApiClient, folder: Path) -> Iterator[Reconciler]:
    """In a namespace of its own. folder: for the operator's log."""
    with new_namespace(client) as namespace, running_operator(access, namespace, NO_HEADS, folder) as operator:
        yield Reconciler(Jobs(client, namespace), operator)
