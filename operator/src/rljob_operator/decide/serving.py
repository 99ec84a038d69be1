"""Reward models beside whatever a gate decided: they start with the cluster, and follow the spec as long as it runs.

When the job stops, ends or is deleted, the gates of that delete them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.ending import reward_models
from rljob_operator.decide.failing import failed
from rljob_operator.decide.step import Step
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.render import CannotMerge, Placement, reward_models_of
from rljob_operator.settings import Settings

_RUNS: Final = ("Starting", "Running", "Recovering")


def served(snapshot: Snapshot, settings: Settings, step: Step) -> Step:
    """The step, with what its phase asks of reward models."""
    job = snapshot.job
    if job.problem is not None or job.unread is not None or not step.deployed or step.phase not in _RUNS:
        return step
    image = job.spec.cluster.image or _image(snapshot) or settings.trainer_image
    if image is None:  # the chart lost it while the job starts
        return step
    try:
        wanted = reward_models_of(job, image, Placement())
    except CannotMerge as error:
        if job.has_begun:  # an older operator made them, and what runs goes on
            return replace(step, message=f"{step.message}; {error}")
        return failed(snapshot, Reason.OBJECT_INVALID, f"{error}", {})
    return replace(step, apply=tuple(wanted), delete=(*step.delete, *_superfluous(snapshot, wanted)))


def _image(snapshot: Snapshot) -> str | None:
    """That of the living RayCluster: a new operator's, or its chart's, is for the next one."""
    found: str | None = (snapshot.cluster or {}).get("metadata", {}).get("annotations", {}).get(names.IMAGE_ANNOTATION)
    return found


def _superfluous(snapshot: Snapshot, wanted: Sequence[Manifest]) -> Iterator[Ref]:
    """Of models that the spec does not name any more."""
    named = {(each["kind"], each["metadata"]["name"]) for each in wanted}
    yield from (ref for ref in reward_models(snapshot) if (ref.kind.name, ref.name) not in named)
