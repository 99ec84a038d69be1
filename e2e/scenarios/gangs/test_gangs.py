"""Jobs that each need every GPU, under real schedulers of gangs, and without one."""

from collections.abc import Callable

import pytest

from e2e.cluster.binaries import GANGS
from e2e.cluster.rights import calls, granted, missing, unused
from e2e.scenarios.gangs.conftest import Site, on
from e2e.scenarios.gangs.team import GPUS, HALF, NODES, PODS, Team, holds
from tests.charts.test_rights import of_gangs
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.timeout(1800)

Make = Callable[[], Team]


@on("")
def test_without_a_gang_two_jobs_wait_for_each_other(team: Make) -> None:
    first, second = team(), team()
    for each in (first, second):
        each.begin(pods=HALF)
        eventually(lambda each=each: len(each.bound()) == HALF)
    for each in (first, second):
        each.allow()
        eventually(lambda each=each: len(each.pods()) == PODS)
    assert holds(lambda: len(first.bound()) == len(second.bound()) == HALF)


@on("")
@pytest.mark.parametrize("scheduler", GANGS)
def test_without_its_scheduler_a_job_says_what_is_missing(team: Make, scheduler: str) -> None:
    job = team()
    job.begin(gang={"scheduler": scheduler})
    assert job.reaches("Pending")
    assert job.conditions()["Ready"][1] == "GangSchedulerMissing"
    assert f"set gang.{scheduler} in the operator's chart" in job.conditions()["Ready"][2]
    assert not job.clusters()
    assert not job.pods()


@on(*GANGS)
def test_with_a_gang_two_jobs_run_one_after_the_other(team: Make) -> None:
    first, second = team(), team()
    first.begin(pods=HALF)
    assert holds(lambda: not first.bound()), "half of a gang gets no node"
    second.begin(pods=HALF)
    first.allow()
    driver = first.starts()
    second.allow()
    eventually(lambda: len(second.pods()) == PODS)
    assert holds(lambda: not second.bound())
    assert "is not scheduled" in second.conditions()["ClusterReady"][2]
    driver.end(0)
    first.reaches("Succeeded")
    second.starts()
    eventually(lambda: first.pod_group() is None)
    second.delete()
    eventually(lambda: not second.exists() and second.pod_group() is None)


@on(*GANGS)
def test_a_worker_that_replaces_a_lost_one_gets_its_node(team: Make) -> None:
    job = team()
    job.begin()
    job.starts()
    before = job.workers()
    lost = next(pod for pod in job.pods() if pod.metadata.uid in before)
    job.kill_pod(lost.metadata.name)
    eventually(lambda: len(job.bound()) == PODS and lost.metadata.uid not in job.workers())
    assert len(job.workers() & before) == NODES - 1


@on(*GANGS)
def test_a_reward_model_waits_with_the_others(team: Make) -> None:
    job, other = team(), team()
    other.occupy_node()
    model = {"name": "rm", "path": "org/rm", "kind": "classifier", "gpusPerReplica": GPUS}
    job.begin(cluster={"nodes": NODES - 1, "gpusPerNode": GPUS}, rewards={"models": [model]})
    eventually(lambda: len(job.pods()) == PODS)
    assert holds(lambda: not job.bound()), "three nodes are free, and the gang needs four"
    other.free_node()
    job.starts()
    assert job.conditions()["RewardModelsReady"][0] == "True"


@on(*GANGS)
def test_the_roles_grant_what_a_gang_takes_and_nothing_else(site: Site, team: Make) -> None:
    job = team()
    job.begin()
    job.starts()
    job.delete()
    eventually(lambda: not job.exists())
    account = f"system:serviceaccount:{site.release.name}:{site.release.full_name}"
    asked, rights = (
        calls(site.plane.layout.audit_log, account),
        granted(site.release.manifests(), site.release.full_name),
    )
    assert [right for right in unused(rights, asked) if of_gangs(right)] == []
    own = {right.resource for right in rights if of_gangs(right)}
    assert [call for call in missing(rights, asked) if call.resource in own] == []
