"""The figures of the operator's benchmark, from calls and times that are written by hand."""

from collections.abc import Mapping
from typing import Any

import pytest

from bench.operator import measures
from bench.operator.measures import CHILDREN, for_rayjobs
from bench.operator.site import OPERATOR, Call
from rljob_operator import names
from rljob_operator.render import cluster_of
from tests.rljob_operator.snapshots import SETTINGS, job


def call(resource: str, name: str, moment: float, user: str = OPERATOR, code: int = 201, verb: str = "create") -> Call:
    return Call(user, verb, resource, name, code, moment, moment + 0.25)


def test_a_job_takes_until_the_answer_to_its_last_child() -> None:
    children = [call(child, "a-00000-x", 10 + number) for number, child in enumerate(sorted(CHILDREN))]
    others = [call("configmaps", "a-00001-x", 99.0), call("configmaps", "a-00000-x", 50.0, code=200, verb="patch")]
    calls = [call("rljobs", "a-00000", 9.5, user="admin"), *children, *others]
    assert measures._latencies(calls, ["a-00000"]) == [pytest.approx(10 + len(CHILDREN) - 1 + 0.25 - 9.5)]


def test_clusters_and_pods_are_timed_from_their_jobs_arrival() -> None:
    calls = [
        call("rayjobs", "b-00000", 5.0, user="admin"),
        call("rayclusters", "b-00000-x7f2k", 6.0, user="kuberay-operator"),
        call("rayclusters/status", "b-00000-x7f2k", 7.0, user="kuberay-operator", code=200, verb="update"),
        call("pods", "b-00000-x7f2k-workers-worker-", 12.5, user="kuberay-operator"),
        call("pods", "b-00000-x7f2k-head", 12.0, user="kuberay-operator"),
        call("pods", "b-00001-x7f2k-head", 13.0, user="kuberay-operator"),
    ]
    found = measures._compared("RayJob", calls, ["b-00000", "b-00001"], 2, {"etcd": 0.5})
    assert (found.kind, found.jobs, found.cpu) == ("RayJob", 2, {"etcd": 0.25})
    assert found.cluster == [pytest.approx(1.25)]
    assert found.pods == [pytest.approx(7.75)], "the other job lacks a pod"
    assert found.calls == {"kuberay-operator": 2.5, "admin": 0.5}


def test_rayjobs_get_the_same_pods_without_our_labels() -> None:
    spec = cluster_of(job(), "trainer:1", SETTINGS, {})["spec"]
    made = for_rayjobs(spec)
    assert "upgradeStrategy" not in made
    for ours, theirs in zip(_templates(spec), _templates(made), strict=True):
        assert ours["metadata"]["labels"][names.JOB_LABEL] == "job"
        assert (theirs["spec"], "rljob" in str(theirs["metadata"])) == (ours["spec"], False)


def _templates(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
