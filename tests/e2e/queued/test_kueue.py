"""The local Kueue does what RLJob's operator relies on: a Workload of several podSets is admitted whole, or evicted."""

from e2e.cluster.access import Access
from tests.e2e.jobs import RAY_CLUSTER, Jobs
from tests.e2e.queued.queues import Queues
from tests.e2e.waiting import eventually
from tests.rljob_operator.snapshots import SPEC

GANG = {"head": (1, {"cpu": "1"}), "trainer": (2, {"cpu": "2"}), "reward-judge": (1, {"cpu": "1"})}
"""Six CPUs."""


def test_a_workload_of_three_pod_sets_is_admitted_whole_or_waits(queues: Queues) -> None:
    queues.create({"cpu": 6})
    queues.create_workload("first", GANG)
    queues.reaches("first", "Admitted", "Admitted")
    assigned = queues.workload("first")["status"]["admission"]["podSetAssignments"]
    assert {each["name"]: (each["count"], each["resourceUsage"]) for each in assigned} == {
        "head": (1, {"cpu": "1"}), "trainer": (2, {"cpu": "4"}), "reward-judge": (1, {"cpu": "1"}),
    }  # fmt: skip

    queues.create_workload("second", GANG)
    queues.reaches("second", "QuotaReserved", "Pending", status="False")
    assert "admission" not in queues.workload("second")["status"]
    queues.set_quota({"cpu": 12})
    queues.reaches("second", "Admitted", "Admitted")


def test_a_higher_priority_evicts_and_takes_the_quota_once_it_is_released(queues: Queues) -> None:
    queues.create({"cpu": 6})
    queues.create_workload("low", GANG)
    queues.reaches("low", "Admitted", "Admitted")
    queues.create_workload("high", GANG, priority=10)
    queues.reaches("low", "Evicted", "Preempted")
    queues.reaches("high", "QuotaReserved", "Pending", status="False")

    queues.release("low")
    queues.reaches("high", "Admitted", "Admitted")
    assert queues.conditions("low")["QuotaReserved"][0] == "False"


def test_a_queue_that_is_stopped_evicts(queues: Queues) -> None:
    queues.create({"cpu": 6})
    queues.create_workload("first", GANG)
    queues.reaches("first", "Admitted", "Admitted")
    queues.patch(stopPolicy="HoldAndDrain")
    queues.reaches("first", "Evicted", "ClusterQueueStopped")


def test_the_visibility_api_tells_the_place_in_the_queue(cluster: Access, queues: Queues) -> None:
    queues.create({"cpu": 0})
    for name, priority in (("low", 0), ("high", 1)):
        queues.create_workload(name, GANG, priority=priority)
    eventually(lambda: queues.places(cluster) == {"high": 0, "low": 1})


def test_kueue_leaves_the_pods_of_a_queued_job_to_its_operator(queues: Queues, jobs: Jobs) -> None:
    """The namespace's default queue, which takes in every other pod, gets none of them."""
    queues.create({"cpu": 0}, name="default")
    labels = {"kueue.x-k8s.io/queue-name": "elsewhere"}
    jobs.create_from(
        {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"labels": labels}, "spec": SPEC}, "job"
    )
    owner = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "name": "job", "controller": True}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray-head", "image": "none"}]}}}
    queues.api.create_namespaced_custom_object(**RAY_CLUSTER, namespace=queues.namespace, body={
        "apiVersion": "ray.io/v1", "kind": "RayCluster",
        "metadata": {"name": "job", "ownerReferences": [owner | {"uid": jobs.get()["metadata"]["uid"]}]},
        "spec": {"headGroupSpec": head},
    })  # fmt: skip
    eventually(lambda: [pod.status.phase for pod in jobs.pods()] == ["Running"])
    assert queues.workloads() == []
