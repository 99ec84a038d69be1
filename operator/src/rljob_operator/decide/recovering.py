"""Gates of what the last failure asks for: other pods or another cluster, and a wait before the next attempt."""

from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator import names
from rljob_operator.decide.ending import cluster
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.leaving import lost_pods
from rljob_operator.observe.snapshot import Snapshot, is_deleting, made_at
from rljob_operator.plan import Step
from rljob_operator.settings import Settings

WAIT_SECONDS = 30.0
"""Between looks if time matters. Everything else arrives by watches, or by the lists that correct them."""


def replacement(facts: Facts, _settings: Settings) -> Step | None:
    """Delete what the recovery policy wants replaced. What was not there then is the replacement."""
    recovery, seen = facts.job.status.recovery, facts.seen
    if recovery.action == "rebuild_cluster" and seen.cluster_uid == recovery.cluster_uid is not None:
        message = _about(recovery, "Waiting for the RayCluster to be deleted")
        going = tuple(cluster(seen))
        return Step("Recovering", Reason.REBUILDING_CLUSTER, message, delete=going, again_in=WAIT_SECONDS)
    if recovery.action == "replace_pods" and (old := _old_workers(seen)):
        message = _about(recovery, f"Waiting for {len(old)} worker pods to be replaced")
        going = tuple(Ref.of(pod) for pod in old if not is_deleting(pod))
        return Step("Recovering", Reason.REPLACING_PODS, message, delete=going, again_in=WAIT_SECONDS)
    return None


def backoff(facts: Facts, _settings: Settings) -> Step | None:
    """The message says when the wait ends: the seconds left would be another number at each look."""
    recovery = facts.job.status.recovery
    if recovery.not_before is None or (left := (recovery.not_before - facts.now).total_seconds()) <= 0:
        return None
    message = _about(recovery, f"The next attempt starts at {recovery.not_before:%Y-%m-%dT%H:%M:%SZ} or later")
    return Step("Recovering", recovery.reason or Reason.BACKOFF, message, again_in=left)


def _about(recovery: RecoveryStatus, what: str) -> str:
    """With the failure that it is done about, if there was one."""
    return f"{what}: {recovery.message}" if recovery.message else what


def _old_workers(seen: Snapshot) -> list[Manifest]:
    """Worker pods from before the failure: no newer than the newest that had started then, and not lost with a node.

    The operator's clock does not decide: it may be ahead of the API server's, and each replacement would look old.
    """
    newest, lost = seen.job.status.recovery.newest_pod, lost_pods(seen)
    return [pod for pod in seen.pods_of(names.WORKER) if newest and pod not in lost and made_at(pod) <= newest]
