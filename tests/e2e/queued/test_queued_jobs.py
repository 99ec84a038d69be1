"""Jobs with a queue: drivers are played, admissions and evictions are Kueue's own."""

import pytest

from rljob_operator import names
from tests.e2e.jobs import runs
from tests.e2e.lives import MODEL
from tests.e2e.queued.queued_jobs import NO_QUOTA, NODES, QUOTA, QueuedJobs
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import train

SLOWLY = train(10_000, seconds=0.2, every=10_000)


@pytest.fixture
def jobs(operator, client, namespace, queues) -> QueuedJobs:
    jobs = QueuedJobs(client, namespace, queues)
    jobs.begin()
    return jobs


def test_a_job_runs_with_quota_where_its_flavor_says_and_another_waits_for_it(heads, jobs):
    heads.add(jobs.namespace, "job")
    jobs.queue()
    driver = runs(heads, jobs)
    assert jobs.conditions()["Admitted"][:2] == ("True", "Admitted")
    assert jobs.status()["workload"] | {"name": ""} == {
        "name": "", "queue": "queue", "clusterQueue": jobs.queues.full_name("queue"), "evictions": 0,
    }  # fmt: skip
    for pod in jobs.pods():
        assert pod.spec.node_selector == NODES
        assert pod.metadata.labels[names.CLUSTER_QUEUE_LABEL] == jobs.queues.full_name("queue")
        group = names.HEAD_GROUP if pod.metadata.labels[names.ROLE_LABEL] == names.HEAD else names.TRAINER_GROUP
        assert pod.metadata.labels[names.POD_SET_LABEL] == group
    eventually(lambda: jobs.workload_is("PodsReady"))

    heads.add(jobs.namespace, "second", script=train(2))
    jobs.queue("second")
    eventually(lambda: "insufficient unused quota" in jobs.conditions("second").get("Ready", ("", "", ""))[2])
    assert jobs.is_queued("second")
    driver.end(0)
    jobs.reaches("Succeeded", "second")
    eventually(lambda: jobs.workload_is("Finished") and jobs.workload_is("Finished", "second"))
    assert not jobs.workload()["metadata"].get("finalizers")


def test_a_higher_priority_preempts_and_the_job_goes_on_from_its_checkpoint(heads, jobs):
    heads.add(jobs.namespace, "job", script=SLOWLY)
    heads.add(jobs.namespace, "urgent", script=train(2))
    jobs.queue(priority="low")
    eventually(lambda: jobs.status().get("progress", {}).get("step", 0) > 2)
    jobs.queue("urgent", priority="high")
    eventually(jobs.is_queued)
    kind, reason, message = jobs.conditions()["Evicted"]
    assert (kind, reason) == ("True", "Preempted")
    assert f"Preempted to accommodate RLJob {jobs.namespace}/urgent" in message
    saved = jobs.status()
    assert (saved["workload"]["evictions"], saved["workload"]["lostSteps"]) == (1, 0)
    jobs.reaches("Succeeded", "urgent")

    eventually(lambda: jobs.status()["attempt"] == 2 and jobs.status()["phase"] == "Running")
    head = heads.head(jobs.namespace, "job")
    eventually(lambda: jobs.status()["progress"]["step"] > saved["checkpoint"]["step"])
    assert jobs.status()["restarts"] == 0
    assert jobs.conditions()["Evicted"][:2] == ("False", "NotEvicted")
    assert [driver.beside for driver in head.drivers] == [(), ()]


def begins(jobs) -> None:
    eventually(jobs.clusters)


def trains(jobs) -> None:
    eventually(lambda: jobs.status().get("progress", {}).get("step", 0) > 1)


def recovers(jobs) -> None:
    trains(jobs)
    jobs.kill_pods("head")
    jobs.reaches("Recovering")


def stops(jobs) -> None:
    trains(jobs)
    jobs.patch(suspend=True)
    jobs.reaches("Suspending")
    jobs.patch(suspend=False)


@pytest.mark.parametrize("reached", [begins, trains, recovers, stops])
def test_in_whatever_phase_its_queue_stops_the_job_gives_back_its_quota_and_comes_back(heads, jobs, reached):
    heads.add(jobs.namespace, "job", script=SLOWLY)
    jobs.queue()
    reached(jobs)
    jobs.queues.patch(stopPolicy="HoldAndDrain")
    eventually(lambda: jobs.is_queued() and not jobs.workload_is("QuotaReserved"))
    restarts = jobs.status()["restarts"]
    jobs.queues.patch(stopPolicy="None")
    jobs.reaches("Running")
    assert jobs.status()["restarts"] == restarts, "an eviction is free of charge"


def test_a_lowered_quota_does_not_evict_but_keeps_the_next_one_waiting(heads, jobs):
    heads.add(jobs.namespace, "job", script=train(40, seconds=0.2))
    jobs.queue()
    trains(jobs)
    jobs.queues.set_quota(NO_QUOTA)
    jobs.queue("second")
    jobs.reaches("Succeeded")
    assert jobs.status()["workload"]["evictions"] == 0
    assert jobs.is_queued("second")
    heads.add(jobs.namespace, "second", script=train(2))
    jobs.queues.set_quota(QUOTA)
    jobs.reaches("Succeeded", "second")


def test_a_workload_that_a_person_deletes_or_deactivates_stops_the_job_until_it_is_admitted_again(heads, jobs):
    heads.add(jobs.namespace, "job", script=SLOWLY)
    jobs.queue()
    trains(jobs)
    before = jobs.workload()["metadata"]["uid"]
    jobs.delete_workload()
    eventually(lambda: jobs.status()["attempt"] == 2 and jobs.status()["phase"] == "Running")
    assert jobs.workload()["metadata"]["uid"] != before
    assert (jobs.status()["restarts"], jobs.status()["workload"]["lostSteps"]) == (0, 0)

    jobs.activate(active=False)
    eventually(lambda: jobs.is_queued() and jobs.conditions()["Ready"][1] == "WorkloadDeactivated")
    jobs.activate(active=True)
    eventually(lambda: jobs.status()["attempt"] == 3 and jobs.status()["phase"] == "Running")


def test_who_waits_may_change_queue_and_priority_be_suspended_and_be_deleted(heads, jobs):
    jobs.queues.set_quota(NO_QUOTA)
    jobs.queue(priority="low")
    eventually(lambda: jobs.workload() is not None and jobs.is_queued())
    jobs.label(**{names.PRIORITY_LABEL: jobs.queues.full_name("high")})
    eventually(lambda: jobs.workload()["spec"]["priority"] == 10)
    jobs.label(**{names.QUEUE_LABEL: "nowhere"})
    eventually(lambda: jobs.conditions()["Ready"][1] == "QueueMissing")
    assert "LocalQueue nowhere does not exist" in jobs.conditions()["Ready"][2]
    jobs.label(**{names.QUEUE_LABEL: "No_Name"})
    eventually(lambda: jobs.conditions()["Ready"][1] == "QueueNameInvalid" and jobs.workload() is None)
    jobs.label(**{names.QUEUE_LABEL: "queue"})
    eventually(lambda: jobs.workload() is not None and jobs.status()["workload"]["queue"] == "queue")
    jobs.patch(suspend=True)
    jobs.reaches("Suspended")
    eventually(lambda: jobs.workload() is None)
    jobs.patch(suspend=False)
    eventually(lambda: jobs.workload() is not None)
    jobs.delete()
    eventually(lambda: not jobs.exists() and jobs.workload() is None)


def test_a_job_that_is_deleted_or_suspended_gives_its_quota_to_the_next(heads, jobs):
    for name in ("job", "second", "third"):
        heads.add(jobs.namespace, name)
    jobs.queue()
    driver = runs(heads, jobs)
    jobs.queue("second")
    jobs.delete()
    jobs.reaches("Starting", "second")
    assert not jobs.exists() or not jobs.pods_of("job")
    assert not driver.beside
    jobs.queue("third")
    jobs.patch("second", suspend=True)
    jobs.reaches("Starting", "third")
    assert jobs.status("second")["phase"] == "Suspended"


def test_a_job_whose_finalizer_a_person_removes_gives_its_quota_to_the_next(heads, jobs):
    for name in ("job", "second"):
        heads.add(jobs.namespace, name)
    jobs.queue()
    runs(heads, jobs)
    jobs.queue("second")
    jobs.delete_by_force()
    jobs.reaches("Starting", "second")
    assert not jobs.pods_of("job")


def test_a_job_that_may_start_with_fewer_pods_does_and_gives_back_servers_that_it_needs_no_more(heads, jobs):
    jobs.queues.set_quota({**QUOTA, "nvidia.com/gpu": 6})
    heads.add(jobs.namespace, "job")
    jobs.queue(cluster={"nodes": 2, "minNodes": 1, "gpusPerNode": 4}, rewards={"models": [MODEL]})
    runs(heads, jobs)
    assert (len(jobs.workers()), jobs.status()["gpus"]) == (1, 6)
    jobs.patch(rewards={"models": [{**MODEL, "replicas": 1}]})
    eventually(lambda: jobs.workload()["status"].get("reclaimablePods") == [{"name": "reward-rm", "count": 1}])
    assert jobs.status()["phase"] == "Running"
