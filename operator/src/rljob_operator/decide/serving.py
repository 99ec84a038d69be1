"""Reward models beside what a gate decided: they start with the cluster, and follow the spec while the job runs.

When the job stops, ends or is deleted, the gates of that delete them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.ending import servers
from rljob_operator.decide.judging import failed
from rljob_operator.decide.starting import placed
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import annotation
from rljob_operator.plan import Step
from rljob_operator.render import CannotMerge, UnknownFlavor, reward_models_of
from rljob_operator.settings import Settings

RUNS: Final = ("Starting", "Running", "Recovering")
"""Phases in which a job has pods, or gets them."""


def served(facts: Facts, settings: Settings, step: Step) -> Step:
    """The step, with what its phase requires of reward models."""
    job = facts.job
    if job.problem is not None or job.unread is not None or not step.deployed or step.phase not in RUNS:
        return step
    # The living RayCluster's image: a newer operator's, or its chart's, is for the next one.
    image = job.spec.cluster.image or annotation(facts.seen.cluster, names.IMAGE_ANNOTATION) or settings.trainer_image
    if image is None:  # the chart lost it while the job starts
        return step
    try:
        wanted = reward_models_of(job, image, settings, placed(facts))
    except UnknownFlavor:  # a gate reports it before anything runs
        return step
    except CannotMerge as error:
        if job.has_begun:  # an older operator created them, and what runs goes on
            return replace(step, message=f"{step.message}; {error}")
        return failed(facts, Reason.OBJECT_INVALID, f"{error}")
    return replace(step, apply=tuple(wanted), delete=(*step.delete, *_superfluous(facts, wanted)))


def _superfluous(facts: Facts, wanted: Sequence[Manifest]) -> Iterator[Ref]:
    """Servers of models that the spec does not name any more."""
    named = {(each["kind"], each["metadata"]["name"]) for each in wanted}
    yield from (ref for ref in servers(facts.seen) if (ref.kind.name, ref.name) not in named)
