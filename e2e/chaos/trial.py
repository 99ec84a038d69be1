"""One run under faults, and what each of them cost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean
from threading import Timer
from typing import Any

import psutil

from e2e.chaos.base import BASE, SHAPE, write_base
from e2e.chaos.faults import Fault, Phase, inject
from e2e.chaos.steps import Recovery, Steps, recovery_in
from e2e.chaos.traces import Traces
from rljob_trainer.progress.history import Line, read_metrics
from rljob_trainer.progress.state import last_attempt, read_object
from rljob_trainer.volume import Volume

RLJOB = (sys.executable, "-m", "rljob_trainer.cli")

PHASE_SECONDS = 30.0
"""How long to wait for the phase in which a fault is to strike; then it strikes all the same."""

MISSED_SECONDS = 30.0
"""Deadline for the end of a process that is frozen for good. `hangAfter` is 5s, a driver has 5 s more, a GCS 10 s; the
rest is for a machine that is busy, and for a driver that has to be replaced before it can miss anybody."""

RECOVERY_SECONDS = 240.0
"""Deadline for the next step after a fault."""

END_SECONDS = 1200.0
"""Deadline for the rest of a run after its last fault."""

UPDATED = ("update", "sync")
"""Phases in which the step's own update has begun: the next one is the next step's."""

LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was injected into a run that went on, or should have.

    in_phase: whether its phase came before it struck. step: the last one before it.
    next_update: seconds from the signal to the end of the next optimizer step, a repeated one included; of the next
        attempt, where the fault costs Ray.
    next_step: to the end of the next new step. Both are inf where it does not come within RECOVERY_SECONDS.
    repeated: updates that were done again. journaled: groups from the journal.
    missed: whether a process that was frozen for good was ended within MISSED_SECONDS; if not, the times are inf too.
    alone: whether no process was still frozen by an earlier fault. With a frozen raylet, nothing can be replaced.
    """

    fault: Fault
    in_phase: bool
    step: int
    next_update: float
    next_step: float
    repeated: int
    journaled: int
    missed: bool = True
    alone: bool = True


@dataclass(slots=True)
class Trial:
    """seconds: from the first driver's claim to the end, inf of a run that did not go on after a fault and was killed.
    code: of `rljob run`. left: processes, files and shared memory left behind.
    injected: how many faults. One that the run's end came before has not struck, but may have cost a driver.
    thaws: when processes that are stopped go on.
    """

    directory: Path
    code: int = -1
    seconds: float = inf
    injected: int = 0
    struck: list[Struck] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    thaws: list[Timer] = field(default_factory=list)

    @property
    def output(self) -> str:
        """What `rljob run` printed."""
        return output_of(self.directory).read_text()

    @property
    def attempts(self) -> int:
        """How many drivers it took."""
        return last_attempt(Volume(self.directory))

    @property
    def history(self) -> list[Line]:
        return [line for line in read_metrics(self.directory) if "time/step" in line]

    @property
    def rl_steps(self) -> list[Line]:
        return [line for line in self.history if line["stage"] == "rl"]

    def rewards(self, steps: slice) -> float:
        """Their mean over these RL steps."""
        return fmean([line["reward/mean"] for line in self.history if "reward/mean" in line][steps])

    @property
    def stalls(self) -> list[float]:
        """Seconds for which each checkpoint kept the training waiting."""
        return [line["time/checkpoint"] for line in self.history if "time/checkpoint" in line]


def undisturbed(job: Path, directory: Path, *, ranks: int | None = None) -> Trial:
    return disturbed(job, directory, iter(()), random.Random(0), ranks=ranks)


def disturbed(
    job: Path,
    directory: Path,
    faults: Iterator[Fault],
    dice: random.Random,
    say: Callable[[str], None] = lambda _: None,
    *,
    ranks: int | None = None,
) -> Trial:
    """Run the job, strike while it trains, and wait for its end."""
    trial = Trial(directory)
    with Traces() as traces, _started(job, directory, ranks, traces) as process:
        watch = _Watch(Volume(directory), process, traces)
        watch.until(watch.attempt, RECOVERY_SECONDS)
        begun = time.monotonic()
        if watch.until(watch.has_begun, RECOVERY_SECONDS):
            for fault in faults:
                struck = _strike(trial, fault, watch, psutil.Process(process.pid), dice)
                if struck is None:
                    break
                trial.struck.append(struck)
                cost = f"next update {struck.next_update:.1f} s, {struck.repeated} repeated"
                say(f"{len(trial.struck)}: {fault} -> {cost}, {struck.journaled} groups journaled")
                if struck.next_update == inf:
                    return trial
            trial.code = process.wait(END_SECONDS)
            trial.seconds = time.monotonic() - begun
            trial.left = traces.left()
    return trial


def output_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.out")


@contextmanager
def _started(job: Path, directory: Path, ranks: int | None, traces: Traces) -> "Iterator[subprocess.Popen[bytes]]":
    directory.parent.mkdir(parents=True, exist_ok=True)
    with output_of(directory).open("w") as output:
        process = subprocess.Popen(
            [*RLJOB, "run", str(job), "--dir", str(directory), *(["--ranks", str(ranks)] if ranks else [])],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **traces.environment}, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


class _Watch:
    """A run's files, from outside."""

    def __init__(self, volume: Volume, process: "subprocess.Popen[bytes]", traces: Traces) -> None:
        self._volume, self._process, self._traces = volume, process, traces
        self.lines = Steps(volume).lines

    def has_begun(self) -> bool:
        """Whether an RL step is done."""
        return any("reward/mean" in line for line in self.lines())

    def attempt(self) -> int:
        return last_attempt(self._volume)

    def phase(self) -> str:
        """What the trainer does."""
        return str((read_object(self._volume.progress) or {}).get("phase", ""))

    def is_in(self, phase: Phase) -> bool:
        """Checkpoints are written, and groups scored, beside what the trainer does."""
        if phase == "saving":
            return any(self._volume.checkpoints.glob(".step-*.part"))
        return self._traces.scores() if phase == "scoring" else self.phase() == phase

    def lives(self) -> bool:
        return self._process.poll() is None

    def until(self, holds: Callable[[], Any], seconds: float) -> bool:
        """Whether it came to hold before the run ended."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline or not self.lives():
                return bool(holds())
            time.sleep(LOOK_SECONDS)
        return True


def _strike(trial: Trial, fault: Fault, watch: _Watch, run: psutil.Process, dice: random.Random) -> Struck | None:
    """None where the run ended before. Of a run that lives and does not go on in time, the times are inf."""
    time.sleep(dice.uniform(0.0, 1.0))
    in_phase = fault.phase == "any" or watch.until(lambda: watch.is_in(fault.phase), PHASE_SECONDS)
    lost = watch.attempt() if fault.costs_ray else None
    target, at = inject(fault, run, dice) if watch.lives() else None, time.time()
    if target is None:
        return None
    trial.injected += 1
    alone = not any(thaw.is_alive() for thaw in trial.thaws)
    if fault.continued_after is not None:
        trial.thaws.append(Timer(fault.continued_after, _continue, [target]))
        trial.thaws[-1].start()
    elif not watch.until(lambda: _missed(target, fault), MISSED_SECONDS) and watch.lives():
        return Struck(fault, in_phase, watch.lines()[-1]["step"], inf, inf, 0, 0, missed=False)
    before, updating = watch.lines(), watch.phase() in UPDATED
    last = max(line["step"] for line in before)

    def recovery() -> Recovery | None:
        return recovery_in(watch.lines(), len(before), updating=updating, lost=lost)

    if not watch.until(recovery, RECOVERY_SECONDS) or (found := recovery()) is None:
        return Struck(fault, in_phase, last, inf, inf, 0, 0) if watch.lives() else None
    seconds = found.update - at, found.step - at
    return Struck(fault, in_phase, last, *seconds, found.repeated, found.journaled, alone=alone)


def _missed(target: psutil.Process, fault: Fault) -> bool:
    """Whether a frozen process was ended: steps may go on until then, and those after it count.

    Ray's head is not missed before the run's end, because nothing needs it before.
    """
    return fault.signal != "SIGSTOP" or fault.kind == "ray head" or _ended(target)


def _ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _continue(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def write_job(path: Path, document: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if document["spec"]["model"].get("path") == BASE and not (path.parent / BASE).exists():
        write_base(path.parent / BASE, document["spec"], SHAPE)
    path.write_text(json.dumps(document))  # JSON is YAML
    return path
