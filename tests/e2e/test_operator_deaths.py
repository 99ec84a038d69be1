"""The operator dies after a write, or its writes fail: on a real control plane, through a proxy that counts them.

Every write of every life is a place to die at. `make chaos-operator` visits all of them and says which they were; a
test run, a few that a seed draws.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.proxy import (
    WRITES,
    Call,
    Fault,
    Proxy,
    answer,
    cut_watch,
    delay,
    drop,
    expire_watch,
    fail_watch,
    hang,
    run,
)
from rljob_operator.kube.kinds import OPTIONAL, WATCHED
from tests.e2e.jobs import Jobs
from tests.e2e.lives import LIVES, Life
from tests.e2e.operator_process import OperatorProcess, running_operator
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import Head
from tests.rljob_operator.played_head import PlayedHeads

EVERY = os.environ.get("RLJOB_EVERY_WRITE") == "1"

WRITES_OF_A_LIFE = 60
"""At most so many does a life take, to the end of its deletion, the Lease's left out."""

SHORTEST = 15
"""So many does every life take at least."""

SPREAD = 6
"""A life takes a few writes more or less each time. So far beyond one's last write nobody looks for another."""

DEATHS = [(life, nth, landed) for life in LIVES for nth in range(1, WRITES_OF_A_LIFE + 1) for landed in (True, False)]
DRAWN = DEATHS if EVERY else sorted(random.Random(7).sample([death for death in DEATHS if death[1] <= SHORTEST], 2))


lasted: dict[str, int] = {}
"""Writes of each life that was over before its death came, in this process."""


@dataclass
class Death(Fault):
    """At the n-th write that is not the Lease's."""

    def strikes(self, call: Call) -> bool:
        return call.writes and call.resource != "leases" and super().strikes(call)


@contextmanager
def through_proxy(
    cluster: Access, client: ApiClient, namespace: str, folder: Path, life: Life, *faults: Fault
) -> Iterator[tuple[OperatorProcess, Proxy, Jobs, Head]]:  # fmt: skip
    """faults: from the operator's start on, for watches begin with it."""
    with PlayedHeads() as heads, Proxy(cluster) as proxy:
        proxy.faults.extend(faults)
        head = heads.add(namespace, "job", script=life.script)
        access = proxy.access(folder / "proxy.kubeconfig")
        with running_operator(access, namespace, heads.template, folder) as operator:
            yield operator, proxy, Jobs(client, namespace), head


@pytest.mark.parametrize(
    ("life", "nth", "landed"),
    DRAWN,
    ids=[f"{life}, {'after' if late else 'before'} {nth}" for life, nth, late in DRAWN],
)
def test_a_death_at_any_write_leaves_no_duplicate_and_no_orphan(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path, life: str, nth: int, landed: bool
) -> None:
    if nth > lasted.get(life, nth) + SPREAD:
        pytest.skip(f"such a life took {lasted[life]} writes")
    with through_proxy(cluster, client, namespace, tmp_path, LIVES[life]) as (operator, proxy, jobs, head):
        death = Death(run(operator.kill, landed=landed), nth=nth)
        proxy.faults.append(death)
        LIVES[life].take_place(jobs, head, operator)
        deadly = [f"{call.verb} {call.resource} {call.name}" for call in proxy.calls if call.injected]
        assert deadly or EVERY, f"a life takes {death.matched} writes, and none of them was the {nth}th"
        assert not deadly or nth < WRITES_OF_A_LIFE, "there may be later writes, at which nobody has died"
    if not deadly:
        lasted[life] = max(death.matched, lasted.get(life, 0))
    when = "after" if landed else "before"
    print(f"{life}, {when} write {nth} of {death.matched}: {deadly[0] if deadly else 'none, the life is over'}")


RETRY_AFTER = 1

PRESENT = len(WATCHED) - len(OPTIONAL)
"""Kinds that are watched on a control plane without Kueue and gang schedulers."""

FAULTS = {
    "conflicts": Fault(answer(409), verbs={"patch"}, probability=0.3, seed=1),
    "throttled": Fault(answer(429, retry_after=RETRY_AFTER), verbs=WRITES, probability=0.3, seed=2),
    "errors": Fault(answer(500), verbs=WRITES, probability=0.3, seed=3),
    "answers lost": Fault(drop(landed=True), verbs=WRITES, probability=0.3, seed=4),
    "no answer": Fault(hang(landed=True), verbs=WRITES, probability=0.1, seed=8),
    "slow": Fault(delay(0.3), probability=0.5, seed=5),
    "watches die": Fault(cut_watch(events=2), verbs={"watch"}, probability=0.8, seed=6),
    "watches expire": Fault(expire_watch(), verbs={"watch"}, probability=0.5, seed=7),
    "watches fail": Fault(fail_watch(500), verbs={"watch"}, resource="rayclusters", nth=1),
    "watches find no such kind": Fault(answer(404), verbs={"watch"}, resource="rayclusters", nth=1),
}

COUNTED_AS = {
    "conflicts": "409", "throttled": "429", "errors": "500", "answers lost": "NoConnection", "no answer": "Timeout",
}  # fmt: skip
"""In the operator's metrics."""


@pytest.mark.parametrize(
    "name", [each if each == "conflicts" else pytest.param(each, marks=pytest.mark.slow) for each in FAULTS]
)
def test_what_the_api_server_does_is_survived(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path, name: str
) -> None:
    life = LIVES["restarted"]
    with through_proxy(cluster, client, namespace, tmp_path, life, FAULTS[name]) as (operator, proxy, jobs, head):
        life.take_place(jobs, head, operator)
        assert any(call.injected for call in proxy.calls)
        if code := COUNTED_AS.get(name):
            assert operator.metric("rljob_operator_api_requests_total", code=code) > 0
        if name.startswith("watches"):
            cut = sum(call.injected for call in proxy.calls)
            eventually(lambda: operator.metric("rljob_operator_api_requests_total", verb="watch") >= PRESENT + cut)
        if name == "throttled":
            assert_no_hurry(proxy.calls)


def assert_no_hurry(calls: Sequence[Call]) -> None:
    """What the API server refused for now is asked again when it said, not before: by the job's reconciles."""
    reconciles = [call for call in calls if call.writes and call.resource not in ("leases", "events")]
    refused = [call for call in reconciles if call.injected]
    for call in refused:
        later = [other.at for other in reconciles if other.path == call.path and other.at > call.at]
        assert min(later, default=float("inf")) >= call.at + RETRY_AFTER
    assert refused


@pytest.mark.slow
@pytest.mark.parametrize("nth", [0, 1, 6], ids=["before it hears of the job", "within its first writes", "later"])
def test_a_leader_that_was_frozen_writes_nothing_when_it_thaws(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path, nth: int
) -> None:
    """nth: the write at which it freezes, with others decided that it has not sent."""
    life = LIVES["restarted"]
    with through_proxy(cluster, client, namespace, tmp_path, life) as (operator, proxy, jobs, _):
        if nth:
            proxy.faults.append(Death(run(operator.freeze, landed=True), nth=nth))
        else:
            operator.freeze()
        jobs.create()
        eventually(lambda: not nth or any(call.injected for call in proxy.calls))
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
