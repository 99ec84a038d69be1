"""What Deployments of reward models and their pods say. Pure functions of manifests."""

from collections.abc import Iterator

from rljob_api.v1alpha1 import RewardModel, RewardModelStatus
from rljob_operator import names
from rljob_operator.kube.kinds import DEPLOYMENT
from rljob_operator.observe.cluster import replica_failures
from rljob_operator.observe.pods import troubles
from rljob_operator.observe.snapshot import Snapshot, is_deleting


def statuses(snapshot: Snapshot) -> list[RewardModelStatus]:
    return [_status(snapshot, model) for model in snapshot.job.spec.rewards.models]


def all_ready(snapshot: Snapshot) -> bool:
    return all(each.ready_replicas >= each.desired_replicas for each in statuses(snapshot))


def waiting_for(snapshot: Snapshot) -> str:
    """What reward models that are not ready wait for, for people."""
    return "; ".join(_missing(snapshot))


def _status(snapshot: Snapshot, model: RewardModel) -> RewardModelStatus:
    """A Deployment's counts are of an older spec until its controller has seen the present one."""
    found = snapshot.child(DEPLOYMENT, names.reward_model(snapshot.job.name, model.name))
    ready = 0
    if found is not None and not is_deleting(found):
        status = found.get("status", {})
        if status.get("observedGeneration") == found["metadata"].get("generation"):
            ready = min(status.get("readyReplicas", 0), status.get("updatedReplicas", 0))
    return RewardModelStatus(name=model.name, ready_replicas=ready, desired_replicas=model.replicas)


def _missing(snapshot: Snapshot) -> Iterator[str]:
    for each in statuses(snapshot):
        if each.ready_replicas < each.desired_replicas:
            yield f"reward model {each.name}: {each.ready_replicas} of {each.desired_replicas} servers ready"
            yield from list(dict.fromkeys(_reasons(snapshot, each.name)))[:3]


def _reasons(snapshot: Snapshot, model: str) -> Iterator[str]:
    yield from troubles(pod for pod in snapshot.servers_of(model) if not is_deleting(pod))
    found = snapshot.child(DEPLOYMENT, names.reward_model(snapshot.job.name, model)) or {}
    yield from replica_failures(found)  # a quota, an admission webhook
