"""The operator's roles against what it asks for in a job's whole life: nothing is missing, and nothing is idle."""

from collections.abc import Iterator

import pytest

from e2e.cluster.access import Access
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster.rights import Call, Right, calls, granted, missing, unused
from tests.charts.release import Release, installed
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import running_operator
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import Driver
from tests.rljob_operator.played_head import PlayedHeads


@pytest.fixture(scope="module")
def release(helm: Helm, cluster: Access, layout: Layout) -> Iterator[Release]:
    with installed(helm, cluster) as release:
        yield release


def test_the_roles_grant_what_a_jobs_life_takes_and_nothing_else(release, client, layout, tmp_path):
    operator = release.as_operator(tmp_path / "kubeconfig")
    jobs = Jobs(client, release.jobs)
    with (
        PlayedHeads() as heads,
        running_operator(operator, release.jobs, heads.template, tmp_path, release.name),
    ):
        live_a_whole_life(jobs, heads)
        eventually(lambda: release.children("job") == ["persistentvolumeclaim/job-checkpoints"])

    asked = calls(layout.audit_log, f"system:serviceaccount:{release.name}:{release.full_name}")
    rights = granted(release.manifests(), release.full_name)
    assert [call for call in missing(rights, asked) if not (of_kueue(call) or of_gangs(call))] == []
    assert unused(rights, asked) == [
        # The API server itself asks for it, where somebody makes a child that blocks the deletion of its owner.
        Right("update", "rljobs.rljob.dev/finalizers", release.jobs, ""),
    ]


def of_kueue(each: Call | Right) -> bool:
    """What a release without kueue.enabled is refused: so its operator knows that it may not use Kueue."""
    return each.resource.partition("/")[0].endswith(".kueue.x-k8s.io")


def of_gangs(each: Call | Right) -> bool:
    """The same without a scheduler in gang."""
    return each.resource.startswith("podgroups.")


def live_a_whole_life(jobs: Jobs, heads: PlayedHeads) -> None:
    """Drivers fail until pods are replaced; the job succeeds and its children go."""
    heads.add(jobs.namespace, "job")
    jobs.create(
        ttlAfterFinished="1s",
        recovery={"backoff": {"initial": "1ms"}},
        rewards={"models": [{"name": "rm", "path": "org/rm", "kind": "classifier"}]},
    )
    first = runs(heads, jobs, attempt=1)
    first.end(75, "RankLost", "rank-1 died")
    for attempt in (2, 3):
        driver = runs(heads, jobs, attempt)
        driver.end(75, "RankLost", "rank-1 died")
    runs(heads, jobs, attempt=4).end(0)
    jobs.reaches("Succeeded")


def runs(heads: PlayedHeads, jobs: Jobs, attempt: int) -> Driver:
    """The attempt's driver, which runs now."""
    head = heads.head(jobs.namespace, "job")
    driver: Driver = eventually(lambda: next((each for each in head.drivers if each.attempt == attempt), None))
    driver.start()
    eventually(lambda: jobs.status().get("phase") == "Running" and jobs.status()["attempt"] == attempt)
    return driver
