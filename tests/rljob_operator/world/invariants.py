"""What holds whatever happens, and whatever the operator has seen of it. Each write to an RLJob is checked."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from rljob_api.conditions import Note, Reason
from rljob_operator import names
from rljob_operator.kube.kinds import (
    DEPLOYMENT,
    EVENT,
    POD,
    POD_GROUPS,
    RAY_CLUSTER,
    RLJOB,
    WORKLOAD,
    Kind,
    Manifest,
)
from rljob_operator.observe.snapshot import is_deleting
from tests.rljob_operator.world.api_server import ApiServer, owners
from tests.rljob_operator.world.clock import now
from tests.rljob_operator.world.controllers import phase
from tests.rljob_operator.world.gangs import Gangs
from tests.rljob_operator.world.heads import Heads
from tests.rljob_operator.world.kuberay import TYPE
from tests.rljob_operator.world.kueue import holds_quota
from tests.rljob_operator.world.process import SETTINGS
from tests.rljob_operator.world.trouble import Trouble
from tests.rljob_operator.world.watching import Streams
from tests.rljob_operator.world.witness import TERMINAL, Witness


class Invariants:
    """belated: writes of dead operators arrive."""

    def __init__(
        self, server: ApiServer, heads: Heads, trouble: Trouble, streams: Streams, gangs: Gangs
    ) -> None:  # fmt: skip
        self._server, self._heads, self._trouble, self._streams, self._gangs = server, heads, trouble, streams, gangs
        self.belated, self._late_groups = False, set[str]()
        self._jobs: dict[str, Manifest] = {}  # as they were last, by uid
        self._makers: dict[str, str] = {}  # the uid of the job of each RayCluster and Deployment
        self._witnesses: list[Witness] = []
        server.watchers.insert(0, self._see)  # before the streams, which are late from then on

    def watch(self, witness: Witness) -> None:
        self._witnesses.append(witness)

    def deleted(self, uid: str) -> None:
        """By the operator."""
        assert any(uid in witness.doomed for witness in self._witnesses), f"nobody meant to delete {uid}"

    def check(self) -> None:
        drivers = self._heads.drivers
        assert not self._heads.strays
        assert not [driver for driver in drivers if driver.fenced], "an attempt was started twice"
        living = Counter(driver.submission for driver in self._heads.living())
        assert all(times == 1 for times in living.values()), living
        starts = [each for each in self._server.all(EVENT) if each["reason"] == Note.ATTEMPT_STARTING]
        told = Counter((each["regarding"]["uid"], each["note"]) for each in starts)
        assert all(times == 1 for times in told.values()), told
        pods = [pod for pod in self._server.all(POD) if TYPE in pod["metadata"]["labels"]]
        self._check_quota()
        self._check_gangs()
        clusters = {uid for pod in pods if phase(pod) == "Running" and not is_deleting(pod) for uid in owners(pod)}
        assert len(clusters) <= 1, f"two clusters live: {clusters}"

    def _check_quota(self) -> None:
        """A job with a queue has pods only while it holds quota, also if it was deleted and has gone before them."""
        for uid, job in self._jobs.items():
            if names.QUEUE_LABEL in job["metadata"].get("labels", {}):
                pods = [pod for pod in self._server.all(POD) if uid in map(self._makers.get, owners(pod))]
                held = [each for each in self._server.all(WORKLOAD) if uid in owners(each) and holds_quota(each)]
                assert held or not pods, f"{len(pods)} pods without quota"

    def _check_gangs(self) -> None:
        """Pods that are to stay have their PodGroup, unless a person took it. With a queue no PodGroup lacks quota."""
        for owner in (*self._server.all(RAY_CLUSTER), *self._server.all(DEPLOYMENT)):
            for pod in () if is_deleting(owner) else self._server.owned_by(owner["metadata"]["uid"]):
                kind, group = self._gangs.group_of(pod) or (None, pod)
                assert group or kind in self._gangs.taken, f"{pod['metadata']['name']} has no PodGroup"
        for group in self._gangs.pod_groups:
            job = next((each for each in self._server.all(RLJOB) if each["metadata"]["uid"] in owners(group)), None)
            free = job is None or names.QUEUE_LABEL not in job["metadata"]["labels"] or _is_given_up(job["metadata"])
            if not (free or is_deleting(group) or group["metadata"]["uid"] in self._late_groups):
                assert any(map(holds_quota, self._server.all(WORKLOAD))), "a PodGroup without quota"

    def _see(self, kind: Kind, event: str, manifest: Manifest) -> None:
        if kind in POD_GROUPS.values() and event == "ADDED" and self.belated:
            self._late_groups.add(manifest["metadata"]["uid"])
        if kind in (RAY_CLUSTER, DEPLOYMENT):
            self._makers |= dict.fromkeys((manifest["metadata"]["uid"],), next(owners(manifest), ""))
        if kind != RLJOB:
            return
        uid = manifest["metadata"]["uid"]
        before = self._jobs.get(uid, manifest)
        if event == "DELETED":
            self._check_gone(manifest)
        else:
            self._check_job(_status(before), _status(manifest), uid)
        self._jobs[uid] = manifest

    def _check_job(self, before: Manifest, after: Manifest, uid: str) -> None:
        assert 0 <= after.get("attempt", 0) - before.get("attempt", 0) <= 1
        assert 0 <= after.get("restarts", 0) - before.get("restarts", 0) <= 1
        assert after.get("restarts", 0) <= self._trouble.faults, "a restart is charged, and nothing was at fault"
        driver = after.get("driver")
        assert driver is None or driver["submissionId"] == names.submission(uid, after["attempt"])
        stops = driver is not None and "stopRequested" in driver
        assert not (stops and after.get("phase") == "Running"), "it runs, and its driver is asked to stop"
        if after.get("phase") == "Failed" and reason(after) == Reason.IMAGE_NOT_USABLE:
            begun = [each for each in self._heads.drivers if each.submission.startswith(uid)]
            assert not begun, "an image has ended a job whose driver had begun"
            assert not after.get("attempt"), "an image has ended a job that had an attempt"
        if before.get("phase") in TERMINAL:
            assert _final(before) == _final(after), "a terminal state has changed"
        elif after.get("phase") == "Succeeded":
            ended = [each for each in self._heads.drivers if each.submission.startswith(uid) and each.code == 0]
            assert ended, "no driver has ended with 0"

    def _check_gone(self, manifest: Manifest) -> None:
        """The finalizer waits for cluster and pods, but not for ever, and not for what no watch has told yet."""
        metadata = manifest["metadata"]
        if _is_given_up(metadata) or metadata["uid"] in self._server.forced or self._streams.is_late():
            return
        clusters = [each for each in self._server.all(RAY_CLUSTER) if metadata["uid"] in owners(each)]
        assert not clusters, "the job is gone, and its cluster is not"
        assert not self._server.all(POD), "the job is gone, and its pods are not"


def _is_given_up(metadata: Manifest) -> bool:
    """Whether the job was deleted so long ago that it goes without its pods."""
    since = datetime.fromisoformat(metadata["deletionTimestamp"]) if "deletionTimestamp" in metadata else now()
    return now() - since >= timedelta(seconds=SETTINGS.deletion_seconds)


def _status(manifest: Manifest) -> Manifest:
    status: Manifest = manifest.get("status", {})
    return status


def _final(status: Manifest) -> dict[str, Any]:
    conditions = {each["type"]: each for each in status["conditions"] if each["type"] in TERMINAL}
    told = {kind: (each["status"], each["reason"], each["lastTransitionTime"]) for kind, each in conditions.items()}
    return told | {field: status.get(field) for field in ("phase", "attempt", "restarts", "completionTime", "driver")}


def reason(status: Manifest) -> str | None:
    """Why the job is in its phase."""
    return next((str(each["reason"]) for each in status.get("conditions", ()) if each["type"] == "Ready"), None)
