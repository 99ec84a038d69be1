"""Writes the table of conditions and reasons: `python -m rljob_api.conditions_reference [FILE]`."""

import sys
from pathlib import Path

from rljob_api.conditions import CONDITIONS, Aspect, Note, Reason
from rljob_api.markdown import table

FILE = "docs/conditions.md"

_HEAD = """# Conditions and reasons

Generated from `rljob_api.conditions` by `make generate`; do not edit.

Every RLJob has these conditions; each is `True` or `False`, or `Unknown` if an `OperatorError` came first. `kubectl
wait`, Argo CD and Flux read Ready, Reconciling and Stalled.
"""

_REASONS = """## Reasons

Ready carries the reason of the phase, and so do the conditions that the phase makes true; their messages explain it. A
failure is retried, in phase Recovering, until the [policy](recovery.md#the-policy) gives up. A reason that lists Failed
first ends the job at once, unless a [rule](recovery.md#rules) says otherwise. The spec of a failed job does not change:
create another RLJob, which may [continue from its checkpoint](operator.md#from-another-jobs-checkpoint).
"""

_ASPECTS = """## Reasons of one condition

If a condition is not about the phase, or is not true:
"""

_NOTES = """## Events

A condition that becomes true is an event with its reason, except Ready, Reconciling and CheckpointAvailable. So is each
failure that is retried, every other change from Running to Recovering, and PodsNotReady and ServersNotReady while the
job runs; and Ready's reason when it becomes ObjectForbidden, ObjectFailing, Queued, StoppedOnRequest, MoreSteps,
SpecChanged, KeyChanged or Deleting. These are events only:
"""


def render() -> str:
    """The page as Markdown; equal words give equal text."""
    conditions = [(f"`{kind}`", meaning) for kind, meaning in CONDITIONS.items()]
    reasons = [(f"`{word}`", ", ".join(word.where) or "any", word.meaning, word.remedy) for word in Reason]
    aspects = [(f"`{word}`", f"`{word.where[0]}`", word.meaning) for word in Aspect]
    notes = [(f"`{word}`", word.meaning) for word in Note]
    parts = (
        (_HEAD, ("Condition", "True says"), conditions),
        (_REASONS, ("Reason", "Phase", "Meaning", "What to do"), reasons),
        (_ASPECTS, ("Reason", "Condition", "Meaning"), aspects),
        (_NOTES, ("Reason", "Meaning"), notes),
    )
    return "\n".join(f"{text}\n{table(head, rows)}" for text, head, rows in parts)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else FILE).write_text(render())
