"""Many runs, as many at a time as there are slots.

main thread                         a thread for each slot
submits every run ────────────────> takes a slot, trains, gives the slot back
appends results, says failures <─── result or error
counts signals (stop.py) ─────────> ends its run, begins no other
"""

import argparse
import math
import os
import queue
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from bench.learning.answers import keep_answers
from bench.learning.arms import Arm
from bench.learning.results import Result, append
from bench.learning.stop import Stop
from bench.learning.training import RunFailed, Slot, train
from rljob_trainer.local.machine import visible_gpus
from rljob_trainer.progress.plot import draw, load_runs, save

Run = tuple[Arm, int]
"""And its seed."""


class Campaign:
    """commits: of each task's results."""

    def __init__(self, options: argparse.Namespace, commits: Mapping[str, str], stop: Stop) -> None:
        self._options, self._commits, self._stop = options, commits, stop
        self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in slots(options.parallel, stop):
            self._slots.put(slot)
        self._folder = Path(tempfile.mkdtemp(prefix="rljob-learning-"))
        self._start = time.monotonic()
        self._done = 0
        self._failures: list[str] = []

    def run(self, work: Sequence[Run]) -> list[str]:
        """Returns what failed."""
        pool = ThreadPoolExecutor(self._options.parallel)
        ends = {pool.submit(self._train, *run): run for run in work}
        try:
            for end in as_completed(ends):
                self._take(end, *ends[end], len(work))
        finally:  # where results cannot be kept, nothing needs to go on
            self._stop.asked += 1
            pool.shutdown(cancel_futures=True)
        if not self._failures:
            shutil.rmtree(self._folder)
        return self._failures

    def _train(self, arm: Arm, seed: int) -> Result | None:
        """In a thread of the pool. None if no run shall begin any more, or it was asked to end."""
        if self._over():
            return None
        slot = self._slots.get()
        try:
            return train(arm, seed, slot, self._place(arm, seed), self._options.overrides, self._commits[arm.task.name])
        except RunFailed:
            if self._stop.asked:
                return None
            raise
        finally:
            self._slots.put(slot)

    def _over(self) -> bool:
        late = time.monotonic() - self._start > self._options.limit_minutes * 60
        return late or self._stop.asked > 0

    def _take(self, end: Future[Result | None], arm: Arm, seed: int, total: int) -> None:
        name, error = f"{arm.task.name}, {arm.name}, seed {seed}", end.exception()
        if error is not None:
            if not isinstance(error, RunFailed):  # a bug; it costs this run alone
                traceback.print_exception(error)
            self._failures.append(f"{name}: {type(error).__name__}: {error}")
            self._say(self._failures[-1], total)
        elif (result := end.result()) is not None:
            self._keep(arm, result)
            self._say(f"{name}: {result.start:.3f} -> {result.end:.3f} in {result.seconds:.0f} s", total)

    def _keep(self, arm: Arm, result: Result) -> None:
        run = self._place(arm, result.seed)
        append(self._options.output / "learning.jsonl", result)
        if arm.role == "main" and result.seed == 0:
            save(draw(load_runs([run])), self._options.output / f"{arm.task.name}.png")
            keep_answers(arm.task.name, result.commit, run, self._options.output)
        shutil.rmtree(run)

    def _place(self, arm: Arm, seed: int) -> Path:
        return self._folder / folder_name(arm, seed)

    def _say(self, text: str, total: int) -> None:
        self._done += 1
        left = (time.monotonic() - self._start) / self._done * (total - self._done)
        print(f"[{self._done}/{total}, {left / 60:.0f} min left] {text}", flush=True)


def folder_name(arm: Arm, seed: int) -> str:
    """Without a dot: logs of runs side by side are named by it with another suffix."""
    return re.sub(r"[^a-z0-9]+", "-", f"{arm.task.name} {arm.name} {seed}".lower())


def slots(parallel: int, stop: Stop) -> list[Slot]:
    """`parallel` places with equal shares of all cores, on the GPUs in turn where there are any.

    Neighbours share a core where the number of cores is no multiple of the places.
    """
    gpus, cores = visible_gpus(), sorted(os.sched_getaffinity(0))
    share = math.ceil(len(cores) / parallel)
    return [
        Slot(
            gpu=gpus[number % len(gpus)] if gpus else None,
            cores=tuple(cores[number * len(cores) // parallel :][:share]) if parallel > 1 else (),
            stop=stop,
        )
        for number in range(parallel)
    ]
