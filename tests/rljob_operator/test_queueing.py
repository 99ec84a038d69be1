"""What the Workload and its status contain, and which parts of Kueue's admission reach the pods."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.kube.kinds import (
    DEPLOYMENT,
    RAY_CLUSTER,
    RESOURCE_FLAVOR,
    RLJOB,
    VOLUME_CLAIM,
    WORKLOAD,
    Key,
    Manifest,
    Ref,
)
from rljob_operator.observe.gather import abandoned
from rljob_operator.observe.preemptor import by_name, preemptor_of
from rljob_operator.plan import Plan
from rljob_operator.render import UnknownFlavor, placements
from rljob_operator.render.workload import priority_class
from rljob_operator.runtime.store import Store
from tests.rljob_operator.decisions import decide, living, phase
from tests.rljob_operator.queues import (
    ADMITTED,
    CLUSTER_WIDE,
    NAME,
    NO_QUEUE,
    PREEMPTED,
    READY,
    WAITING,
    evicted,
    failed_to_start,
    plan_of,
    queued_job,
    seen,
    told,
    workload,
    zoned,
)
from tests.rljob_operator.snapshots import PODS, REWARDS, SERVED, UID, pod, ray_cluster

MODELS = [dict(each) for each in REWARDS["models"]]


def made(plan: Plan, kind: str) -> Manifest:
    return next(each for each in (*plan.create, *plan.apply) if each["kind"] == kind)


def ready(plan: Plan) -> tuple[str, str]:
    """The reason and message of Ready."""
    assert plan.status is not None
    return next((each.reason, each.message) for each in plan.status.conditions if each.type == "Ready")


def changed(plan: Plan) -> dict[str, Any]:
    """What of the Workload's status is written."""
    (patch,) = plan.patch
    assert patch.subresource == "status"
    status: dict[str, Any] = patch.change["status"]
    return status


def test_a_workload_is_named_as_kueue_names_it():
    assert names.workload("job", UID) == NAME == "rljob-job-ee05d"


def test_one_workload_asks_for_all_pods_of_the_job():
    plan = plan_of(base=queued_job(rewards=REWARDS, cluster={"nodes": 2, "minNodes": 1, "gpusPerNode": 4}))
    spec = made(plan, "Workload")["spec"]
    asked = {each["name"]: (each["count"], each.get("minCount")) for each in spec["podSets"]}
    assert asked == {"head": (1, None), "trainer": (2, 1), "reward-rm": (2, None), "reward-judge": (1, None)}
    assert (spec["queueName"], spec["priority"], "priorityClassRef" in spec) == ("lab", 0, False)
    urgent = made(plan_of(base=queued_job(priority="urgent")), "Workload")["spec"]
    assert (urgent["priority"], urgent["priorityClassRef"]["name"]) == (1000, "urgent")
    assert [each["kind"] for each in plan.create] == ["Workload"], "nothing has pods before it is admitted"
    assert not [each for each in plan.apply if each["kind"] == "Deployment"]


@pytest.mark.parametrize(
    ("found", "there", "claimed"), [(WAITING, False, False), (WAITING, True, True), (ADMITTED, False, True)]
)
def test_a_job_claims_its_volume_once_it_has_quota(found, there, claimed):
    """A volume that is bound earlier could be in a zone without nodes of the flavor that Kueue chooses."""
    known = seen(found)
    if not there:
        known = replace(known, children={kind: each for kind, each in known.children.items() if kind != VOLUME_CLAIM})
    assert any(each["kind"] == VOLUME_CLAIM.name for each in decide(known).apply) == claimed


def test_a_template_asks_for_a_topology_by_kueue_s_annotations():
    template = {"metadata": {"annotations": {names.TOPOLOGY_ANNOTATION % "required": "rack"}}}
    plan = plan_of(base=queued_job(cluster={"nodes": 2, "worker": {"template": template}}))
    head, trainer = made(plan, "Workload")["spec"]["podSets"]
    assert (head.get("topologyRequest"), trainer["topologyRequest"]) == (None, {"required": "rack"})


def test_an_admission_reaches_the_children_and_never_the_spec():
    check = {"name": "c", "state": "Ready", "podSetUpdates": [
        {"name": "trainer", "labels": {"l": "1"}, "annotations": {"a": "1"}, "nodeSelector": {"zone": "b"},
         "tolerations": [{"key": "spot", "operator": "Exists"}]},
    ]}  # fmt: skip
    admitted = workload(admitted=True, admissionChecks=[check])
    admitted["status"]["admission"]["podSetAssignments"][1]["topologyAssignment"] = {"levels": ["rack"]}
    spec = made(plan_of(admitted), "RayCluster")["spec"]
    head, worker = spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]
    for template, group in ((head, "head"), (worker, "trainer")):
        labels = {names.POD_SET_LABEL: group, names.CLUSTER_QUEUE_LABEL: "gpus", names.LOCAL_QUEUE_LABEL: "lab"}
        assert labels.items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] == NAME
        assert [each["key"] for each in template["spec"]["tolerations"]].count("spot") == 1
    assert (head["spec"]["nodeSelector"], "schedulingGates" in head["spec"]) == ({"gpu": "a100"}, False)
    assert worker["spec"]["nodeSelector"] == {"gpu": "a100", "zone": "b"}
    assert worker["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]
    assert (worker["metadata"]["labels"]["l"], worker["metadata"]["annotations"]["a"]) == ("1", "1")
    assert worker["metadata"]["annotations"][names.TOPOLOGY_ANNOTATION % "unconstrained"] == "true"


def test_pods_that_would_contradict_their_template_are_not_created_and_the_quota_is_free():
    plan = plan_of(zoned(), phase="Queued")
    (patch,) = plan.patch
    finished = next(each for each in changed(plan)["conditions"] if each["type"] == "Finished")
    assert (plan.create, patch.frees, finished["reason"]) == ((), True, "FailedToStart")
    for words in ("admission check capacity", "nodeSelector zone=b", "pods of trainer", "the pod template sets zone=a"):
        assert words in finished["message"]
    assert ready(plan)[0] == Reason.ADMISSION_CONFLICT
    assert made(plan_of(zoned(own="b"), phase="Queued"), "RayCluster")

    later = plan_of(failed_to_start(), phase="Queued")
    assert (later.patch, later.delete, ready(later)) == ((), (), (Reason.ADMISSION_CONFLICT, finished_words()))
    assert plan_of(failed_to_start(), base=queued_job("other"), phase="Queued").patch, "another queue: another Workload"
    assert plan_of(failed_to_start(), base=queued_job(suspend=True), phase="Queued").patch


def finished_words() -> str:
    return str(failed_to_start()["status"]["conditions"][-1]["message"])


@pytest.mark.parametrize(("found", "writes"), [(None, 0), (WAITING, 1)])
def test_a_label_that_no_local_queue_can_be_called_asks_for_no_quota(found, writes):
    """The Workload in the queue of an earlier label goes: first its finalizer."""
    plan = plan_of(found, base=queued_job("Team_A"))
    assert (plan.create, len(plan.patch)) == ((), writes)
    assert ready(plan)[0] == Reason.QUEUE_NAME_INVALID
    assert phase(plan_of(READY, base=queued_job("Team_A"), **living())) == "Running", "it counts with the next wait"


def test_a_local_queue_that_does_not_exist_is_named():
    reason, message = ready(plan_of(workload(NO_QUEUE)))
    assert reason == Reason.QUEUE_MISSING
    assert message.startswith("LocalQueue lab does not exist in namespace team. Create it,")


def test_another_priority_class_is_followed_while_admission_checks_are_pending():
    found = workload(told("QuotaReserved"), admission={"clusterQueue": "gpus", "podSetAssignments": []})
    found["spec"] |= {"priorityClassRef": priority_class("calm"), "priority": 1}
    (patch,) = plan_of(found, base=queued_job(priority="urgent")).patch
    assert patch.change["spec"] == {"priorityClassRef": priority_class("urgent"), "priority": 1000}


@pytest.mark.parametrize(("evicted_for", "written"), [
    ("DeactivatedDueToRequeuingLimitExceeded", "Deactivated"), ("PodsReadyTimeout", "PodsReadyTimeout"),
])  # fmt: skip
def test_a_release_says_for_what_kueue_waits_in_the_words_that_kueue_compares(evicted_for, written):
    conditions = {
        each["type"]: each for each in changed(plan_of(evicted(evicted_for), phase="Suspending"))["conditions"]
    }
    assert (conditions["Requeued"]["status"], conditions["Requeued"]["reason"]) == ("False", written)


def test_a_flavor_that_no_watch_has_reported_yet_places_nothing():
    with pytest.raises(UnknownFlavor):
        placements(ADMITTED, {Key("", "another"): {}})
    assert phase(decide(replace(seen(ADMITTED), cluster_wide={**CLUSTER_WIDE, RESOURCE_FLAVOR: {}}))) == "Queued"


def test_a_release_keeps_what_others_wrote_and_takes_back_all_of_the_quota():
    lasting = told("Preempted", "InClusterQueue")
    found = workload(lasting, told("Evicted", "Preempted", "m"), admitted=True)
    (patch,) = plan_of(found, phase="Suspending").patch
    assert (patch.version, patch.frees) == ("20", True)
    status = patch.change["status"]
    assert (status["admission"], status["reclaimablePods"]) == (None, None)
    assert lasting in status["conditions"]


def partly(trainer: int, reward: int = 2, back: int = 0, base: Any = None) -> Manifest:
    """Admitted with fewer pods."""
    found = workload(told("PodsReady", "Started"), admitted=True, base=base)
    for each in found["status"]["admission"]["podSetAssignments"]:
        each["count"] = {"trainer": trainer, "reward-rm": reward}.get(each["name"], each["count"])
    return found | {
        "status": found["status"] | ({"reclaimablePods": [{"name": "reward-rm", "count": back}]} if back else {})
    }


GPUS: dict[str, Any] = {"nodes": 4, "minNodes": 1, "gpusPerNode": 4}
CPUS: dict[str, Any] = {"nodes": 4, "minNodes": 2, "gpusPerNode": 0}


@pytest.mark.parametrize(
    ("cluster", "engine", "admitted", "used", "back"),
    [
        (GPUS, {}, 3, 3, []),
        (CPUS, {"engine": "vllm", "tensorParallelSize": 2}, 3, 2, [{"name": "trainer", "count": 2}]),
        (GPUS, {}, 4, 4, []),
    ],
)
def test_a_partial_admission_runs_with_what_the_rules_accept_and_gives_the_rest_back(
    cluster, engine, admitted, used, back
):
    base = queued_job(cluster=cluster, rollout=engine)
    plan = plan_of(partly(admitted, base=base), base=base)
    assert made(plan, "RayCluster")["spec"]["workerGroupSpecs"][0]["replicas"] == used
    assert plan.status is not None
    assert plan.status.gpus == used * cluster["gpusPerNode"]
    assert f'"nodes": {used}' in made(plan, "ConfigMap")["data"]["job.json"]
    assert plan.patch == (), "the children come first"
    later = plan_of(partly(admitted, base=base), base=base, cluster=ray_cluster())
    assert (changed(later)["reclaimablePods"] if back else []) == back


def test_servers_that_are_needed_no_more_give_their_quota_back_and_more_of_them_wait_for_the_next_admission():
    def replicas(count: int, found: Manifest, servers: int) -> Plan:
        base = queued_job(rewards={"models": [MODELS[0] | {"replicas": count}, MODELS[1]]})
        pods = [pod(f"rm-{each}", names.REWARD_MODEL) for each in range(servers)]
        for each in pods:
            each["metadata"]["labels"][names.REWARD_MODEL_LABEL] = "rm"
        return plan_of(found, base=base, models=SERVED, **living(pods=[*PODS, *pods]))

    whole = queued_job(rewards=REWARDS)
    found = partly(2, base=whole)
    assert replicas(1, found, 2).patch == (), "one of two has not ended"
    assert changed(replicas(1, found, 1))["reclaimablePods"] == [{"name": "reward-rm", "count": 1}]
    again = replicas(2, partly(2, back=1, base=whole), 1)
    assert made(again, "Deployment")["spec"]["replicas"] == 1
    assert phase(replicas(3, found, 2)) == "Running"


def test_a_job_without_a_queue_has_nothing_of_kueue():
    plan = plan_of(base=queued_job(None))
    assert plan.status is not None
    assert plan.status.workload is None
    assert {each.type for each in plan.status.conditions}.isdisjoint({"Admitted", "Evicted"})


@pytest.mark.parametrize(
    ("kind", "uid", "namespace", "known"),
    [
        (RLJOB, "88", "team", True),
        (WORKLOAD, "77", "team", True),
        (RLJOB, "88", "a", False),
        (RLJOB, "9", "team", False),
    ],
)
def test_a_preemptor_is_named_in_its_own_namespace_alone(kind, uid, namespace, known):
    store, found = Store(), evicted()
    metadata = {"name": "urgent", "namespace": namespace, "uid": uid, "resourceVersion": "1"}
    store.put(kind, kind.manifest(metadata))
    preemptor = preemptor_of(found, store)
    assert preemptor == (Ref(kind, "team", "urgent", uid) if known else None)
    assert by_name(PREEMPTED, preemptor).startswith(f"Preempted to accommodate {preemptor or 'a workload (UID: 77'}")


def test_quota_of_a_job_that_has_gone_is_in_use_while_what_creates_its_pods_is_left():
    """A person's Deployment may have the job's label, for the NetworkPolicy."""
    store, key = Store(), Key("team", "job")
    ours = {name: ADMITTED["metadata"][name] for name in ("namespace", "labels", "ownerReferences")}
    ours |= {"name": "job", "uid": "c-1", "resourceVersion": "9"}
    store.put(WORKLOAD, ADMITTED)
    store.put(DEPLOYMENT, DEPLOYMENT.manifest(ours | {"ownerReferences": []}))
    assert abandoned(store, key) == [ADMITTED]
    store.put(RAY_CLUSTER, RAY_CLUSTER.manifest(ours))
    assert abandoned(store, key) == []


@pytest.mark.parametrize("found", [READY, evicted()])
def test_a_label_that_goes_leaves_the_job_its_quota(found):
    plan = plan_of(found, base=queued_job(None), **living())
    assert phase(plan) == phase(plan_of(found, **living()))


def test_a_label_that_comes_stops_a_job_that_has_pods_and_no_quota():
    assert phase(plan_of(cluster=ray_cluster(), pods=PODS)) == "Suspending"


@pytest.mark.parametrize(("ready", "before", "after"), [
    (2, None, ("True", "Started")), (1, None, ("False", "WaitForStart")),
    (1, told("PodsReady", "Started"), ("False", "WaitForRecovery")),
    (2, told("PodsReady", "WaitForRecovery", holds=False), ("True", "Recovered")),
])  # fmt: skip
def test_kueue_is_told_once_whether_all_pods_are_ready(ready, before, after):
    found = workload(*([before] if before else []), admitted=True)
    plan = plan_of(found, cluster=ray_cluster(ready), pods=PODS)
    conditions = {each["type"]: (each["status"], each["reason"]) for each in changed(plan)["conditions"]}
    assert conditions["PodsReady"] == after
    assert plan_of(workload(told("PodsReady", after[1], holds=after[0] == "True"), admitted=True),
                   cluster=ray_cluster(ready), pods=PODS).patch == ()  # fmt: skip
