"""A finished run of the learning benchmark, for its tests to vary."""

from dataclasses import replace
from functools import cache
from typing import Any

from bench.learning.arms import REVERSE_TEXT
from bench.learning.data import digest
from bench.learning.results import Result
from bench.learning.training import known_arms

RESULT = Result(
    task="reverse-text", arm="grpo", seed=0, commit="c1", job=digest(REVERSE_TEXT), device="2 CPU cores",
    packages="torch", date="2026-11-21", seconds=60.0, samples=64, validation=[(0, 0.5), (10, 0.9)],
    reward=[(1, 0.4)], closing={"actor/clip_fraction": 0.0},
)  # fmt: skip


def result(arm: str, **changes: Any) -> Result:
    """The same of another arm of reverse-text."""
    return replace(RESULT, arm=arm, job=_jobs()[arm], **changes)


@cache
def _jobs() -> dict[str, str]:
    return {arm.name: digest(arm.task, arm.overrides) for arm in known_arms() if arm.task is REVERSE_TEXT}
