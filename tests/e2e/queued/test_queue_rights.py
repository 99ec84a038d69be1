"""The chart's roles for Kueue against what the operator asks for when jobs are queued, evicted and suspended."""

import pytest
from kubernetes.client import ApiException

from e2e.cluster.rights import calls, granted, missing, unused
from tests.charts.release import installed
from tests.charts.test_rights import of_gangs, of_kueue
from tests.e2e.jobs import runs
from tests.e2e.operator_process import running_operator
from tests.e2e.queued.queued_jobs import QueuedJobs
from tests.e2e.queued.queues import Queues
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_head import PlayedHeads

pytestmark = pytest.mark.slow


def test_the_roles_grant_what_queues_take_and_nothing_else(helm, cluster, client, layout, tmp_path):
    with installed(helm, cluster) as release, PlayedHeads() as heads:
        release.install(kueue={"enabled": True})
        operator = release.as_operator(tmp_path / "kubeconfig")
        jobs = QueuedJobs(client, release.jobs, Queues(client, release.jobs))
        with running_operator(operator, release.jobs, heads.template, tmp_path, release.name):
            live_in_a_queue(jobs, heads)
        with operator.client() as own, pytest.raises(ApiException, match=r"the label rljob\.dev/job"):
            Queues(own, release.jobs).create_workload("others", {"head": (1, {})})
        jobs.queues.delete()
        asked = calls(layout.audit_log, f"system:serviceaccount:{release.name}:{release.full_name}")
        rights = granted(release.manifests(), release.full_name)
    assert [call for call in missing(rights, asked) if not of_gangs(call)] == []
    assert [right for right in unused(rights, asked) if of_kueue(right)] == []


def live_in_a_queue(jobs: QueuedJobs, heads: PlayedHeads) -> None:
    """The job is evicted, then suspended, and succeeds in its second attempt."""
    jobs.begin()
    heads.add(jobs.namespace, "job")
    jobs.queue(priority="low")
    runs(heads, jobs)
    jobs.queues.patch(stopPolicy="HoldAndDrain")
    eventually(jobs.is_queued)
    jobs.patch(suspend=True)
    eventually(lambda: jobs.workload() is None)
    jobs.queues.patch(stopPolicy="None")
    jobs.patch(suspend=False)
    runs(heads, jobs, attempt=2).end(0)
    jobs.reaches("Succeeded")
    eventually(lambda: jobs.workload_is("Finished") and not jobs.workload()["metadata"].get("finalizers"))
