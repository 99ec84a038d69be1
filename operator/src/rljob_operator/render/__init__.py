"""What should exist for a job, as manifests. Pure: equal jobs and settings give equal manifests.

gang.py          PodGroup of a gang scheduler, and what names it in pods
groups.py        the list of the job's pods, which the others are rendered of
config.py        ConfigMap, Secret, PersistentVolumeClaim
protection.py    NetworkPolicy, PodDisruptionBudget
ray_cluster.py   RayCluster, of pods.py's templates
reward_models.py Deployment and Service of each reward model
workload.py      Workload of Kueue, for jobs with a queue
"""

from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import Manifest
from rljob_operator.render.config import auth_secret, checkpoint_claim, job_config
from rljob_operator.render.gang import in_gang, pod_group
from rljob_operator.render.groups import groups
from rljob_operator.render.merge import CannotMerge
from rljob_operator.render.placement import ANYWHERE, Placement, Placements, UnknownFlavor, placements
from rljob_operator.render.protection import disruption_budget, network_policy
from rljob_operator.render.ray_cluster import eviction, ray_cluster, spec_digest
from rljob_operator.render.reward_models import deployment, service
from rljob_operator.render.workload import workload
from rljob_operator.settings import Settings

__all__ = [
    "CannotMerge",
    "Placement",
    "Placements",
    "UnknownFlavor",
    "cluster_of",
    "eviction",
    "lasting_children",
    "placements",
    "pod_group_of",
    "reward_models_of",
    "secret_of",
    "spec_digest",
    "workload_of",
]


def lasting_children(job: Job, settings: Settings, *, trains: bool) -> list[Manifest]:
    """What exists from the job's acceptance on and follows its spec. trains: whether its driver runs now."""
    spec = job.spec
    children = [
        _child(job, job_config(job.name, job.uid, job.generation, spec)),
        _child(job, network_policy(job.name, settings.operator_namespace, settings.monitoring_namespace)),
        _child(job, disruption_budget(job.name, spec, trains=trains)),
    ]
    if (claim := checkpoint_claim(job.name, spec)) is not None:
        claim["metadata"]["annotations"] = {names.MAKER_ANNOTATION: job.uid}
        children.append(_child(job, claim, owned=not spec.checkpoint.volume.retain))
    return children


def secret_of(job: Job, key: bytes) -> Manifest:
    return _child(job, auth_secret(job.name, job.uid, key))


def cluster_of(job: Job, image: str, settings: Settings, placed: Placements) -> Manifest:
    """Raises CannotMerge."""
    pods = {each.name: each for each in groups(job, image, settings)}
    head, trainer = (
        pods[name].template(in_gang(job, placed.get(name, ANYWHERE), settings))
        for name in (names.HEAD_GROUP, names.TRAINER_GROUP)
    )
    return _child(job, ray_cluster(job, image, settings, head, trainer))


def reward_models_of(job: Job, image: str, settings: Settings, placed: Placements) -> list[Manifest]:
    """What exists while the job runs and follows its spec. image: of the job's other pods. Raises CannotMerge."""
    pods, made = {each.name: each for each in groups(job, image, settings)}, list[Manifest]()
    for model in job.spec.rewards.served:
        group = pods[names.reward_group(model.name)]
        template = group.template(in_gang(job, placed.get(group.name, ANYWHERE), settings))
        made += [service(job, model), deployment(job, model, template, group.count)]
    return [_child(job, each) for each in made]


def pod_group_of(job: Job, settings: Settings) -> Manifest | None:
    """None for a job without a gang. Raises CannotMerge; never for native."""
    made = pod_group(job, groups(job, "", settings))  # no image is part of it
    return None if made is None else _child(job, made)


def workload_of(job: Job, queue: str, image: str, settings: Settings, priority: int) -> Manifest:
    """priority: of the job's WorkloadPriorityClass, or 0. Raises CannotMerge."""
    return _child(job, workload(job, queue, groups(job, image, settings), priority))


def _child(job: Job, manifest: Manifest, *, owned: bool = True) -> Manifest:
    """With the job's namespace and labels, and with its owner if Kubernetes removes it with the job."""
    metadata = {"namespace": job.namespace, "labels": dict(names.labels(job.name)), **manifest["metadata"]}
    if owned:
        metadata["ownerReferences"] = [job.owner_reference]
    return manifest | {"metadata": metadata}
