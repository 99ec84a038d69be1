"""What to do after a failure: one pure function for every supervisor of a part of a job.

    Failure ──> an outcome?  finished, stopped on request, fenced: nothing to recover
            ──> verdict      by the first rule of the user that matches, else by the driver's exit code
            ──> level        the cheapest that the caller owns, that can cure it, and that has not failed before
            ──> budget       recovery.maxRestarts charged restarts without a new durable checkpoint
            ──> Decision

The driver asks with DRIVER_LEVELS, `rljob run` with LOCAL_LEVELS, the operator with OPERATOR_LEVELS. A caller that has
to give up ends with the failure's own code and reason, so that the level above decides on the same facts.
"""

from rljob_api.recovery.decide import decide_recovery
from rljob_api.recovery.terms import (
    DRIVER_LEVELS,
    LOCAL_LEVELS,
    OPERATOR_LEVELS,
    Action,
    Component,
    Decision,
    Failure,
    History,
    Level,
)

__all__ = [
    "DRIVER_LEVELS",
    "LOCAL_LEVELS",
    "OPERATOR_LEVELS",
    "Action",
    "Component",
    "Decision",
    "Failure",
    "History",
    "Level",
    "decide_recovery",
]
