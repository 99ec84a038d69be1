"""Compare architectures in both engines with transformers, and write docs/models.md.

    python -m bench.models [--engine hf] [NAME ...]

Each comparison runs in a process of its own, because vLLM starts once in a process. Results of others are kept.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from bench.models.architectures import ARCHITECTURES
from bench.models.compare import Result, compare
from bench.models.page import page
from rljob_api.v1alpha1.rollout import Engine

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "benchmarks" / "models.json"

Results = dict[str, dict[str, Result]]
"""By architecture and engine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(ARCHITECTURES))
    parser.add_argument("--engine", choices=get_args(Engine), action="append")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        with tempfile.TemporaryDirectory(prefix="rljob-models-") as folder:
            print(json.dumps(asdict(compare(options.names[0], options.engine[0], Path(folder)))))
        return
    results = _read()
    for name in options.names:
        for engine in options.engine or get_args(Engine):
            results.setdefault(name, {})[engine] = found = in_process(name, engine)
            print(f"{name:30} {engine:5} {found}", flush=True)
            _write(results)


def in_process(name: str, engine: str) -> Result:
    """Raises CalledProcessError if the comparison fails for a reason that is no refusal."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.models", "--here", "--engine", engine, name],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def _read() -> Results:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {name: {engine: Result(**each) for engine, each in found[name].items()} for name in found}


def _write(results: Results) -> None:
    ordered = {name: results[name] for name in ARCHITECTURES if name in results}
    plain = {name: {engine: asdict(each) for engine, each in row.items()} for name, row in ordered.items()}
    RESULTS.write_text(json.dumps(plain, indent=1) + "\n")
    (DOCS / "models.md").write_text(page(ordered))


if __name__ == "__main__":
    main()
