"""The figures of the operator's benchmark, from calls and times that are written by hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.operator import measures
from bench.operator.figures import Compared, Creation, Full, Life, percentile
from bench.operator.measures import CHILDREN, for_rayjobs
from bench.operator.page import write_page
from bench.operator.site import CLIENT, NAMESPACE, OPERATOR, OTHERS, Call, Site, _call, spent
from rljob_operator import names
from rljob_operator.render import Placement, cluster_of
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


@pytest.mark.parametrize(
    ("values", "half", "most"),
    [([7.0], 7.0, 7.0), ([4.0, 1.0, 3.0, 2.0], 2.0, 4.0), ([float(each) for each in range(1, 201)], 100.0, 198.0)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], half: float, most: float) -> None:
    assert (percentile(50, values), percentile(99, values)) == (half, most)


def test_the_log_of_the_api_server_is_read_once_and_no_half_line(tmp_path: Path) -> None:
    def line(name: str, user: str, namespace: str = NAMESPACE) -> str:
        event = {
            "stage": "ResponseComplete", "verb": "create", "user": {"username": user},
            "objectRef": {"resource": "pods", "subresource": "status", "name": name, "namespace": namespace},
            "responseStatus": {"code": 201}, "requestReceivedTimestamp": "1970-01-01T00:00:02.500000Z",
            "stageTimestamp": "1970-01-01T00:00:03.000000Z",
        }  # fmt: skip
        return json.dumps(event) + "\n"

    log = tmp_path / "audit.log"
    ours = line("a", f"system:serviceaccount:{NAMESPACE}:{OPERATOR}")
    log.write_text(ours + line("b", "admin", "elsewhere") + line("c", "admin")[:40])
    plane = cast("Any", SimpleNamespace(layout=SimpleNamespace(audit_log=log)))
    site = Site(plane, cast("Any", None), tmp_path, "")
    assert site.calls() == [Call(OPERATOR, "create", "pods/status", "a", 201, 2.5, 3.0)]
    log.write_text(log.read_text()[:-40] + line("c", "admin"))
    assert [(each.user, each.name) for each in site.calls()] == [("admin", "c")]
    assert site.calls() == []


def test_a_call_for_a_generated_name_says_what_it_asked_for() -> None:
    event = {
        "verb": "create", "user": {"username": "kuberay-operator"}, "responseStatus": {"code": 201},
        "requestObject": {"metadata": {"generateName": "a-00000-worker-"}},
        "requestReceivedTimestamp": "1970-01-01T00:00:02Z", "stageTimestamp": "1970-01-01T00:00:03Z",
    }  # fmt: skip
    assert _call(event, {"resource": "pods"}).name == "a-00000-worker-"


def test_rayjobs_get_the_same_pods_without_our_labels() -> None:
    spec = cluster_of(job(), "trainer:1", SETTINGS, Placement())["spec"]
    made = for_rayjobs(spec)
    assert "upgradeStrategy" not in made
    for ours, theirs in zip(_templates(spec), _templates(made), strict=True):
        assert ours["metadata"]["labels"][names.JOB_LABEL] == "job"
        assert (theirs["spec"], "rljob" in str(theirs["metadata"])) == (ours["spec"], False)


def _templates(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize(("resource", "verb", "rests"), [
    ("leases", "update", True), ("pods", "list", True), ("secrets", "delete", False),
])  # fmt: skip
def test_the_next_measurement_waits_until_nobody_writes(
    monkeypatch: pytest.MonkeyPatch, resource: str, verb: str, rests: bool
) -> None:
    monkeypatch.setattr(measures, "REST_SECONDS", 0.0)
    told = [[call("pods", "before", 1.0)], [call(resource, "a", 2.0, verb=verb)]]
    assert measures._at_rest(cast("Any", SimpleNamespace(calls=lambda: told.pop(0)))) == rests


def test_cpu_is_that_of_the_time_between() -> None:
    assert spent({"etcd": 2.0, "gone": 1.0}, {"etcd": 2.5, "new": 3.0}) == {"new": 3.0, "etcd": 0.5}


def test_the_page_says_what_was_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {("create", "secrets", 201): 100, ("patch", "rljobs/status", 200): 300}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    cpu = {OPERATOR: 2.0, "kube-apiserver": 6.0, CLIENT: 1.0, OTHERS: 5.0}
    slow = Creation(100, 20.0, 5.0, [0.5] * 98 + [3.0] * 2, calls, cpu, 10.0)
    stored = Full(1000, 60.0, 12.5, 1001, 0, (50 << 20, 150 << 20), {OPERATOR: 10.0}, 60.0, {OPERATOR: 0.3})
    pair = [Compared(kind, 2, [0.5, 0.5], [2.0, 2.0], {OPERATOR: 20.0}, {OPERATOR: 0.01}) for kind in ("A", "B")]
    lives, calm = Life(3, 20, 10, {("patch", "rljobs/status"): 9.5}), replace(slow, rate=1.0, latencies=[0.25])
    write_page(lives, calm, slow, slow, stored, (pair[0], pair[1]), tmp_path, "--jobs 1000")
    page = (tmp_path / "operator.md").read_text()
    assert '`make bench-operator ARGS="--jobs 1000"` of commit ' in page
    assert "the goal is a p99 below 1 s, which is missed" in page
    assert "take 1.2 cores of the API server and 0.4 of the operator, and 1.8 with all else" in page
    assert "| stopped, 1 a second | 20.0 | 10.0 | 0.25 s | 0.25 s |" in page
    assert "| stopped | 20.0 | 10.0 | 0.50 s | 3.00 s | 3.00 s | 4.0 | 40 % | 25 % |" in page
    assert "| from operator start to every one decided | 12.5 s (goal 30 s: for 10000 jobs) |" in page
    write_page(lives, calm, slow, slow, replace(stored, jobs=10_000), (pair[0], pair[1]), tmp_path, "")
    assert "12.5 s (goal 30 s: met) |" in (tmp_path / "operator.md").read_text()
    assert "| memory per job | 102.4 KiB |" in page
