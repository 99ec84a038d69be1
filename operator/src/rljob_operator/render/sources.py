"""The pod template of the job to look at when the API server refuses an object. Its message is quoted."""

from collections.abc import Iterator

from rljob_api import RLJobSpec
from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.errors import one_line

_OF_RAY = {"headGroupSpec": names.HEAD, "workerGroupSpecs": names.WORKER}
"""Fields of a RayCluster, and the pods that they describe."""

_QUOTED = 2000
"""Longest message of the API server, in characters; a condition has room for 16 times as many."""


def quoted(job: Job, message: str) -> str:
    """The API server's message, then the fields of the job that the named object is rendered from."""
    found = list(_templates(job.read, job.name, message)) if job.read is not None else []
    said = one_line(message)
    said = said if len(said) <= _QUOTED else f"{said[:_QUOTED]} ..."  # it may contain the whole value of a field
    return f"{said}. Check {' and '.join(found)}" if found else said


def template_of(role: str) -> str:
    """role: names.HEAD or WORKER."""
    return f"spec.cluster.{role}.template"


def _templates(spec: RLJobSpec, job: str, message: str) -> Iterator[str]:
    yield from (template_of(role) for field, role in _OF_RAY.items() if field in message)
    for index, model in enumerate(spec.rewards.models):
        if names.reward_model(job, model.name) in message:
            yield f"spec.rewards.models[{index}].template"
