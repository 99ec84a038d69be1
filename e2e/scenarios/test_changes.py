"""What people do to a job while it trains: they edit it, delete it, and start another beside it."""

import json
from typing import Any

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import new_namespace
from e2e.cluster_chaos.leftovers import left_by
from e2e.nodes import release
from e2e.scenarios.job import LONG, Job
from e2e.scenarios.removal import leaves_nothing
from rljob_operator.names import JOB_LABEL, MAKER_ANNOTATION, claim

pytestmark = pytest.mark.timeout(1800)


def test_a_job_is_deleted_in_the_middle_of_a_step(job: Job) -> None:
    before = set(left_by(job))
    job.apply(**LONG, checkpoint={"volume": {"retain": False}})
    job.trains()
    assert f"persistentvolumeclaim/{claim(job.name)}" in left_by(job)
    job.kubectl("delete", "rljob", job.name, "--wait=false")
    job.reaches("Deleting")
    job.kubectl("delete", "rljob", job.name, "--ignore-not-found", "--timeout=300s")  # waits for its end
    leaves_nothing(job, before)
    assert "Deleting" in job.events()


def test_a_deleted_job_leaves_its_volume(job: Job) -> None:
    before = set(left_by(job))
    job.apply(**LONG)
    job.trains()
    kept = {each for each in left_by(job) if each.startswith("persistentvolume")}
    assert f"persistentvolumeclaim/{claim(job.name)}" in kept
    job.kubectl("delete", "rljob", job.name, "--timeout=300s")
    leaves_nothing(job, before | kept)
    metadata = json.loads(job.kubectl("get", "pvc", claim(job.name), "--output=json"))["metadata"]
    assert "deletionTimestamp" not in metadata, "it does not go a moment later"
    assert set(left_by(job)) == before | kept


def test_the_spec_is_edited_while_the_job_trains(job: Job) -> None:
    job.apply(**LONG)
    job.trains()
    before = job.spec["actor"]["learningRate"]
    with pytest.raises(ClusterError, match="actor can change only while suspend is true"):
        job.patch(actor={"learningRate": before / 2})
    assert job.spec["actor"]["learningRate"] == before
    job.patch(training={"steps": 80})
    job.eventually(lambda: job.runs(attempt=2), "attempt 2")
    job.resumes(attempt=2, after=70)
    status = job.succeeds_after("MoreSteps")
    assert (status["progress"]["totalSteps"], status["restarts"], status["attempt"]) == (90, 0, 2)


def test_two_jobs_of_one_name_in_two_namespaces(cluster: Access, client: ApiClient, job: Job) -> None:
    with new_namespace(client, release.RESTRICTED) as namespace:
        other = Job(cluster, namespace)
        for each in (job, other):
            each.apply(**LONG, ttlAfterFinished="1h")  # the ends are looked at one after the other
        job.eventually(lambda: phases(cluster, job, other) == ["Running", "Running"], "look in which both run")
        are_apart(belongings(job), belongings(other))
        for each in (job, other):
            status = each.succeeds()
            assert (status["progress"]["step"], status["restarts"], status["attempt"]) == (70, 0, 1)


def phases(cluster: Access, *jobs: Job) -> list[str]:
    """As one answer of the API server has them."""
    found = json.loads(cluster.kubectl("get", "rljobs", "--all-namespaces", "--output=json"))["items"]
    there = {each["metadata"]["namespace"]: each.get("status", {}).get("phase") for each in found}
    return [str(there.get(each.namespace)) for each in jobs]


MADE = {"RayCluster", "PersistentVolumeClaim", "Secret", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget"}
"""For each job. Pods are of its RayCluster."""


def belongings(job: Job) -> list[dict[str, Any]]:
    """All of it, by the job's label. Raises AssertionError where something is not this job's, or is missing."""
    uid = json.loads(job.kubectl("get", "rljob", job.name, "--output=json"))["metadata"]["uid"]
    chosen = ("get", ",".join(each.lower() for each in sorted(MADE)), f"--selector={JOB_LABEL}={job.name}")
    made = json.loads(job.kubectl(*chosen, "--output=json"))["items"]
    assert {each["kind"] for each in made} == MADE
    assert {owner(each) for each in made} == {uid}

    (ray_cluster,) = (each["metadata"]["uid"] for each in made if each["kind"] == "RayCluster")
    assert job.status["cluster"]["uid"] == ray_cluster
    pods = json.loads(job.kubectl("get", "pods", f"--selector={JOB_LABEL}={job.name}", "--output=json"))["items"]
    assert [owner(each) for each in pods] == [ray_cluster] * 2, "a head and a worker"
    return [*made, *pods]


def owner(each: dict[str, Any]) -> str:
    """Its uid. A claim that is kept when its job goes says for which one it was made."""
    owners = [str(one["uid"]) for one in each["metadata"].get("ownerReferences", ()) if one.get("controller")]
    return owners[0] if owners else str(each["metadata"]["annotations"][MAKER_ANNOTATION])


def are_apart(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """They share no object, no volume and no token."""
    for what in (uid_of, volume_of, tokens_of):
        ours, theirs = ({found for each in all_of if (found := what(each))} for all_of in (some, others))
        assert ours, what.__name__
        assert theirs, what.__name__
        assert ours.isdisjoint(theirs), what.__name__


def uid_of(each: dict[str, Any]) -> str:
    return str(each["metadata"]["uid"])


def volume_of(each: dict[str, Any]) -> str | None:
    """Of a claim."""
    return str(each["spec"]["volumeName"]) if each["kind"] == "PersistentVolumeClaim" else None


def tokens_of(each: dict[str, Any]) -> str | None:
    """Of a Secret."""
    return json.dumps(each["data"], sort_keys=True) if each["kind"] == "Secret" else None
