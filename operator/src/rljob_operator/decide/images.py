"""The gate of jobs whose pods cannot start: an image that cannot be used, a pod that is invalid."""

from collections.abc import Iterable

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.judging import failed
from rljob_operator.kube.kinds import DEPLOYMENT, Manifest
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.pods import has_just_failed_to_pull, unusable_image
from rljob_operator.observe.snapshot import controller_of
from rljob_operator.plan import Step
from rljob_operator.render.sources import template_of
from rljob_operator.settings import Settings


def unusable(facts: Facts, _settings: Settings) -> Step | None:
    """An unusable image or an invalid pod ends a job that has not begun. Once an attempt had all pods, a pod without
    its image counts as lost: the registry may answer again, and there are checkpoints.
    """
    job, invalid = facts.job, facts.cluster.invalid_pod
    if not job.has_begun and invalid is not None:
        message = f"The API server refuses a pod: {invalid.why}. Fix {template_of(invalid.role)}, in another RLJob"
        return failed(facts, Reason.OBJECT_INVALID, message)
    if job.status.attempt > 0:
        return None
    image = cluster_image(facts) or server_image(facts)
    return None if image is None else failed(facts, Reason.IMAGE_NOT_USABLE, f"{image}, in another RLJob")


def cluster_image(facts: Facts) -> str | None:
    """Why the image of a RayCluster whose workers were never ready cannot be used, and what to set. Pods of an older
    RayCluster do not count.
    """
    if not facts.cluster.exists or facts.cluster.had_workers:
        return None
    own = (pod for pod in facts.seen.ray_pods if controller_of(pod) in (None, facts.seen.cluster_uid))
    message, cluster = unusable_image(_judged(facts, own)), facts.job.spec.cluster
    templates = any(each.template.written().get("spec") for each in (cluster.head, cluster.worker))
    field = "spec.cluster.image, or its template's in spec.cluster," if templates else "spec.cluster.image"
    return None if message is None else f"{message}. Set {field} to an image that can be pulled"


def server_image(facts: Facts) -> str | None:
    """The same for the images of reward models."""
    for index, model in enumerate(facts.job.spec.rewards.models):
        deployed = facts.seen.child(DEPLOYMENT, names.reward_model(facts.job.name, model.name)) is not None
        pods = facts.seen.servers_of(model.name) if deployed else []
        if (message := unusable_image(_judged(facts, pods))) is not None:
            template = ", or its template's" if model.template.written().get("spec") else ""
            field = f"spec.rewards.models[{index}].image{template}, or spec.cluster.image,"
            return f"{message}. Set {field} to an image that can be pulled"
    return None


def _judged(facts: Facts, pods: Iterable[Manifest]) -> list[Manifest]:
    """A job that would fail waits until a pod has failed to pull more than once."""
    return [pod for pod in pods if facts.job.status.attempt > 0 or not has_just_failed_to_pull(pod)]
