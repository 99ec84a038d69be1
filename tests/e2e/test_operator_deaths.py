"""The operator dies after a write, or its writes fail: on a real control plane, through a proxy that counts them.

Every write of a life is a place to die at. `make chaos-operator` visits all of them; a test run, a few drawn by a seed.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.proxy import WRITES, Call, Fault, Proxy, answer, cut_watch, delay, drop, expire_watch, run
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import OperatorProcess, running_operator
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import Driver, Head, train
from tests.rljob_operator.played_head import PlayedHeads

Capture = pytest.CaptureFixture[str]

EVERY = os.environ.get("RLJOB_EVERY_WRITE") == "1"

WRITES_OF_A_LIFE = 40
"""At most so many does the life below take, to the end of its deletion, the Lease's left out."""

DEATHS = [(nth, landed) for nth in range(1, WRITES_OF_A_LIFE + 1) for landed in (True, False)]
DRAWN = DEATHS if EVERY else sorted(random.Random(6).sample([death for death in DEATHS if death[0] <= 25], 2))


@dataclass
class Death(Fault):
    """At the n-th write that is not the Lease's."""

    def strikes(self, call: Call) -> bool:
        return call.writes and call.resource != "leases" and super().strikes(call)


async def fails_once(driver: Driver) -> None:
    """The first attempt loses a rank; the second trains to the end."""
    if driver.attempt == 1:
        driver.start()
        driver.step(1)
        driver.end(75, "RankLost", "rank-1 died")
    else:
        await train(4, seconds=0.2, every=2)(driver)


@contextmanager
def through_proxy(
    cluster: Access, client: ApiClient, namespace: str, folder: Path, *faults: Fault
) -> Iterator[tuple[OperatorProcess, Proxy, Jobs, Head]]:  # fmt: skip
    """faults: from the operator's start on, for watches begin with it."""
    with PlayedHeads() as heads, Proxy(cluster) as proxy:
        proxy.faults.extend(faults)
        head = heads.add(namespace, "job", script=fails_once)
        access = proxy.access(folder / "proxy.kubeconfig")
        with running_operator(access, namespace, heads.template, folder) as operator:
            yield operator, proxy, Jobs(client, namespace), head


def assert_one_life(jobs: Jobs, head: Head, operator: OperatorProcess) -> None:
    """Two attempts, one after the other, and nothing left over. An operator that dies meanwhile is started again."""

    def comes(condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            if operator.gone():
                operator.start()
            return condition()

        eventually(holds)

    comes(lambda: jobs.status().get("phase") == "Succeeded")
    done = jobs.status()
    assert (done["attempt"], done["restarts"]) == (2, 1)
    assert [driver.attempt for driver in head.drivers] == [1, 2]
    assert [driver.beside for driver in head.drivers] == [(), ()]
    comes(lambda: not jobs.clusters() and not jobs.pods())
    jobs.delete()
    comes(lambda: not jobs.exists())


@pytest.mark.parametrize(
    ("nth", "landed"), DRAWN, ids=[f"{'after' if late else 'before'} {nth}" for nth, late in DRAWN]
)
def test_a_death_at_any_write_leaves_no_duplicate_and_no_orphan(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path, capsys: Capture, nth: int, landed: bool
) -> None:
    with through_proxy(cluster, client, namespace, tmp_path) as (operator, proxy, jobs, head):
        death = Death(run(operator.kill, landed=landed), nth=nth)
        proxy.faults.append(death)
        jobs.create()
        assert_one_life(jobs, head, operator)
        deadly = [f"{call.verb} {call.resource} {call.name}" for call in proxy.calls if call.injected]
        assert deadly or EVERY, f"a life takes {death.matched} writes, and none of them was the {nth}th"
        assert not deadly or nth < WRITES_OF_A_LIFE, "there may be later writes, at which nobody has died"
    with capsys.disabled() if EVERY else nullcontext():
        when = "after" if landed else "before"
        print(f"\n{when} write {nth} of {death.matched}: {deadly[0] if deadly else 'none, the life is over'}")


FAULTS = {
    "conflicts": Fault(answer(409), verbs={"patch"}, probability=0.3, seed=1),
    "throttled": Fault(answer(429, retry_after=1), verbs=WRITES, probability=0.3, seed=2),
    "errors": Fault(answer(500), verbs=WRITES, probability=0.3, seed=3),
    "answers lost": Fault(drop(landed=True), verbs=WRITES, probability=0.3, seed=4),
    "slow": Fault(delay(0.3), probability=0.5, seed=5),
    "watches die": Fault(cut_watch(events=2), verbs={"watch"}, probability=0.8, seed=6),
    "watches expire": Fault(expire_watch(), verbs={"watch"}, probability=0.5, seed=7),
}


@pytest.mark.parametrize(
    "name", [each if each == "conflicts" else pytest.param(each, marks=pytest.mark.slow) for each in FAULTS]
)
def test_what_the_api_server_does_is_survived(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path, name: str
) -> None:
    with through_proxy(cluster, client, namespace, tmp_path, FAULTS[name]) as (operator, proxy, jobs, head):
        jobs.create()
        assert_one_life(jobs, head, operator)
        assert any(call.injected for call in proxy.calls)


@pytest.mark.slow
def test_a_leader_that_was_frozen_writes_nothing_when_it_thaws(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path
) -> None:
    with through_proxy(cluster, client, namespace, tmp_path) as (operator, proxy, jobs, _):
        operator.freeze()
        jobs.create()
        (tmp_path / "second").mkdir()
        with running_operator(
            cluster, namespace, "http://127.0.0.1:1/{namespace}/{service}:{port}", tmp_path / "second"
        ):
            eventually(lambda: jobs.status().get("phase") == "Starting")
            before = len([call for call in proxy.calls if call.writes])
            operator.thaw()
            eventually(operator.gone)
            late = [call for call in proxy.calls if call.writes][before:]
        assert late == [], "its lease is over, and it knows"
