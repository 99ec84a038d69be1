"""What is left of a job that was deleted."""

import time
from collections.abc import Set as AbstractSet

from e2e.cluster_chaos.leftovers import left_by
from e2e.scenarios.job import MINUTES, Job


def leaves_nothing(job: Job, before: AbstractSet[str], within: float = 8 * MINUTES) -> None:
    """Waits until its namespace holds what was there before the job, and no more; no volume of its is there either.

    before: as `left_by` names it. within: seconds. Raises AssertionError where something stays.
    """
    deadline = time.monotonic() + within
    while left := set(left_by(job)) - before:
        if time.monotonic() > deadline:
            raise AssertionError(f"{within:.0f} s after the job was deleted there still is {', '.join(sorted(left))}")
        time.sleep(1)
