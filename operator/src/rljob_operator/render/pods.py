"""Pod templates of head and workers, and what they share with those of reward models.

All run without root, without capabilities and without a Kubernetes token: they run users' reward code.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api import RLJobSpec, parse_duration, reward_server
from rljob_api.v1alpha1 import RewardModel
from rljob_api.v1alpha1.cluster import EnvVar
from rljob_api.v1alpha1.pods import JOB_VOLUMES
from rljob_api.v1alpha1.teacher import TEACHER_KEY
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.head.address import AGENT_PORT, RAY_PORT
from rljob_operator.job import Job
from rljob_operator.render.merge import CannotMerge, merged
from rljob_operator.render.placement import Placement, avoiding
from rljob_operator.settings import Settings

Template = dict[str, Any]

USER = 1000
"""User of the trainer image; the volume's files belong to its group."""

STOP_MARGIN_SECONDS = 30
"""How much longer than recovery.evictionGracePeriod a pod may take to end: for Ray, and for the last files."""

_AGENT_RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}
LOST_NODE_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def head_template(job: Job, image: str, settings: Settings, placement: Placement) -> Template:
    spec = job.spec
    head = spec.cluster.head
    driver = container(names.HEAD_CONTAINER, spec, image, head.cpu, head.memory, _mounts(spec)) | {
        **_job_variables(job, settings),
        "ports": [
            {"name": "gcs", "containerPort": 6379},
            {"name": "dashboard", "containerPort": RAY_PORT},
            {"name": "client", "containerPort": 10001},
        ],
        "lifecycle": _stop_before_end(spec),
    }
    agent = _agent(spec, image, open_metrics=settings.monitoring_namespace is not None)
    template = _template(job, settings, names.HEAD, [driver, agent])
    return tolerant(placement.on(customized(template, head.template.written(), "spec.cluster.head.template")), spec)


def worker_template(job: Job, image: str, settings: Settings, placement: Placement) -> Template:
    spec = job.spec
    worker = spec.cluster.worker
    mounts = [*_mounts(spec), SHARED_MEMORY_MOUNT]
    ranks = container(
        names.WORKER_CONTAINER, spec, image, worker.cpu, worker.memory, mounts, gpus=spec.cluster.gpus_per_node
    )
    ranks |= _job_variables(job, settings) | {"lifecycle": _stop_before_end(spec)}
    template = _template(job, settings, names.WORKER, [ranks])
    template["spec"]["volumes"].append(shared_memory(worker.shared_memory))
    placed = placement.on(customized(template, worker.template.written(), "spec.cluster.worker.template"))
    return tolerant(avoiding(placed, [each.name for each in job.status.excluded_nodes]), spec)


def pod_template(job: Job, labels: Mapping[str, str], pod: Mapping[str, Any]) -> Template:
    """What every pod of the job has, with more labels. `pod` wins, except that its volumes are added."""
    spec = job.spec
    common: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",  # else a kubelet looks at every file of a large volume
            "runAsNonRoot": True,
        },
    }
    if spec.image_pull_secrets:
        common["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    if spec.cluster.priority_class_name:
        common["priorityClassName"] = spec.cluster.priority_class_name
    volumes = [*pod.get("volumes", ()), *(volume.written() for volume in spec.volumes)]
    return {"metadata": {"labels": {**names.labels(job.name), **labels}}, "spec": {**common, **pod, "volumes": volumes}}


def customized(template: Template, patch: Mapping[str, Any], path: str) -> Template:
    """With the user's template on top, except for the operator's labels, which identify its pods. Raises CannotMerge,
    also if one of the operator's folders would be another volume.
    """
    made = merged(template, patch, path)
    _keeps_our_folders(template, made, path)
    metadata = made.get("metadata", {})
    labels = {**metadata.get("labels", {}), **template["metadata"]["labels"]}
    return {**made, "metadata": {**metadata, "labels": labels}}


def _keeps_our_folders(ours: Template, made: Template, path: str) -> None:
    """Raises CannotMerge. Shared memory a template may replace."""
    containers = {each.get("name"): each for each in made["spec"].get("containers", ())}
    for before in ours["spec"]["containers"]:
        now = _mounted(containers.get(before["name"], {}))
        for folder, volume in _mounted(before).items():
            if volume in JOB_VOLUMES and now.get(folder, volume) != volume:
                where = f"{path}.spec.containers[{before['name']}].volumeMounts"
                raise CannotMerge(f"{where}: {folder} belongs to the operator's volume {volume}; choose another folder")


def _mounted(container: Mapping[str, Any]) -> dict[str, str]:
    """Volumes by folder."""
    return {each.get("mountPath"): each.get("name") for each in container.get("volumeMounts", ())}


def tolerant(template: Template, spec: RLJobSpec) -> Template:
    """Kubernetes evicts the pod when its node has been lost for long enough, unless the template names the taint.

    The operator's come first, because the first match counts: a template that tolerates everything means other nodes.
    """
    given = template["spec"].get("tolerations", ())
    seconds = math.ceil(parse_duration(spec.recovery.node_lost_after))
    own = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in LOST_NODE_TAINTS
        if not any(_tolerates(each, key) for each in given)
    ]
    return {**template, "spec": {**template["spec"], "tolerations": [*own, *given]}}


def _tolerates(given: Mapping[str, Any], key: str) -> bool:
    """Whether the toleration names the taint that evicts."""
    return given.get("key") == key and given.get("effect") in (None, "", "NoExecute")


def container(
    name: str, spec: RLJobSpec, image: str, cpu: str, memory: str, mounts: Sequence[Mapping[str, Any]], gpus: int = 0
) -> dict[str, Any]:
    """A container of the trainer or a server. mounts: its own; the job's come after them."""
    devices = {spec.cluster.gpu_resource: str(gpus)} if gpus else {}
    return {
        "name": name,
        "image": image,
        "resources": {"requests": {"cpu": cpu, "memory": memory, **devices}, "limits": {"memory": memory, **devices}},
        "securityContext": RESTRICTED,
        "volumeMounts": [*mounts, *(mount.written() for mount in spec.volume_mounts)],
    }


def variables(given: Sequence[EnvVar]) -> list[dict[str, Any]]:
    return [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in given]


def _job_variables(job: Job, settings: Settings) -> dict[str, Any]:
    """Of the trainer's containers. Servers of reward models have their own variables."""
    spec = job.spec
    return {
        "env": [*variables(spec.env), *_reward_keys(job, settings), *_teacher_key(job)],
        "envFrom": [source.written() for source in spec.env_from],
    }


def _reward_keys(job: Job, settings: Settings) -> list[dict[str, Any]]:
    """Keys of reward models' servers, for whichever pod sends their requests."""
    models = job.spec.rewards.models
    return [
        {"name": reward_server.key_variable(model), "valueFrom": {"secretKeyRef": reference}}
        for model in models
        if (reference := _reward_key(job, model, settings)) is not None
    ]


def _teacher_key(job: Job) -> list[dict[str, Any]]:
    """Key of the teacher's server, for whichever pod sends its requests."""
    teacher = job.spec.algorithm.teacher
    if teacher is None or teacher.server is None or teacher.server.key is None:
        return []
    reference = teacher.server.key.model_dump(mode="json", by_alias=True)
    return [{"name": TEACHER_KEY, "valueFrom": {"secretKeyRef": reference}}]


def _reward_key(job: Job, model: RewardModel, settings: Settings) -> dict[str, Any] | None:
    if model.url is None:
        return own_reward_key(job, settings)
    return None if model.key is None else model.key.model_dump(mode="json", by_alias=True)


def own_reward_key(job: Job, settings: Settings) -> dict[str, Any]:
    """A secretKeyRef. optional: a Secret of an older operator has no such key; then servers and clients have none."""
    return {"name": _auth_secret(job, settings), "key": names.REWARD_KEY, "optional": True}


def _auth_secret(job: Job, settings: Settings) -> str:
    return names.auth_secret(job.name, job.uid, tokens.fingerprint(settings.key))


CHECKPOINTS = "checkpoints"
"""The volume's name in a pod; spec.volumeMounts may mount it a second time."""

SHARED_MEMORY_MOUNT = {"name": "shared-memory", "mountPath": "/dev/shm"}


def shared_memory(size: str | None = None) -> dict[str, Any]:
    """The volume behind SHARED_MEMORY_MOUNT. It counts as the pod's memory; size: its own limit below that."""
    return {"name": "shared-memory", "emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}


def _template(job: Job, settings: Settings, role: str, containers: Sequence[Mapping[str, Any]]) -> Template:
    pod = {
        "terminationGracePeriodSeconds": _grace_seconds(job.spec) + STOP_MARGIN_SECONDS,
        "containers": list(containers),
        "volumes": _own_volumes(job, settings),
    }
    return pod_template(job, {names.ROLE_LABEL: role}, pod)


def _agent(spec: RLJobSpec, image: str, *, open_metrics: bool) -> dict[str, Any]:
    """It answers while the driver is dead, so it is a container of its own."""
    # Not an argument: an older image would refuse it.
    variables = [{"name": "RLJOB_AGENT_OPEN_METRICS", "value": "true"}] if open_metrics else []
    probe = {"httpGet": {"path": "/healthz", "port": AGENT_PORT}}
    return {
        "name": names.AGENT_CONTAINER,
        "image": image,
        "command": ["rljob", "agent", "--dir", names.VOLUME_FOLDER, "--host", "0.0.0.0", "--port", f"{AGENT_PORT}"],
        "args": ["--token-file", f"{names.TOKEN_FOLDER}/{names.AGENT_TOKEN}"],
        "env": variables,
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "resources": _AGENT_RESOURCES,
        "securityContext": RESTRICTED,
        "startupProbe": probe | {"periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": probe | {"periodSeconds": 20, "failureThreshold": 3},
        "lifecycle": _stop_before_end(spec),  # as the driver beside it: it answers until that has stopped
        "volumeMounts": [_volume_mount(spec), {"name": "auth", "mountPath": names.TOKEN_FOLDER, "readOnly": True}],
    }


def _stop_before_end(spec: RLJobSpec) -> dict[str, Any]:
    """A pod that is evicted lets the driver save a checkpoint first: Ray itself would end it at once."""
    command = ["rljob", "stop", names.VOLUME_FOLDER, "--wait", f"{_grace_seconds(spec)}s"]
    return {"preStop": {"exec": {"command": command}}}


def _grace_seconds(spec: RLJobSpec) -> int:
    return math.ceil(parse_duration(spec.recovery.eviction_grace_period))


def _own_volumes(job: Job, settings: Settings) -> list[dict[str, Any]]:
    return [
        checkpoint_volume(job),
        {"name": "job", "configMap": {"name": names.job_config(job.name)}},
        {
            "name": "auth",
            "secret": {
                "secretName": _auth_secret(job, settings),
                "items": [{"key": names.AGENT_TOKEN, "path": names.AGENT_TOKEN}],
            },
        },
    ]


def checkpoint_volume(job: Job) -> dict[str, Any]:
    claim = job.spec.checkpoint.volume.existing_claim or names.claim(job.name)
    return {"name": CHECKPOINTS, "persistentVolumeClaim": {"claimName": claim}}


def _volume_mount(spec: RLJobSpec) -> dict[str, Any]:
    mount = {"name": CHECKPOINTS, "mountPath": names.VOLUME_FOLDER}
    return mount | ({"subPath": path} if (path := spec.checkpoint.volume.sub_path) else {})


def _mounts(spec: RLJobSpec) -> list[dict[str, Any]]:
    return [_volume_mount(spec), {"name": "job", "mountPath": names.JOB_FOLDER, "readOnly": True}]
