"""Head pods as the operator calls them: Ray's Jobs API, which forgets everything with its container, and the agent.

They answer to the job's own tokens, and to nobody while Ray's container is not ready.
"""

import base64
import re
from collections import defaultdict
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from rljob_api.contract import DriverJob
from rljob_operator import names
from rljob_operator.head.address import RAY_PORT
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.kube.kinds import CONFIG_MAP, POD, RLJOB, SECRET, Key, Kind, Manifest
from rljob_operator.names import JOB_LABEL
from tests.rljob_operator.world.api_server import ApiServer, owners
from tests.rljob_operator.world.clock import seconds
from tests.rljob_operator.world.controllers import is_ready, phase, restarts
from tests.rljob_operator.world.drivers import Driver, Volume
from tests.rljob_operator.world.kuberay import CLUSTER, TYPE

Answer = tuple[int, Any]
"""Status and JSON."""

Life = tuple[str, int]
"""Uid of a head pod, and how often its container was restarted."""


class Unreachable(Exception):
    """Nobody is there."""


class Heads:
    """drivers: all that were ever submitted, oldest first. volumes: by the job's Secret, whose name has its uid.

    strays: what was submitted to another cluster than the status said. mute: agents do not answer, as where the volume
    is slow.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._known: dict[Life, dict[str, Driver]] = defaultdict(dict)
        self.drivers: list[Driver] = []
        self.volumes: dict[str, Volume] = defaultdict(Volume)
        self.strays: list[str] = []
        self.mute = False
        self._secrets: dict[Key, Manifest] = {}  # what a pod has mounted stays, so all that ever were
        server.watchers.append(self._see)

    def _see(self, kind: Kind, _event: str, manifest: Manifest) -> None:
        if kind == SECRET:
            self._secrets[Key.of(manifest)] = manifest

    def living(self) -> list[Driver]:
        return [driver for driver in self.drivers if driver.lives]

    def step(self, driver: Driver) -> bool:
        """What a driver does next, if anything."""
        if driver.job is not None:
            driver.work()
        elif (config := self._server.find(CONFIG_MAP, driver.job_file)) is not None:
            driver.begin(DriverJob.model_validate_json(config["data"][names.JOB_FILE]))
        else:
            return False
        return True

    def lost(self, pod: Manifest) -> None:
        """The pod's processes have died."""
        for driver in self._known.pop(_life(pod), {}).values():
            driver.dead = driver.code is None

    def answer(self, method: str, url: str, params: dict[str, str], body: Any, token: str) -> Answer:
        """Raises Unreachable."""
        parts = urlsplit(url)
        service, namespace = parts.netloc.split(".")[:2]
        pod = self._head(Key(namespace, service.removesuffix("-head-svc")))
        ray = parts.port == RAY_PORT
        if token != f"Bearer {self._token(pod, names.AUTH_TOKEN if ray else names.AGENT_TOKEN)}":
            return 401, {"error": "wrong token"}
        if ray:
            return self._ray(pod, method, parts.path, body)
        if self.mute:
            raise Unreachable(f"the agent beside {parts.netloc}")
        volume = self.volumes[_mounted(pod, "auth", "secret", "secretName")]
        alive = any(each.volume is volume and each.attempt == volume.claimed for each in self.living())
        return _agent(volume, method, parts.path, params, int(seconds() * 1e6) + 2 if alive else 1)

    def _head(self, cluster: Key) -> Manifest:
        """Whom the Service finds: KubeRay's publishes pods that are ending too."""
        wanted = {CLUSTER: cluster.name, TYPE: "head"}.items()
        for pod in self._server.all(POD):
            in_service = (
                pod["metadata"]["namespace"] == cluster.namespace and wanted <= pod["metadata"]["labels"].items()
            )
            if in_service and phase(pod) == "Running" and is_ready(pod):
                return pod
        raise Unreachable(f"no head of {cluster}")

    def _token(self, pod: Manifest, purpose: str) -> str:
        key = Key(pod["metadata"]["namespace"], _mounted(pod, "auth", "secret", "secretName"))
        return base64.b64decode(self._secrets[key]["data"][purpose]).decode()

    def _ray(self, pod: Manifest, method: str, path: str, body: Any) -> Answer:
        known = self._known[_life(pod)]
        if path.endswith("/stop"):
            driver = known.get(path.split("/")[-2])
            if driver is not None and driver.lives:
                driver.end(137, recorded=False)
            return 200, {"stopped": True}
        submission = body["submission_id"] if method == "POST" else path.rpartition("/")[2]
        if method == "POST":
            if submission in known:
                return 400, {"error": f"{submission} was submitted before"}
            known[submission] = self._start(pod, submission, body["entrypoint"])
            return 200, {"submission_id": submission}
        if submission not in known:
            return 404, {"error": f"Job {submission} does not exist"}
        return 200, _told(known[submission])

    def _start(self, pod: Manifest, submission: str, entrypoint: str) -> Driver:
        """The id has to be the one that the status has reserved for this very cluster."""
        namespace, (cluster_uid,) = pod["metadata"]["namespace"], owners(pod)
        job = self._server.find(RLJOB, Key(namespace, pod["metadata"]["labels"][JOB_LABEL])) or {}
        reserved = job.get("status", {}).get("driver", {})
        if (reserved.get("submissionId"), reserved.get("clusterUid")) != (submission, cluster_uid):
            self.strays.append(f"{submission} went to the cluster {cluster_uid}; the status says {reserved}")
        found = re.search(r"--attempt (\d+)", entrypoint)
        assert found is not None
        volume = self.volumes[_mounted(pod, "auth", "secret", "secretName")]
        config = Key(namespace, _mounted(pod, "job", "configMap", "name"))
        self.drivers.append(Driver(submission, int(found[1]), cluster_uid, volume, config))
        return self.drivers[-1]


def _agent(volume: Volume, method: str, path: str, params: dict[str, str], heartbeat: int) -> Answer:
    if method == "POST":
        volume.asked = volume.asked or params["stop"] == "true"
        return 202, {}
    if path == "/v1/progress":
        return (404, {}) if volume.progress is None else (200, _json(volume.progress))
    if path == "/v1/checkpoints":
        return 200, {"checkpoints": [_json(saved) for saved in volume.saved]}
    records = {"exit": volume.exits.get(volume.claimed), "preflight": volume.preflights.get(volume.claimed)}
    told = {name: None if record is None else _json(record) for name, record in records.items()}
    return 200, {"attempt": volume.claimed, "heartbeat": heartbeat, **told}


def _told(driver: Driver) -> Any:
    """Ray's JobDetails. It does not see the code of a driver that was killed."""
    if driver.code is None:
        return {"status": RayJobState.RUNNING if driver.job else RayJobState.PENDING, "message": ""}
    state = RayJobState.FAILED if driver.code else RayJobState.SUCCEEDED
    return {"status": state, "message": "words", "driver_exit_code": driver.code}


def _life(pod: Manifest) -> Life:
    return pod["metadata"]["uid"], restarts(pod)


def _mounted(pod: Manifest, volume: str, source: str, field: str) -> str:
    return str(next(each[source][field] for each in pod["spec"]["volumes"] if each["name"] == volume))


def _json(model: BaseModel) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
