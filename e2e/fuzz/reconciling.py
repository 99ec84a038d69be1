"""What a running operator does with malformed RLJobs that the API server admits: each gets a status, and goes again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.fixtures import new_namespace
from e2e.fuzz.mutations import Mutant
from rljob_api.conditions import Reason
from rljob_operator.names import OUR_MANAGERS
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import OperatorProcess, running_operator
from tests.e2e.waiting import eventually

NO_HEADS = "http://127.0.0.1:9"
"""Where no Ray head answers: jobs get as far as their pods."""

TOGETHER = 25
"""Jobs at a time, so that their pods find room."""


@dataclass(frozen=True)
class Reconciler:
    jobs: Jobs
    operator: OperatorProcess

    def findings(self, admitted: Sequence[Mutant]) -> Iterator[tuple[Mutant, str]]:
        """What is wrong with what becomes of them. They are created, and deleted again.

        Raises RuntimeError where the operator has ended.
        """
        for first in range(0, len(admitted), TOGETHER):
            names = {self._create(mutant): mutant for mutant in admitted[first : first + TOGETHER]}
            yield from ((mutant, each) for name, mutant in names.items() for each in self._of(name))
            for name in names:
                self.jobs.delete(name)
            yield from ((mutant, "it is not deleted") for name, mutant in names.items() if not self._deleted(name))
            if self.operator.gone():
                raise RuntimeError(f"the operator has ended: {self.operator.log.read_text()[-2000:]}")

    def _create(self, mutant: Mutant) -> str:
        """The job's name: every mutant of a seed has the same one."""
        name = f"mutant-{mutant.number}"
        self.jobs.create_from(mutant.document, name)
        return name

    def _of(self, name: str) -> Iterator[str]:
        if self.jobs.get(name)["spec"].get("managedBy") not in OUR_MANAGERS:
            return
        try:
            status = eventually(lambda: self._seen(name))
        except AssertionError as error:
            yield f"the operator gives it no status: {error}: {self.jobs.status(name)}"
            return
        if any(each["reason"] == Reason.OPERATOR_ERROR for each in status["conditions"]):
            yield f"the operator's own code fails: {status['conditions']}"

    def _seen(self, name: str) -> Any:
        job = self.jobs.get(name)
        status = job.get("status", {})
        return status if status.get("observedGeneration") == job["metadata"]["generation"] else None

    def _deleted(self, name: str) -> bool:
        with suppress(AssertionError):
            eventually(lambda: not self.jobs.exists(name))
        return not self.jobs.exists(name)


@contextmanager
def reconciler(access: Access, client: ApiClient, folder: Path) -> Iterator[Reconciler]:
    """In a namespace of its own. folder: for the operator's log."""
    with new_namespace(client) as namespace, running_operator(access, namespace, NO_HEADS, folder) as operator:
        yield Reconciler(Jobs(client, namespace), operator)
