"""The groups of a job's pods: one list, of which RayCluster, Deployments and Workload are rendered."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.render.placement import Placement
from rljob_operator.render.pods import Template, head_template, worker_template
from rljob_operator.render.reward_models import server_template
from rljob_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of one template. template: raises CannotMerge. least: how many are enough to start; None for all."""

    name: str
    count: int
    template: Callable[[Placement], Template]
    least: int | None = None


def groups(job: Job, image: str, settings: Settings) -> list[Group]:
    """image: of all pods whose part of the spec names none."""
    cluster = job.spec.cluster
    return [
        Group(names.HEAD_GROUP, 1, partial(head_template, job, image, settings)),
        Group(names.TRAINER_GROUP, cluster.nodes, partial(worker_template, job, image, settings), cluster.min_nodes),
        *(
            Group(names.reward_group(model.name), model.replicas, partial(server_template, job, model, image, settings))
            for model in job.spec.rewards.served
        ),
    ]
