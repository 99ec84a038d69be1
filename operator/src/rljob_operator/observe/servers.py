"""The state of the reward models' servers, derived once from their Deployments and pods."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from rljob_api.v1alpha1 import RewardModel, RewardModelStatus
from rljob_operator import names
from rljob_operator.kube.kinds import DEPLOYMENT
from rljob_operator.observe.pods import replica_failures, troubles
from rljob_operator.observe.snapshot import Snapshot, is_deleting


class ServersState(Enum):
    ABSENT = auto()  # the job has no reward models, or none is deployed
    INCOMPLETE = auto()
    READY = auto()


@dataclass(frozen=True, slots=True)
class Servers:
    """waits_for: what those that are not ready wait for, for people. missing: whether a driver has to wait for some."""

    state: ServersState
    statuses: Sequence[RewardModelStatus] = ()
    missing: bool = False
    waits_for: str = ""


def derive_servers(snapshot: Snapshot) -> Servers:
    job = snapshot.job
    if job.read is None:
        return Servers(ServersState.ABSENT, job.status.reward_models)
    statuses = [_status(snapshot, model) for model in job.read.rewards.served]
    missing = [each for each in statuses if each.ready_replicas < each.desired_replicas]
    state = ServersState.INCOMPLETE if missing else ServersState.READY
    if not snapshot.children.get(DEPLOYMENT):
        state = ServersState.ABSENT
    waits_for = "; ".join(words for each in missing for words in _waits_for(snapshot, each))
    return Servers(state, statuses, bool(missing), waits_for)


def _status(snapshot: Snapshot, model: RewardModel) -> RewardModelStatus:
    """A Deployment's counts are of an older spec until its controller has observed the present one."""
    found = snapshot.child(DEPLOYMENT, names.reward_model(snapshot.job.name, model.name))
    ready = 0
    if found is not None and not is_deleting(found):
        status = found.get("status", {})
        if status.get("observedGeneration") == found["metadata"].get("generation"):
            ready = min(status.get("readyReplicas", 0), status.get("updatedReplicas", 0))
    return RewardModelStatus(name=model.name, ready_replicas=ready, desired_replicas=model.replicas)


def _waits_for(snapshot: Snapshot, model: RewardModelStatus) -> Iterator[str]:
    yield f"reward model {model.name}: {model.ready_replicas} of {model.desired_replicas} servers ready"
    yield from list(dict.fromkeys(_reasons(snapshot, model.name)))[:3]


def _reasons(snapshot: Snapshot, model: str) -> Iterator[str]:
    yield from troubles(pod for pod in snapshot.servers_of(model) if not is_deleting(pod))
    found = snapshot.child(DEPLOYMENT, names.reward_model(snapshot.job.name, model)) or {}
    yield from replica_failures(found)  # a quota, an admission webhook
