"""The RayCluster. It is rendered once for its life: a newer operator leaves a living one as it is."""

from typing import Any

from rljob_api import RLJobSpec
from rljob_api.v1alpha1.transitions import fixed_while_running
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.job import Job
from rljob_operator.kube.kinds import RAY_CLUSTER
from rljob_operator.render.digest import digest
from rljob_operator.render.pods import Template
from rljob_operator.settings import Settings

RENDERER_VERSION = "1"

WORKER_GROUP = "workers"


def ray_cluster(job: Job, image: str, settings: Settings, head: Template, trainer: Template) -> dict[str, Any]:
    """KubeRay's ray.io/v1 RayCluster, without metadata but its name and annotations. head, trainer: of its pods."""
    nodes, key = job.spec.cluster.nodes, tokens.fingerprint(settings.key)
    annotations = {
        names.RENDERER_ANNOTATION: RENDERER_VERSION,
        names.SPEC_ANNOTATION: spec_digest(job.written),
        names.GENERATION_ANNOTATION: f"{job.generation}",
        names.IMAGE_ANNOTATION: image,
        names.KEY_ANNOTATION: key,
        names.EVICTION_ANNOTATION: eviction(job.spec),
        # A new head would know nothing of the job; the operator decides what a lost head means.
        "ray.io/disable-provisioned-head-restart": "true",
    }
    head_group = {
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},  # nothing but the driver runs there
        "template": head,
    }
    workers = {
        "groupName": WORKER_GROUP,
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), nodes),
        "rayStartParams": {},
        "template": trainer,
    }
    spec = {
        "rayVersion": settings.ray_version,
        "upgradeStrategy": {"type": "None"},
        "authOptions": {"mode": "token", "secretName": names.auth_secret(job.name, job.uid, key)},
        "headGroupSpec": head_group,
        "workerGroupSpecs": [workers],
    }
    return RAY_CLUSTER.manifest({"name": names.ray_cluster(job.name), "annotations": annotations}, spec=spec)


def eviction(spec: RLJobSpec) -> str:
    """Settings that pods keep although the spec may change while they live."""
    recovery = spec.recovery
    return f"nodeLostAfter {recovery.node_lost_after}, evictionGracePeriod {recovery.eviction_grace_period}"


def spec_digest(spec: RLJobSpec) -> str:
    """Digest of what a living cluster was created for. Defaults are excluded: a newer API may bring others."""
    return digest(fixed_while_running(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
