"""Gates of a driver that Ray has: not heard, not started yet, or running."""

from typing import Any

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.starting import on_the_way
from rljob_operator.observe.driver import DriverState
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import annotation
from rljob_operator.plan import Step
from rljob_operator.render import eviction
from rljob_operator.settings import Settings

_READ_ONCE = "training, checkpoint, recovery.hangAfter and recovery.takeoverWithin"
"""What may change while a job runs, and the driver reads at its start."""


def unheard(facts: Facts, settings: Settings) -> Step | None:
    """The status does not claim for long that an unheard driver runs."""
    if facts.driver.state not in (DriverState.UNANSWERED, DriverState.SILENT):
        return None
    reason, message = Reason.HEAD_NOT_ANSWERING, "Ray's head does not answer"
    if facts.seen.unauthorized:
        reason, message = Reason.UNAUTHORIZED, "The head pod refuses the operator's token"
    elif facts.driver.state is DriverState.SILENT:
        reason, message = Reason.DRIVER_NOT_HEARD, "Ray has the driver, which gives no sign of life"
    message += f"; the state of attempt {facts.job.status.attempt} is unknown"
    return Step(on_the_way(facts), reason, message, again_in=settings.poll_seconds)


def pending(facts: Facts, settings: Settings) -> Step | None:
    """Ray has the driver and has not started it, for example while it sets up its environment."""
    driver = facts.driver
    if driver.state is not DriverState.PENDING or driver.status is None:
        return None
    changes = {"driver": driver.status.model_copy(update={"state": "Submitted"})}
    message = f"Ray has attempt {facts.job.status.attempt} and has not started its driver yet"
    return Step(on_the_way(facts), Reason.STARTING_DRIVER, message, changes, again_in=settings.poll_seconds)


def running(facts: Facts, settings: Settings) -> Step:
    """The driver runs, or did a moment ago. An earlier request to stop is withdrawn: a driver that heard it ends with a
    code that says so, and a later request has a grace period of its own.
    """
    status, driver = facts.job.status, facts.driver.status
    assert driver is not None
    changes: dict[str, Any] = {"driver": driver.model_copy(update={"state": "Submitted", "stop_requested": None})}
    if status.start_time is None:
        changes["start_time"] = facts.now
    message = f"Attempt {status.attempt} runs"
    if not facts.cluster.is_ready:
        message += f"; {facts.cluster.waits_for}"
    if facts.seen.head is None:
        message += "; Ray's head does not answer at present"
    if driver.generation is not None and driver.generation < facts.job.generation:
        read = f"it read generation {driver.generation} of the spec"
        message += f"; {read}: later changes of {_READ_ONCE} apply to the next attempt"
    if made_with := _other_eviction(facts):
        message += f"; its pods keep the settings that they were created with: {made_with}"
    return Step("Running", Reason.DRIVER_RUNNING, message, changes, again_in=settings.poll_seconds)


def _other_eviction(facts: Facts) -> str | None:
    """What the pods were created with, if the spec has changed since. An older operator did not record it."""
    made_with = annotation(facts.seen.cluster, names.EVICTION_ANNOTATION)
    return None if made_with == eviction(facts.job.spec) else made_with
