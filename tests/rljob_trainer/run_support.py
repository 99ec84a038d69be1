"""Real runs of `rljob run` for tests: started as a person starts them, and looked at from outside."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from e2e.chaos.faults import busy_seconds
from e2e.chaos.traces import shared_memory, unused_memory
from rljob_trainer.progress.history import Line, read_metrics
from rljob_trainer.volume import Volume, read_json

SECONDS = 480.0
"""Deadline of everything here: a run takes 15 to 30 s where the machine is free."""

GONE_SECONDS = 30.0

RLJOB = (sys.executable, "-P", "-m", "rljob_trainer.cli")

TINY: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 1, "hiddenSize": 32, "heads": 1}},
    "data": {
        "train": ["synthetic://reverse-text?rows=64&maxLength=6"],
        "maxPromptTokens": 32,
        "maxResponseTokens": 8,
        "promptsPerStep": 4,
    },
    "algorithm": {"preset": "grpo"},
    "rollout": {"engine": "hf", "samplesPerPrompt": 2},
    "actor": {"learningRate": 1e-3, "recompute": "none"},
    "rewards": {"functions": [{"name": "similarity", "builtin": "similarity"}], "processes": 1},
    "training": {"steps": 2},
    "checkpoint": {"everySteps": 0},
    "cluster": {"gpusPerNode": 0},
}
"""A job whose steps take a tenth of a second."""


def write_job(folder: Path, name: str = "tiny", **blocks: Any) -> Path:
    """The TINY job, with blocks of its spec replaced, removed by None or, where both are mappings, completed."""
    spec = {**TINY}
    for block, value in blocks.items():
        before = spec.get(block)
        spec[block] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    spec = {block: value for block, value in spec.items() if value is not None}
    document = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@dataclass
class Ended:
    """code: of the process. out: what it printed, both streams."""

    code: int
    out: str


@dataclass
class Machine:
    """A place to run commands whose processes and temporary files can be told from everybody else's."""

    temporary: Path
    environment: dict[str, str]
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    folder: Path | None = None
    """Where commands are started; None: where the tests are."""

    def start(self, command: Sequence[object], **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(each) for each in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment, **environment, "RLJOB_TEST": self.marker},
            start_new_session=True,
        )

    def start_run(self, *arguments: object) -> "subprocess.Popen[str]":
        return self.start([*RLJOB, "run", *arguments])

    def rljob(self, *arguments: object, **environment: str) -> Ended:
        return finish(self.start([*RLJOB, *arguments], **environment))

    def processes(self) -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if environment_of(each).get("RLJOB_TEST") == self.marker]

    def left_behind(self) -> list[str]:
        """Processes and temporary files that do not go away by themselves."""
        wait_until(lambda: not self.processes() and not self._files(), GONE_SECONDS, fail=False)
        return [" ".join(each.cmdline()) for each in self.processes()] + self._files()

    def _files(self) -> list[str]:
        return [path.name for path in self.temporary.glob("rljob*")]  # torch keeps a cache of its own here


@contextmanager
def machine() -> Iterator[Machine]:
    """Asserts at the end that nothing is left: no process, no temporary file, no shared memory."""
    temporary = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))  # short: Ray's sockets are in it
    shared = shared_memory()
    place = Machine(temporary, {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"})
    try:
        yield place
        left = place.left_behind()
        wait_until(lambda: not unused_memory() - shared, GONE_SECONDS, fail=False)  # somebody may be about to map it
        left += sorted(unused_memory() - shared)
        assert not left, left
    finally:
        for process in place.processes():
            process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


def finish(process: "subprocess.Popen[str]", seconds: float = SECONDS) -> Ended:
    out, _ = process.communicate(timeout=seconds)
    return Ended(process.returncode, out)


def wait_until(holds: Callable[[], object], seconds: float = SECONDS, *, fail: bool = True) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            if fail:
                raise TimeoutError(f"waited {seconds:g} s for {holds}")
            return
        time.sleep(0.05)


def wait_for_step(run: Path, step: int, process: "subprocess.Popen[str]") -> None:
    """Until a run has written that step. Fails where it ends before."""

    def reached() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode} before step {step}:\n{finish(process).out}")
        return any(line["step"] >= step for line in read_metrics(run))

    wait_until(reached)


def steps(run: Path, stage: str | None = None) -> list[int]:
    """Steps of a run's metrics, in their order; the validation before the first RL step has no line of its own."""
    return [line["step"] for line in trained(run) if stage in (None, line["stage"])]


def trained(run: Path) -> list[Line]:
    return [line for line in read_metrics(run) if "time/step" in line]


def exit_record(run: Path, attempt: int = 1) -> dict[str, Any]:
    found = read_json(Volume(run).exit_record(attempt))
    assert isinstance(found, dict), f"attempt {attempt} left no record"
    return found


def worker(place: Machine, pattern: str) -> psutil.Process:
    """The process of a run whose title matches, such as ray::RankHost; of engines the one that works, no spare."""
    found = [each for each in place.processes() if re.search(pattern, " ".join(each.cmdline()))]
    assert len(found) == 1 or (found and "EngineHost" in pattern), [each.cmdline() for each in place.processes()]
    return max(found, key=busy_seconds)


def interrupt(process: "subprocess.Popen[str]") -> None:
    """Ctrl-C: a terminal sends it to the foreground group, which is this process alone."""
    process.send_signal(signal.SIGINT)


def has_ended(process: psutil.Process) -> bool:
    """Reaped or not: an orphan is reaped by the machine's first process, in its own time."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
