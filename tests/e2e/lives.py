"""Lives of a job on a real control plane, from its creation to its deletion, whatever becomes of the operator.

Their drivers are played. An operator that dies meanwhile is started again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import OperatorProcess
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import Driver, Head, Script, train

MODEL = {"name": "rm", "path": "org/rm", "kind": "classifier", "replicas": 2}

Comes = Callable[[Callable[[], object]], object]
"""Waits until something is true, with an operator that lives."""


async def fails_once(driver: Driver) -> None:
    """The first attempt loses a rank; the second trains to the end."""
    if driver.attempt == 1:
        driver.start()
        driver.step(1)
        driver.end(75, "RankLost", "rank-1 died")
    else:
        await train(4, seconds=0.2, every=2)(driver)


async def fails_thrice(driver: Driver) -> None:
    """Whatever replaces less than the pods does not help."""
    if driver.attempt < 4:
        driver.start()
        driver.end(75, "RankLost", "rank-1 died")
    else:
        await train(4, seconds=0.2, every=2)(driver)


async def trains_until_told(driver: Driver) -> None:
    """The first attempt never ends by itself; the second has four steps left."""
    saved = driver.head.volume.checkpoints
    await train(10_000 if driver.attempt == 1 else saved[-1]["step"] + 4, seconds=0.2, every=2)(driver)


def is_left_alone(jobs: Jobs, head: Head, comes: Comes) -> None:
    pass


def is_suspended_and_resumed(jobs: Jobs, head: Head, comes: Comes) -> None:
    comes(lambda: head.volume.checkpoints)
    jobs.patch(suspend=True)
    comes(lambda: jobs.status().get("phase") == "Suspended" and not jobs.clusters() and not jobs.pods())
    jobs.patch(suspend=False)


def loses_its_head(jobs: Jobs, head: Head, comes: Comes) -> None:
    comes(lambda: head.volume.checkpoints and jobs.status().get("phase") == "Running")
    jobs.kill_pods("head")
    head.restart()


def gets_other_pods(jobs: Jobs, head: Head, comes: Comes) -> None:
    before: Any = comes(lambda: len(found := jobs.workers()) == 2 and found)
    comes(lambda: jobs.status().get("attempt") == 4)
    assert not before & jobs.workers()


def is_deleted_while_it_runs(jobs: Jobs, head: Head, comes: Comes) -> None:
    comes(lambda: head.volume.checkpoints and jobs.status().get("phase") == "Running")
    jobs.delete()


@dataclass(frozen=True)
class Life:
    """happens: what its user and its cluster do. attempts, restarts: how many it takes, and of those are charged.

    ends: the phase that it ends in; None where it is deleted before. born: fields of the spec.
    """

    script: Script
    happens: Callable[[Jobs, Head, Comes], None]
    attempts: int = 2
    restarts: int = 0
    ends: str | None = "Succeeded"
    born: Mapping[str, Any] = field(default_factory=dict)

    def take_place(self, jobs: Jobs, head: Head, operator: OperatorProcess) -> None:
        """Its attempts, one after the other, and nothing twice or left over."""

        def comes(condition: Callable[[], object]) -> object:
            def holds() -> object:
                if operator.gone():
                    operator.start()
                return condition()

            return eventually(holds)

        jobs.create(**self.born)
        self.happens(jobs, head, comes)
        if self.ends is not None:
            comes(lambda: jobs.status().get("phase") == self.ends)
            done = jobs.status()
            assert (done["attempt"], done["restarts"]) == (self.attempts, self.restarts)
            comes(lambda: _kinds(jobs) == ["PersistentVolumeClaim", "Secret"])
            jobs.delete()
        comes(lambda: not jobs.exists())
        comes(lambda: jobs.objects() == ["PersistentVolumeClaim/job-checkpoints"])
        assert [driver.attempt for driver in head.drivers] == [*range(1, self.attempts + 1)]
        assert not any(driver.beside for driver in head.drivers)
        assert not (told := jobs.told_twice(self.attempts)), told


def _kinds(jobs: Jobs) -> list[str]:
    """Of each object that there is."""
    return [each.partition("/")[0] for each in jobs.objects()]


LIVES = {
    "restarted": Life(fails_once, is_left_alone, restarts=1),
    "suspended": Life(trains_until_told, is_suspended_and_resumed),
    "rebuilt": Life(trains_until_told, loses_its_head, restarts=1),
    "served": Life(trains_until_told, is_suspended_and_resumed, born={"rewards": {"models": [MODEL]}}),
    "pods replaced": Life(
        fails_thrice, gets_other_pods, attempts=4, restarts=3, born={"recovery": {"backoff": {"initial": "1ms"}}}
    ),
    "deleted": Life(trains_until_told, is_deleted_while_it_runs, attempts=1, ends=None),
    "past its deadline": Life(
        trains_until_told, is_left_alone, attempts=1, ends="Failed", born={"activeDeadline": "3s"}
    ),
}
