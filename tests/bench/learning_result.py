"""A finished run of the learning benchmark, for its tests to vary."""

from bench.learning.arms import REVERSE_TEXT
from bench.learning.data import digest
from bench.learning.results import Result

RESULT = Result(
    task="reverse-text", arm="grpo", seed=0, commit="c1", example=digest(REVERSE_TEXT), device="2 CPU cores",
    packages="torch", date="2026-11-21", seconds=60.0, samples=64, validation=[(0, 0.5), (10, 0.9)],
    reward=[(1, 0.4)], closing={"actor/clip_fraction": 0.0},
)  # fmt: skip
