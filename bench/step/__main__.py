"""Time steps of ours and of TRL in turns; writes cpu.md and cpu.png.

python -m bench.step [--shapes tiny 10M] [--engines hf vllm] [--repetitions 5] [--output docs/benchmarks]
"""

import argparse
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import yaml

from bench.step.page import OURS, TRL, Measured, write_page
from bench.step.runs import Steps, ours, trl, vllm_alone
from bench.step.shapes import SHAPES, Shape, job, write_model
from rljob_api import resolve
from rljob_api.validation import load_rljob

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--engines", nargs="+", choices=OURS, default=OURS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rljob-bench-"))
    chosen = [shape for shape in SHAPES if options.shapes is None or shape.name in options.shapes]
    measured = [measure(shape, options.engines, options.repetitions, folder / shape.name) for shape in chosen]
    write_page(measured, options.output)
    print(f"wrote {options.output / 'cpu.md'}")
    shutil.rmtree(folder)


def measure(shape: Shape, engines: list[str], repetitions: int, folder: Path) -> Measured:
    model = folder / "model"
    parameters = write_model(shape, model)
    jobs = {engine: folder / f"{engine}.yaml" for engine in engines}
    for engine, file in jobs.items():
        file.write_text(yaml.safe_dump(job(shape, model, engine)))
    spec = folder / "spec.json"
    spec.write_text(resolve(load_rljob(next(iter(jobs.values())), []).spec).model_dump_json(by_alias=True))
    runs: dict[str, list[Steps]] = defaultdict(list)
    alone: list[float] = []
    names = [*engines, TRL]
    for number in range(repetitions):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):  # nobody always comes after the same one
            run = folder / f"{name}-{number}"
            runs[name].append(trl(shape, spec, model, run) if name == TRL else ours(shape, jobs[name], run))
            _say(shape, name, runs[name][-1])
        if "vllm" in engines:
            alone.append(vllm_alone(spec, model, folder / f"alone-{number}"))
            print(f"{shape.name}, vLLM alone: {alone[-1]:.3f} s", flush=True)
    return Measured(shape, parameters, {name: runs[name] for name in names}, alone)


def _say(shape: Shape, name: str, run: Steps) -> None:
    print(f"{shape.name}, {name}: median {run.median:.3f} s of {len(run.seconds)} steps", flush=True)


if __name__ == "__main__":
    main()
