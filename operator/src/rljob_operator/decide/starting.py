"""Gates on the way to a running driver: what the last failure asks for, cluster, reward models, attempt, submission."""

from dataclasses import replace
from typing import Any

from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import DriverStatus, RecoveryStatus
from rljob_api.v1alpha1.status import Phase
from rljob_operator import names
from rljob_operator.decide.ending import cluster
from rljob_operator.decide.failing import failed
from rljob_operator.decide.images import cluster_image, server_image
from rljob_operator.decide.memory import settled
from rljob_operator.decide.missing import lacks_claim, missing, missing_of_servers
from rljob_operator.decide.silence import is_silent
from rljob_operator.decide.step import Step
from rljob_operator.head import RayJobState
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.observe import servers
from rljob_operator.observe.cluster import claim_held, is_ready, pods_left, waiting_for
from rljob_operator.observe.pods import waits_for_its_node
from rljob_operator.observe.snapshot import Snapshot, controller_of, is_deleting, lost_pods, made_at
from rljob_operator.plan import SECRET_SECONDS, Submission
from rljob_operator.render import CannotMerge, Placement, cluster_of, eviction, secret_of
from rljob_operator.settings import Settings

WAIT_SECONDS = 30.0
"""Between looks where time matters. All other news comes by watches, or by the lists that find what those missed."""


def replacement(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """Delete what the recovery policy wants replaced. What is there now and was not then is the replacement."""
    recovery = snapshot.job.status.recovery
    if recovery.action == "rebuild_cluster" and snapshot.cluster_uid == recovery.cluster_uid is not None:
        message = _about(recovery, "waiting for the RayCluster to be deleted")
        going = tuple(cluster(snapshot))
        return Step("Recovering", Reason.REBUILDING_CLUSTER, message, delete=going, again_in=WAIT_SECONDS)
    if recovery.action == "replace_pods" and (old := _old_workers(snapshot)):
        message = _about(recovery, f"waiting for {len(old)} worker pods to be replaced")
        going = tuple(Ref.of(pod) for pod in old if not is_deleting(pod))
        return Step("Recovering", Reason.REPLACING_PODS, message, delete=going, again_in=WAIT_SECONDS)
    return None


def backoff(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """Until when it lasts, for a rest of it would be another one at each look."""
    recovery = snapshot.job.status.recovery
    if recovery.not_before is None or (left := (recovery.not_before - snapshot.now).total_seconds()) <= 0:
        return None
    message = _about(recovery, f"next attempt not before {recovery.not_before:%Y-%m-%dT%H:%M:%SZ}")
    return Step("Recovering", recovery.reason or Reason.BACKOFF, message, again_in=left)


def _about(recovery: RecoveryStatus, what: str) -> str:
    """With the failure that it is done about, which an older version has not kept."""
    return f"{what}: {recovery.message}" if recovery.message else what


def ray_cluster(snapshot: Snapshot, settings: Settings) -> Step | None:
    """One RayCluster, all of whose pods are ready. KubeRay takes whatever pods have its name's label for its own, so
    those of an older one have to be gone.

    A driver that is heard may train on without what is missing, as where a node alone is not heard of, or save what it
    can: how it ends it says itself.
    """
    found, job = snapshot.cluster, snapshot.job
    image = job.spec.cluster.image or settings.trainer_image
    if found is None and image is None:
        message = "no image: set spec.cluster.image (with spec.suspend: true), or the operator's trainer image"
        return Step("Pending", Reason.IMAGE_MISSING, message)
    if found is None and snapshot.ray_pods:
        older = replace(snapshot, pods=snapshot.ray_pods)
        message = f"waiting for the older RayCluster's {pods_left(older)} to end"
        if _held(snapshot):
            name = names.ray_cluster(job.name)
            message += f"; RayCluster {name} has them, and where that is still there, it is not the job's: delete it"
        going = tuple(cluster(snapshot))
        return Step(_phase(snapshot), Reason.CLUSTER_DELETING, message, delete=going, again_in=WAIT_SECONDS)
    if found is None and image is not None:
        return _made(snapshot, image, settings)
    if found is not None and is_deleting(found):
        message = "waiting for an older RayCluster to be deleted"
        return Step(_phase(snapshot), Reason.CLUSTER_DELETING, message, again_in=WAIT_SECONDS)
    return None if is_ready(snapshot) or _is_heard(snapshot) else _incomplete(snapshot, settings)


def _held(snapshot: Snapshot) -> bool:
    """Whether somebody has the older pods and does not end them. It takes Kubernetes a moment, and all of them seem to
    be held so just after their RayCluster was deleted: what comes after the first look is a detail, which may wait.
    """
    ready = snapshot.job.condition("Ready")
    looked = ready is not None and ready.reason == Reason.CLUSTER_DELETING
    return looked and any(controller_of(pod) is not None and not is_deleting(pod) for pod in snapshot.ray_pods)


def _is_heard(snapshot: Snapshot) -> bool:
    """Whether its driver gives signs of life."""
    driver, head = snapshot.job.status.driver, snapshot.head
    beats = head is not None and head.heartbeat is not None
    return driver is not None and driver.state != "Ended" and beats and not is_silent(snapshot)


def _incomplete(snapshot: Snapshot, settings: Settings) -> Step:
    driver = snapshot.job.status.driver
    polls = driver is not None and driver.state != "Ended"  # it may live, or end, unheard
    if not polls and (stuck := _stuck(snapshot)) is not None:
        return Step(_phase(snapshot), *stuck)
    again = settings.poll_seconds if polls else _look(snapshot)
    step = Step(_phase(snapshot), Reason.CLUSTER_NOT_READY, waiting_for(snapshot), again_in=again)
    if not any(map(waits_for_its_node, snapshot.ray_pods)):
        return step
    # Perhaps for what they mount: a watch tells of all else that somebody deletes, but not of what nobody may read.
    return replace(step, secret=secret_of(snapshot.job, settings.key), again_in=step.again_in or SECRET_SECONDS)


def _stuck(snapshot: Snapshot) -> tuple[Reason, str] | None:
    """What no waiting mends, and what to do about it."""
    if (message := claim_held(snapshot)) is not None:
        return Reason.VOLUME_DELETING, message
    if (message := missing(snapshot)) is not None:
        return Reason.OBJECT_MISSING, f"{waiting_for(snapshot)}; {message}"
    if (message := cluster_image(snapshot)) is not None:  # the job was resumed with it, so it has checkpoints perhaps
        return Reason.IMAGE_NOT_USABLE, f"{message}, with spec.suspend: true meanwhile"
    return None


def _made(snapshot: Snapshot, image: str, settings: Settings) -> Step:
    job = snapshot.job
    if job.unread is not None:  # what is made would lack it
        return Step(_phase(snapshot), Reason.SPEC_NOT_READABLE, job.unread)
    try:
        made = (secret_of(job, settings.key), cluster_of(job, image, settings, Placement()))
    except CannotMerge as error:
        if job.has_begun:  # an older operator made its pods, and there are checkpoints
            return Step(_phase(snapshot), Reason.OBJECT_INVALID, f"{error}")
        return failed(snapshot, Reason.OBJECT_INVALID, f"{error}", {})
    return Step(_phase(snapshot), Reason.CLUSTER_NOT_READY, waiting_for(snapshot), create=made)


def reward_models(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """No driver starts before all servers are ready. One that runs does its own waiting.

    It looks by itself: what the answer to our own write to a Deployment says of its servers, no watch repeats.
    """
    driver = snapshot.job.status.driver
    if (driver is not None and driver.state != "Ended") or servers.all_ready(snapshot):
        return None
    reason, message = Reason.REWARD_MODELS_NOT_READY, servers.waiting_for(snapshot)
    if (held := claim_held(snapshot)) is not None:
        reason, message = Reason.VOLUME_DELETING, f"{message}; {held}"
    elif (lacked := missing_of_servers(snapshot)) is not None:
        reason, message = Reason.OBJECT_MISSING, f"{message}; {lacked}"
    elif (unusable := server_image(snapshot)) is not None:
        reason, message = Reason.IMAGE_NOT_USABLE, f"{unusable}, with spec.suspend: true meanwhile"
    return Step(_phase(snapshot), reason, message, again_in=WAIT_SECONDS)


def attempt(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """Reserve the next number. The status must hold it before it is submitted, so this changes the status only."""
    status = snapshot.job.status
    if status.driver is not None and status.driver.state != "Ended":
        return None
    number = status.attempt + 1
    old = snapshot.job.unread is not None  # what it reads then is older
    driver = DriverStatus(
        submission_id=names.submission(snapshot.job.uid, number),
        cluster_uid=snapshot.cluster_uid or "",
        state="Reserved",
        generation=None if old else snapshot.job.generation,
        steps=status.driver.steps if old and status.driver is not None else snapshot.job.spec.training.steps,
        reserved=snapshot.now,
    )
    changes = {"attempt": number, "driver": driver, "recovery": settled(status.recovery)}
    return Step(_phase(snapshot), Reason.STARTING_DRIVER, f"starting attempt {number}", changes, again_in=0.0)


def submission(snapshot: Snapshot, settings: Settings) -> Step | None:
    """Submit the reserved attempt. Ray refuses a second one of its id, so this may be repeated. But its head forgets
    with its container, and then only the agent knows whether the attempt has begun: it is never started twice.
    """
    driver, head = snapshot.job.status.driver, snapshot.head
    if driver is None or driver.state != "Reserved":
        return None
    number = snapshot.job.status.attempt
    if head is None:
        reason, message = _unanswered(snapshot)
        return Step(_phase(snapshot), reason, message, again_in=settings.poll_seconds)
    if head.driver is not None:
        return None
    if not head.agent:
        message = f"attempt {number} is started once the agent beside Ray's head says whether it has begun"
        return Step(_phase(snapshot), Reason.STARTING_DRIVER, message, again_in=settings.poll_seconds)
    order = Submission(driver.submission_id, number, driver.generation)
    return Step(_phase(snapshot), Reason.STARTING_DRIVER, f"starting attempt {number}", submit=order, again_in=0.0)


def unheard(snapshot: Snapshot, settings: Settings) -> Step | None:
    """Where nobody tells that the driver runs, the status does not say so for long; and not at all where it had not."""
    number, late = snapshot.job.status.attempt, is_silent(snapshot)
    deaf = snapshot.head is None and (snapshot.unauthorized or snapshot.job.status.phase != "Running")
    if not (late or deaf):
        return None
    reason, message = _unanswered(snapshot)
    if snapshot.head is not None and not snapshot.unauthorized:
        reason, message = Reason.DRIVER_NOT_HEARD, "Ray has the driver, and no sign of life of it is heard"
    message += f": nobody knows whether attempt {number} runs"
    return Step(_phase(snapshot), reason, message, again_in=settings.poll_seconds)


def pending(snapshot: Snapshot, settings: Settings) -> Step | None:
    """Ray has the driver and has not started it, as while its environment is set up. Who hears of the driver itself
    knows better.
    """
    driver, head = snapshot.job.status.driver, snapshot.head
    if driver is None or head is None or head.driver is None:
        return None
    if head.driver.state is not RayJobState.PENDING or head.heartbeat is not None:
        return None
    changes = {"driver": driver.model_copy(update={"state": "Submitted"})}
    message = f"Ray has attempt {snapshot.job.status.attempt}, and has not started its driver yet"
    return Step(_phase(snapshot), Reason.STARTING_DRIVER, message, changes, again_in=settings.poll_seconds)


def _unanswered(snapshot: Snapshot) -> tuple[Reason, str]:
    if snapshot.unauthorized:
        return Reason.UNAUTHORIZED, "the head pod does not take the operator's token"
    return Reason.HEAD_NOT_ANSWERING, "Ray's head does not answer"


def running(snapshot: Snapshot, settings: Settings) -> Step:
    """The driver runs, or did a moment ago. Nobody wants it to stop, or not any more: one that has heard so ends with a
    code that says it, and a later stop has a grace period of its own.
    """
    status = snapshot.job.status
    driver = status.driver
    assert driver is not None
    changes: dict[str, Any] = {"driver": driver.model_copy(update={"state": "Submitted", "stop_requested": None})}
    if status.start_time is None:
        changes["start_time"] = snapshot.now
    message = f"attempt {status.attempt} runs"
    if not is_ready(snapshot):
        message += f"; {waiting_for(snapshot)}"
    if snapshot.head is None:
        message += "; Ray's head does not answer at present"
    if driver.generation is not None and driver.generation < snapshot.job.generation:
        read = f"it read generation {driver.generation} of the spec"
        message += f"; {read}: later changes of {_READ_ONCE}, if there are any, wait for the next"
    if made_with := _other_eviction(snapshot):
        message += f"; its pods keep what they were made with: {made_with}"
    return Step("Running", Reason.DRIVER_RUNNING, message, changes, again_in=settings.poll_seconds)


def _other_eviction(snapshot: Snapshot) -> str | None:
    """What the pods were made with, where the spec says otherwise by now."""
    annotations = (snapshot.cluster or {}).get("metadata", {}).get("annotations", {})
    made_with: str | None = annotations.get(names.EVICTION_ANNOTATION)  # an older operator has not noted it down
    return None if made_with == eviction(snapshot.job.spec) else made_with


_READ_ONCE = "training, checkpoint, recovery.hangAfter and recovery.takeoverWithin"
"""What may change while a job runs, and the driver reads at its start."""


def _look(snapshot: Snapshot) -> float | None:
    """Nobody tells that the time has passed that a lost pod had to end, or that a claim may take to come."""
    return WAIT_SECONDS if any(map(is_deleting, snapshot.pods)) or lacks_claim(snapshot) else None


def _phase(snapshot: Snapshot) -> Phase:
    """Recovering until it runs again; what was suspended starts."""
    return "Recovering" if snapshot.job.status.phase in ("Running", "Recovering") else "Starting"


def _old_workers(snapshot: Snapshot) -> list[Manifest]:
    """Worker pods of before the failure: no newer than the newest that had started then, and not lost with their nodes.

    Our clock tells their age only where an older version has decided: it may be ahead of the API server's, and each
    replacement look old. Pods tell theirs in whole seconds, and one of the decision's own second is a replacement. To
    delete it, before KubeRay has seen what it made itself, keeps KubeRay waiting for it for five minutes.
    """
    recovery, lost = snapshot.job.status.recovery, lost_pods(snapshot)
    there = [pod for pod in snapshot.pods_of(names.WORKER) if pod not in lost]
    if recovery.newest_pod is not None:
        return [pod for pod in there if made_at(pod) <= recovery.newest_pod]
    return [pod for pod in there if recovery.decided and made_at(pod) < recovery.decided.replace(microsecond=0)]
