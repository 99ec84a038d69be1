"""Time steps of ours and of TRL in turns; writes cpu.jsonl, cpu.md and cpu.png.

python -m bench.step [--shapes tiny 10M] [--engines hf vllm] [--repetitions N] [--output docs/benchmarks]
python -m bench.step --redraw [--output docs/benchmarks]
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import yaml

from bench.step.page import write_page
from bench.step.results import ALONE, OURS, TRL, Row, append, read, read_but, rows_of
from bench.step.runs import check_length, ours, trl, vllm_alone
from bench.step.shapes import SHAPES, Shape, job, write_model
from rljob_api import resolve
from rljob_api.validation import load_rljob

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "docs" / "benchmarks"
ROWS = "cpu.jsonl"


def main() -> None:
    options = arguments(sys.argv[1:])
    file = options.output / ROWS
    if not options.redraw:
        measure_all(options, file)
    write_page(read(file), options.output)
    print(f"wrote {options.output / 'cpu.md'}")


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", choices=names, default=names, help="only these; others keep their rows")
    parser.add_argument("--engines", nargs="+", choices=OURS, default=OURS, help="only these")
    parser.add_argument(
        "--repetitions", type=int, metavar="N", help="runs of each, in turns; by default as many as the shape asks for"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER")
    parser.add_argument("--redraw", action="store_true", help="run nothing: write the page from cpu.jsonl")
    options = parser.parse_args(given)
    if options.repetitions is not None and options.repetitions < 1:
        parser.error(f"--repetitions {options.repetitions}: give at least 1")
    if options.redraw and not (options.output / ROWS).exists():
        parser.error(f"--redraw: there is no {options.output / ROWS}")
    if set(options.engines) != set(OURS) and not options.redraw and options.output.resolve() == OUTPUT:
        parser.error("one engine would replace all of the page: give an --output of its own")
    return options


def measure_all(options: argparse.Namespace, file: Path) -> None:
    """Replaces the rows of these shapes in `file`, once all are measured. Exits at once where it cannot keep others."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        sys.exit(f"--output {file.parent} is a file, or in one: give a folder")
    kept = read_but(file, options.shapes)
    folder = Path(tempfile.mkdtemp(prefix="rljob-bench-"))
    print(f"in {folder}", flush=True)
    for shape in SHAPES:
        if shape.name in options.shapes:
            engines = [engine for engine in OURS if engine in options.engines]
            for row in measure(shape, engines, options.repetitions or shape.repetitions, folder / shape.name):
                append(folder / ROWS, row)
                print(
                    f"{row.shape}, {row.name}: median {row.steps.median:.3f} s of {len(row.steps.seconds)}", flush=True
                )
    for row in kept:
        append(folder / ROWS, row)
    shutil.copyfile(folder / ROWS, file)
    shutil.rmtree(folder)


def measure(shape: Shape, engines: Sequence[str], repetitions: int, folder: Path) -> Iterator[Row]:
    """Each run's row as soon as it has ended."""
    model = folder / "model"
    row = rows_of(shape, write_model(shape, model))
    jobs = {engine: folder / f"{engine}.yaml" for engine in engines}
    for engine, file in jobs.items():
        file.write_text(yaml.safe_dump(job(shape, model, engine)))
    spec = folder / "spec.json"
    spec.write_text(resolve(load_rljob(next(iter(jobs.values())), []).spec).model_dump_json(by_alias=True))
    run = {engine: partial(ours, shape, file) for engine, file in jobs.items()}
    run |= {TRL: partial(trl, shape, spec, model), ALONE: partial(vllm_alone, spec, model)}
    names = [*engines, TRL]
    for number in range(repetitions):
        first = number % len(names)
        turns = (*names[first:], *names[:first])  # none always comes after the same one
        for name in (*turns, *([ALONE] if "vllm" in engines else [])):
            steps = run[name](folder / f"{name.replace(' ', '-')}-{number}")
            check_length(shape, name, steps)
            yield row(name=name, repetition=number, steps=steps)


if __name__ == "__main__":
    main()
