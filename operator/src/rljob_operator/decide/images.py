"""The gate of jobs whose pods cannot be made as they are: an image that cannot be used, a pod that is invalid."""

from collections.abc import Iterable

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.failing import failed
from rljob_operator.decide.fields import by_fields_of_pod
from rljob_operator.decide.step import Step
from rljob_operator.kube.kinds import DEPLOYMENT, Manifest
from rljob_operator.observe.cluster import had_workers, invalid_pod
from rljob_operator.observe.pods import has_just_failed_to_pull, unusable_image
from rljob_operator.observe.snapshot import Snapshot, controller_of, made_at
from rljob_operator.settings import Settings


def unusable(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """An image that cannot be used ends a job that has not begun, and so does a pod that is invalid. Once an attempt
    had all pods, a pod without its image is one that is lost: a registry may answer again, and the checkpoints are
    there.
    """
    job = snapshot.job
    if not job.has_begun and snapshot.cluster is not None and (found := invalid_pod(snapshot.cluster)) is not None:
        words = by_fields_of_pod(job, found[1], snapshot.cluster, found[0])
        return failed(snapshot, Reason.OBJECT_INVALID, f"the API server refuses it: {words}", {})
    if job.status.attempt > 0:
        return None
    message = cluster_image(snapshot) or server_image(snapshot)
    return None if message is None else failed(snapshot, Reason.IMAGE_NOT_USABLE, f"{message}, in another RLJob", {})


def cluster_image(snapshot: Snapshot) -> str | None:
    """Why the image of a RayCluster whose workers were never ready cannot be used, and what to set. Pods without a
    RayCluster are an older one's, and so are those of another one, which a late watch may tell of beside this one.
    """
    if snapshot.cluster is None or had_workers(snapshot):
        return None
    own = (pod for pod in snapshot.ray_pods if controller_of(pod) in (None, snapshot.cluster_uid))
    message, cluster = unusable_image(_judged(snapshot, own)), snapshot.job.spec.cluster
    templates = any(each.template.written().get("spec") for each in (cluster.head, cluster.worker))
    where = "spec.cluster.image, or its template's in spec.cluster," if templates else "spec.cluster.image"
    return None if message is None else f"{message}. Set {where} to an image that can be pulled"


def server_image(snapshot: Snapshot) -> str | None:
    """The same of a reward model's, whose pods may be of an older Deployment of its name."""
    for index, model in enumerate(snapshot.job.spec.rewards.models):
        if (made := snapshot.child(DEPLOYMENT, names.reward_model(snapshot.job.name, model.name))) is None:
            continue
        servers = (pod for pod in snapshot.servers_of(model.name) if _may_be_of(made, pod))
        if (message := unusable_image(_judged(snapshot, servers))) is not None:
            template = ", or its template's" if model.template.written().get("spec") else ""
            where = f"spec.rewards.models[{index}].image{template}, or spec.cluster.image,"
            return f"{message}. Set {where} to an image that can be pulled"
    return None


def _judged(snapshot: Snapshot, pods: Iterable[Manifest]) -> list[Manifest]:
    """Without those that have just failed to pull, where the job would end for it. One that waits for an image is not
    told at each further try that it goes on.
    """
    return [pod for pod in pods if snapshot.job.status.attempt > 0 or not has_just_failed_to_pull(pod)]


def _may_be_of(deployment: Manifest, pod: Manifest) -> bool:
    """Its owner is a ReplicaSet, which we do not see, so its age has to tell: in whole seconds. One of the Deployment's
    own second is an older one's if it has not that one's images.
    """
    if made_at(pod) != made_at(deployment):
        return made_at(pod) > made_at(deployment)
    return _images(deployment.get("spec", {}).get("template", {})) <= _images(pod)


def _images(pod: Manifest) -> set[str]:
    """Without their registries: a webhook may put a mirror in their place."""
    return {each["image"].rpartition("/")[2] for each in pod.get("spec", {}).get("containers", ())}
