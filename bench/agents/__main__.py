"""Measure an engine under agents; writes agents.json, agents.md and agents.png.

python -m bench.agents [--repetitions 2] [--output docs/benchmarks]
python -m bench.agents --redraw [--output docs/benchmarks]
"""

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.agents import measure
from bench.agents.jobs import SLEEP
from bench.agents.measure import Idle, Played, Single
from bench.agents.page import Results, write_page
from bench.commits import last_change
from bench.step.results import processor

ROOT = Path(__file__).parents[2]
CODE = ("bench/agents", "crds/src", "trainer/src")
STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2, help="of runs that are compared, in turns (%(default)s)")
    parser.add_argument("--redraw", action="store_true", help="run nothing: write the page from agents.json")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks", metavar="FOLDER")
    options = parser.parse_args()
    file = options.output / "agents.json"
    if not options.redraw:
        folder = Path(tempfile.mkdtemp(prefix="rljob-bench-"))
        print(f"in {folder}", flush=True)
        file.write_text(json.dumps(asdict(_measured(folder, options.repetitions)), indent=1) + "\n")
        shutil.rmtree(folder)
    write_page(_read(file), options.output)
    print(f"wrote {options.output / 'agents.md'}")


def _measured(folder: Path, repetitions: int) -> Results:
    calm, slept, plain, one_turn = [], [], [], []
    idle = {
        name: _said(name, measure.idle(folder / f"idle-{threads}", threads=threads))
        for name, threads in (("coroutines", False), ("threads (code that is not async)", True))
    }
    for number in range(repetitions):
        calm.append(_said("without sleeps", measure.sleeping(0.0, folder / f"calm-{number}")))
        slept.append(_said("with sleeps", measure.sleeping(SLEEP, folder / f"slept-{number}")))
        plain.append(_said("plain", measure.single(folder / f"plain-{number}", environment=False, steps=STEPS)))
        one_turn.append(_said("one turn", measure.single(folder / f"turn-{number}", environment=True, steps=STEPS)))
    return Results(
        command=f"python -m bench.agents --repetitions {repetitions}",
        commit=last_change(CODE),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=f"{os.cpu_count()} CPU cores ({processor() or 'unknown processor'})",
        calm=calm, slept=slept, idle=idle, plain=plain, one_turn=one_turn,
    )  # fmt: skip


def _said(name: str, found: Any) -> Any:
    print(f"{datetime.now(UTC):%H:%M:%S} {name}: {found}"[:300], flush=True)
    return found


def _read(file: Path) -> Results:
    found = json.loads(file.read_text())
    for name, kind in (("calm", Played), ("slept", Played), ("plain", Single), ("one_turn", Single)):
        found[name] = [kind(**each) for each in found[name]]
    found["idle"] = {name: Idle(**each) for name, each in found["idle"].items()}
    return Results(**found)


if __name__ == "__main__":
    main()
