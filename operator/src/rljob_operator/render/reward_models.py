"""A Deployment and a Service for each reward model: vLLM servers, which the trainer asks by the Service's name."""

from typing import Any

from rljob_api import reward_server
from rljob_api.v1alpha1 import RewardModel
from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import DEPLOYMENT, SERVICE
from rljob_operator.render.digest import digest
from rljob_operator.render.placement import Placement
from rljob_operator.render.pods import (
    CHECKPOINTS,
    SHARED_MEMORY_MOUNT,
    Template,
    checkpoint_volume,
    container,
    customized,
    own_reward_key,
    pod_template,
    shared_memory,
    tolerant,
    variables,
)
from rljob_operator.render.ray_cluster import spec_digest
from rljob_operator.settings import Settings

PORT = 8000

START_SECONDS = 3600
"""How long a server may take until it is ready: it may have to fetch its model."""

_PROBE = {"httpGet": {"path": reward_server.HEALTH, "port": PORT}, "timeoutSeconds": 5}


def url(job: str, model: str) -> str:
    """For pods of the job's namespace."""
    return f"http://{names.reward_model(job, model)}:{PORT}"


def deployment(job: Job, model: RewardModel, template: Template, replicas: int) -> dict[str, Any]:
    annotations = {names.SPEC_ANNOTATION: spec_digest(job.written), names.TEMPLATE_ANNOTATION: digest(template)}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": _selector(job, model)},
        # GPUs are scarce: a new server takes the place of an old one.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "template": template,
    }
    return DEPLOYMENT.manifest(
        {"name": names.reward_model(job.name, model.name), "annotations": annotations}, spec=spec
    )


def service(job: Job, model: RewardModel) -> dict[str, Any]:
    ports = [{"name": "http", "port": PORT, "protocol": "TCP"}]
    metadata = {"name": names.reward_model(job.name, model.name)}
    return SERVICE.manifest(metadata, spec={"selector": _selector(job, model), "ports": ports})


def server_template(
    job: Job, model: RewardModel, image: str, settings: Settings, placement: Placement
) -> Template:  # fmt: skip
    """The pod of one server. image: of the job's other pods."""
    spec, gpus = job.spec, model.gpus_per_replica
    server = container(
        names.SERVER_CONTAINER, spec, model.image or image, model.cpu, model.memory, [SHARED_MEMORY_MOUNT], gpus
    )
    key = {"name": reward_server.KEY_VARIABLE, "valueFrom": {"secretKeyRef": own_reward_key(job, settings)}}
    defaults = reward_server.environment(gpus).items()
    ours = [{"name": name, "value": value} for name, value in defaults if name not in {each.name for each in model.env}]
    server |= {
        "command": reward_server.command("python3", model, model.path, "0.0.0.0", PORT, gpus),
        "env": [key, *ours, *variables(model.env)],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": _PROBE | {"periodSeconds": 5, "failureThreshold": START_SECONDS // 5},
        "readinessProbe": _PROBE | {"periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": _PROBE | {"periodSeconds": 20, "failureThreshold": 6},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # a condition then says why it crashed
    }
    labels = {names.ROLE_LABEL: names.REWARD_MODEL, names.REWARD_MODEL_LABEL: model.name}
    template = pod_template(job, labels, {"containers": [server], "volumes": [shared_memory()]})
    where = f"spec.rewards.models[{spec.rewards.models.index(model)}].template"
    made = _with_checkpoints(job, customized(template, model.template.written(), where))
    return tolerant(placement.on(made), spec)


def _with_checkpoints(job: Job, template: Template) -> Template:
    """With the job's volume, if spec.volumeMounts or the template mounts it."""
    pod = template["spec"]
    mounted = {mount.get("name") for each in pod["containers"] for mount in each.get("volumeMounts", ())}
    if CHECKPOINTS not in mounted or any(each.get("name") == CHECKPOINTS for each in pod["volumes"]):
        return template
    return {**template, "spec": {**pod, "volumes": [*pod["volumes"], checkpoint_volume(job)]}}


def _selector(job: Job, model: RewardModel) -> dict[str, str]:
    return {names.JOB_LABEL: job.name, names.REWARD_MODEL_LABEL: model.name}
