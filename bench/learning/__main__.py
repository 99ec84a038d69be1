"""Train what has no result yet, and write the page.

    python -m bench.learning [--tasks NAME ...] [--arms NAME ...] [--seeds N ...] [--parallel N] [--limit-minutes M]

Each finished run is one line appended to learning.jsonl, so it can be stopped at any moment and called again. A result
counts for the commit that last changed what decides it (trainer, API, examples, this benchmark).
"""

import argparse
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.learning.arms import ROOT, TASKS, Arm, arms
from bench.learning.page import write_page
from bench.learning.results import Result, append, code_commit, missing, read
from bench.learning.training import RunFailed, Slot, reward_functions, train
from rljob_trainer.local.machine import visible_gpus
from rljob_trainer.plot import draw, load_runs, save


def main() -> None:
    options = _arguments()
    commits = {task.name: options.commit or code_commit(task) for task in TASKS}
    chosen = [
        arm
        for arm in arms({task.name: reward_functions(task.example) for task in TASKS})
        if (options.tasks is None or arm.task.name in options.tasks)
        and (options.arms is None or arm.name in options.arms)
    ]
    file = options.output / "learning.jsonl"
    options.output.mkdir(parents=True, exist_ok=True)
    work = [
        (arm, seed)
        for arm, seed in missing(chosen, read(file), commits)
        if options.seeds is None or seed in options.seeds
    ]
    print(f"{len(work)} runs to do, {options.parallel} at a time", flush=True)
    failures = Campaign(options, commits, work).run()
    written = write_page(read(file), options.output)
    print(f"wrote {options.output / 'learning.md'}" if written else "no run is finished yet, so there is no page")
    if failures:
        sys.exit("\n".join(failures))


class Campaign:
    """Runs `work`, as many at a time as there are slots."""

    def __init__(
        self, options: argparse.Namespace, commits: Mapping[str, str], work: Sequence[tuple[Arm, int]]
    ) -> None:
        self._options, self._commits, self._total = options, commits, len(work)
        self._queue: queue.SimpleQueue[tuple[Arm, int]] = queue.SimpleQueue()
        for pair in work:
            self._queue.put(pair)
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._done = 0
        self._failures: list[str] = []

    def run(self) -> list[str]:
        """Returns what failed."""
        folder = Path(tempfile.mkdtemp(prefix="rljob-learning-"))
        threads = [threading.Thread(target=self._work, args=(slot, folder)) for slot in slots(self._options.parallel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self._failures:
            shutil.rmtree(folder)
        return self._failures

    def _work(self, slot: Slot, folder: Path) -> None:
        while not self._late():
            try:
                arm, seed = self._queue.get_nowait()
            except queue.Empty:
                return
            run = folder / f"{arm.task.name}-{arm.name.replace(' ', '-')}-{seed}"
            try:
                result = train(arm, seed, slot, run, self._options.overrides, self._commits[arm.task.name])
            except RunFailed as error:
                self._say(f"{arm.task.name}, {arm.name}, seed {seed}: {error}", failed=True)
                continue
            self._finish(arm, result, run)

    def _late(self) -> bool:
        limit: float = self._options.limit_minutes
        return time.monotonic() - self._start > limit * 60

    def _finish(self, arm: Arm, result: Result, run: Path) -> None:
        with self._lock:
            append(self._options.output / "learning.jsonl", result)
            if arm.role == "main" and result.seed == 0:
                save(draw(load_runs([run])), self._options.output / f"{arm.task.name}.png")
        self._say(
            f"{result.task}, {result.arm}, seed {result.seed}: {result.start:.3f} -> {result.end:.3f}"
            f" in {result.seconds:.0f} s"
        )
        shutil.rmtree(run)

    def _say(self, text: str, *, failed: bool = False) -> None:
        with self._lock:
            self._done += 1
            left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
            print(f"[{self._done}/{self._total}, {left / 60:.0f} min left] {text}", flush=True)
            if failed:
                self._failures.append(text)


def slots(parallel: int) -> list[Slot]:
    """`parallel` places with equal shares of the cores, on the GPUs in turn where there are any."""
    gpus, cores = visible_gpus(), sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // parallel)
    return [
        Slot(
            gpu=gpus[number % len(gpus)] if gpus else None,
            cores=tuple(cores[number * share % len(cores) :][:share]) if parallel > 1 else (),
        )
        for number in range(parallel)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS], help="only these")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="only these: grpo, vllm, TRL, 'loss clip', ...")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="only these")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runs at a time")
    parser.add_argument(
        "--limit-minutes", type=float, default=1e6, metavar="M", help="begin no run after that; call it again to go on"
    )
    parser.add_argument("--commit", help="what the results are for; the default asks git")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE",
        help="try something out, with an --output of its own",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks", metavar="FOLDER")
    options = parser.parse_args()
    if options.overrides and options.output == ROOT / "docs" / "benchmarks":
        parser.error("--set changes what is measured: give an --output of its own")
    return options


if __name__ == "__main__":
    main()
