"""The table of conditions and reasons against those who say them: decide, the recovery policy and the driver."""

import ast
import errno
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest
from rljob_operator.decide.fields import ignored

from rljob_api.conditions import CONDITIONS, Aspect, Note, Reason
from rljob_api.conditions_reference import render
from rljob_api.contract import ExitRecord
from rljob_api.recovery import decide_recovery
from rljob_api.v1alpha1 import CheckpointStatus, Condition, DriverStatus, RecoveryStatus
from rljob_api.v1alpha1.recovery import FAILURES
from rljob_api.v1alpha1.status import Phase
from rljob_operator import names
from rljob_operator.decide.status import TOLD_REASONS
from rljob_operator.head import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job, read_job
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid, Unavailable
from rljob_operator.kube.kinds import VOLUME_CLAIM
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from rljob_trainer import errors as errors_module
from rljob_trainer.controller.attempt import exit_record
from tests.rljob_operator.decisions import broken, decide, refused
from tests.rljob_operator.snapshots import (
    CLAIM,
    CLUSTER_UID,
    NOW,
    PODS,
    REWARDS,
    SERVED,
    SETTINGS,
    attempted,
    conditions,
    deployment,
    job,
    manifest,
    pod,
    ray_cluster,
    reports,
    snapshot,
)


def plan_for(**given: Any) -> Plan:
    return decide(snapshot(**given), SETTINGS)


def up(**given: Any) -> Plan:
    """The cluster is ready."""
    return plan_for(cluster=ray_cluster(), pods=PODS, **given)


def living(**given: Any) -> Plan:
    """The driver runs."""
    return up(**{"head": reports(), **attempted("Submitted"), **given})


def ended(code: int, reason: str, **given: Any) -> Plan:
    record = ExitRecord(code=code, reason=reason, message="words")
    return living(head=reports(RayJobState.FAILED if code else RayJobState.SUCCEEDED, exit=record), **given)


def recovering(action: str, seconds: float = 0.0) -> Plan:
    begin = NOW + timedelta(seconds=seconds)
    recovery = RecoveryStatus(charged=1, action=action, decided=NOW, not_before=begin, cluster_uid=CLUSTER_UID)
    return up(recovery=recovery, **attempted("Ended", phase="Recovering"))


def ruled(reason: str, action: str) -> Job:
    return job(recovery={"rules": [{"onReasons": [reason], "action": action}]})


def unreadable() -> Plan:
    written = manifest({})
    written["spec"]["unheardOf"] = {}
    return decide(Snapshot(read_job(written), NOW), SETTINGS)


def left_by_another() -> Plan:
    cluster = ray_cluster()
    cluster["metadata"]["ownerReferences"][0]["uid"] = "another"
    return plan_for(cluster=cluster)


def claim_goes(**status: Any) -> Plan:
    """From under the head; and a worker needs it."""
    refused_ = pod("worker-1", names.WORKER, "Pending", conditions=[{"type": "PodScheduled", "status": "False"}])
    found = snapshot(cluster=ray_cluster(1), pods=[*PODS[:2], refused_], **status)
    goes = {**CLAIM, "metadata": {**CLAIM["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    return decide(replace(found, children={**found.children, VOLUME_CLAIM: {"job-checkpoints": goes}}), SETTINGS)


def no_priority(**status: Any) -> Plan:
    cluster, words = ray_cluster(0, provisioned=False), "no PriorityClass with name high was found"
    said = {"type": "ReplicaFailure", "status": "True", "reason": "x", "message": words}
    cluster["status"]["conditions"].append(said)
    return plan_for(cluster=cluster, **status)


def tried_again(code: int, reason: str) -> list[Plan]:
    return [ended(code, reason), ended(code, reason, base=ruled(reason, "give_up"))]


def ends_it(code: int, reason: str) -> list[Plan]:
    return [ended(code, reason), ended(code, reason, base=ruled(reason, "restart"))]


def past_deadline(**given: Any) -> Plan:
    started = attempted("Submitted", start_time=NOW - timedelta(hours=1))
    return plan_for(base=job(activeDeadline="1h"), **started, **given)


BAD_IMAGE = pod("w", names.WORKER, "Pending", containerStatuses=[
    {"name": "w", "image": "i", "state": {"waiting": {"reason": "InvalidImageName"}}}])  # fmt: skip
KILLED = HeadReport(RayJob(RayJobState.FAILED, "killed", driver_exit_code=137))
SILENT: dict[str, Any] = {"head": reports(heartbeat=1), "silent": 100.0}
SAVED = CheckpointStatus(step=20, path="p", time=NOW)
BRIEF = attempted("Submitted")["driver"].model_copy(update={"steps": 50})
RUNS = attempted("Submitted")
HAD_ONE = Condition(type="CheckpointAvailable", status="True", reason=Aspect.SAVED, last_transition_time=NOW)


@cache
def plans() -> dict[Reason, list[Plan]]:
    """What decide says with each reason, in every phase that it comes with."""
    again: Any = {"phase": "Recovering"}
    gone, partial = ray_cluster(provisioned=False, deleting=True), ray_cluster(1, provisioned=False)
    served = job(rewards=REWARDS)
    outdated = ray_cluster(made_for=job(cluster={"nodes": 3}).spec)
    no_image = SETTINGS.model_copy(update={"trainer_image": None})
    return {
        Reason.IMAGE_MISSING: [decide(snapshot(), no_image)],
        Reason.WAITING_FOR_REMOVAL: [left_by_another()],
        Reason.CLUSTER_DELETING: [plan_for(cluster=gone), plan_for(cluster=gone, **again)],
        Reason.CLUSTER_NOT_READY: [plan_for(), plan_for(cluster=partial), plan_for(cluster=partial, **again)],
        Reason.VOLUME_DELETING: [claim_goes(phase="Starting"), claim_goes(**again)],
        Reason.OBJECT_MISSING: [no_priority(), no_priority(**again)],
        Reason.REWARD_MODELS_NOT_READY: [
            up(base=served),
            up(base=served, **again),
            up(base=served, models=[deployment("rm", 2)]),
        ],
        Reason.STARTING_DRIVER: [up(), up(**again)],
        Reason.HEAD_NOT_ANSWERING: [up(**attempted("Reserved")), up(**attempted("Reserved", **again))],
        Reason.UNAUTHORIZED: [
            up(unauthorized=True, **attempted("Reserved")),
            living(head=None, unauthorized=True),
        ],
        Reason.DRIVER_NOT_HEARD: [living(silent=100.0), living(silent=100.0, phase="Starting")],
        Reason.DRIVER_RUNNING: [
            living(base=served, models=SERVED),
            living(head=reports(checkpoint=SAVED)),
            living(head=reports(empty=True), checkpoint=SAVED, conditions=[HAD_ONE]),
        ],
        Reason.RANK_LOST: tried_again(75, "RankLost"),
        Reason.ENGINE_LOST: tried_again(75, "EngineLost"),
        Reason.REWARDS_LOST: tried_again(75, "RewardsLost"),
        Reason.INFRASTRUCTURE: tried_again(75, "Infrastructure"),
        Reason.DRIVER_LOST: [living(head=KILLED), living(head=KILLED, base=ruled("DriverLost", "give_up"))],
        Reason.DRIVER_HUNG: [living(**SILENT), living(**SILENT, base=ruled("DriverHung", "give_up"))],
        Reason.RAY_LOST: [living(head=HeadReport()), living(head=HeadReport(), base=ruled("RayLost", "give_up"))],
        Reason.BUG: tried_again(70, "Bug"),
        Reason.JOB: ends_it(64, "Job"),
        Reason.DATA: ends_it(65, "Data"),
        Reason.REWARD: ends_it(66, "Reward"),
        Reason.NO_USABLE_CHECKPOINT: ends_it(78, "NoUsableCheckpoint"),
        Reason.STORAGE_FULL: ends_it(79, "StorageFull"),
        Reason.FENCED: [ended(77, "Fenced")],
        Reason.STOPPED_ON_REQUEST: [ended(76, "StoppedOnRequest")],
        Reason.MORE_STEPS: [ended(0, "Done", driver=BRIEF)],
        Reason.BACKOFF: [recovering("restart_driver", seconds=4)],
        Reason.REPLACING_PODS: [recovering("replace_pods")],
        Reason.REBUILDING_CLUSTER: [recovering("rebuild_cluster")],
        Reason.RESTARTS_EXHAUSTED: [ended(75, "RankLost", recovery=RecoveryStatus(charged=5))],
        Reason.BUG_REPEATED: [ended(70, "Bug", recovery=RecoveryStatus(charged=1, bugs=1))],
        Reason.IMAGE_NOT_USABLE: [
            plan_for(cluster=partial, pods=[BAD_IMAGE]),
            plan_for(cluster=partial, pods=[BAD_IMAGE], **attempted("Ended", phase="Starting")),
            plan_for(cluster=partial, pods=[BAD_IMAGE], **attempted("Ended", phase="Recovering")),
        ],
        Reason.OBJECT_INVALID: [refused(snapshot(**each), Plan(), Invalid("spec.x: no")) for each in ({}, RUNS)],
        Reason.OBJECT_FORBIDDEN: [refused(snapshot(), Plan(), Forbidden("exceeded quota"))],
        Reason.OBJECT_FAILING: [refused(snapshot(), Plan(), Unavailable("no answer in 10 s"))],
        Reason.NAME_TAKEN: [refused(snapshot(), Plan(), AlreadyExists("ConfigMap job-job exists"))],
        Reason.SPEC_NOT_READABLE: [unreadable()],
        Reason.OPERATOR_ERROR: [broken(snapshot(), KeyError("spec"))],
        Reason.SUSPENDED: [living(base=job(suspend=True)), plan_for(base=job(suspend=True))],
        Reason.SPEC_CHANGED: [plan_for(cluster=outdated, pods=PODS, **attempted("Submitted"))],
        Reason.KEY_CHANGED: [plan_for(cluster=ray_cluster(key=b"old"), pods=PODS, **attempted("Submitted"))],
        Reason.DEADLINE_EXCEEDED: [past_deadline(cluster=ray_cluster(), pods=PODS), past_deadline()],
        Reason.COMPLETED: [ended(0, "Done")],
        Reason.DELETING: [decide(snapshot(replace(job(), deleted=NOW), pods=PODS), SETTINGS)],
    }


@pytest.mark.parametrize("reason", Reason)
def test_a_job_has_each_reason_in_the_phases_of_the_table(reason):
    for plan in plans()[reason]:
        assert conditions(plan.status)["Ready"][1] == reason
    phases = {plan.status.phase for plan in plans()[reason] if plan.status is not None}
    assert phases == set(reason.where or phases)


def test_a_status_has_the_conditions_of_the_table_and_its_words():
    words, said, told = {*Reason, *Aspect, *Note}, set(), set()
    for plan in chain.from_iterable(plans().values()):
        found = conditions(plan.status)
        models = plan.status is not None and bool(plan.status.reward_models)
        assert list(found) == [kind for kind in CONDITIONS if kind != "RewardModelsReady" or models]
        said |= {(reason, kind) for kind, (_, reason) in found.items()}
        told |= {event.reason for event in plan.events}
    told.add(ignored(job(), {"kind": "RayCluster", "metadata": {"name": "job"}}, []).reason)
    assert {reason for reason, _ in said} | told == words
    assert {(word, kind) for word, kind in said if word in {*Aspect}} == {(word, *word.where) for word in Aspect}
    assert not {reason for reason, _ in said} & {*Note}
    assert len(words) == len(Reason) + len(Aspect) + len(Note), "one row a word"


INSIDE = {"RLJob", "WorkerLost", "WeightSync", "DamagedCheckpoint"}
"""Of those others are made before an attempt ends: abstract ones, one that becomes EngineLost, and one that becomes
Data where the job names the checkpoint; else that is left out.
"""


def test_what_a_driver_records_is_in_the_table():
    others = (ValueError("a bug"), OSError(errno.ENOSPC, "full"))
    recorded = {exit_record(error).reason for error in others} | {name.removesuffix("Error") for name in errors()}
    assert recorded - INSIDE < {*Reason}
    assert recorded - INSIDE - {Reason.STOPPED_ON_REQUEST, Reason.FENCED} < {*FAILURES}, "a rule may name it"


def errors() -> set[str]:
    """Names of all that is an RLJobError, whether its module was imported or not."""
    files = Path(errors_module.__file__).parent.rglob("*.py")
    classes = [
        node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)
    ]
    found = {"RLJobError"}
    while new := {each.name for each in classes if found & {ast.unparse(base) for base in each.bases}} - found:
        found |= new
    return found


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


DRIVER_STATES = get_args(DriverStatus.model_fields["state"].annotation)
SOURCES = [Path(decide_recovery.__code__.co_filename), *Path(decide.__code__.co_filename).parent.glob("*.py")]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_reason_is_written_but_in_the_table(file):
    constants = {node.value for node in nodes(file) if isinstance(node, ast.Constant)}
    words = {each for each in constants if isinstance(each, str) and re.fullmatch("([A-Z][a-z]+)+", each)}
    assert words <= {*get_args(Phase), *CONDITIONS, *DRIVER_STATES, "True", "False", "Unknown"}


def test_the_page_names_the_events_that_no_condition_makes():
    said = re.search(
        r"PodsNotReady and\s+ServersNotReady while the\s+job runs; .*?becomes (.*?)\. Of events", render(), re.DOTALL
    )
    assert said is not None
    assert set(re.findall(r"[A-Z]\w+", said[1])) == {*TOLD_REASONS}
