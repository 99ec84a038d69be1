"""One job under faults, and what is wrong with it afterwards. Its volume is a folder of this machine, too."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, TypeVar

from e2e.chaos.steps import Recovery, Steps, recovery_in
from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane
from e2e.cluster_chaos.cluster_watch import ClusterWatch, Running
from e2e.cluster_chaos.faults import Fault
from e2e.cluster_chaos.leftovers import left_by
from e2e.cluster_chaos.looks import repeated
from e2e.cluster_chaos.verdicts import doubles, made_again, renamed, repeated_within, unseen, went_back
from e2e.cluster_chaos.volume_watch import Attempts, VolumeWatch
from e2e.scenarios.job import Job
from rljob_trainer.progress.history import Line, read_metrics
from rljob_trainer.progress.names import TIME_CHECKPOINT, TIME_SYNC, TIME_UPDATE, TIME_VALIDATION
from rljob_trainer.volume import Volume

T = TypeVar("T")

SUPERVISED, STEPS, PROMPTS = 10, 300, 8

TRAINED: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 2, "hiddenSize": 64, "heads": 2}},
    "data": {"promptsPerStep": PROMPTS},
    "sft": {"steps": SUPERVISED},
    "rollout": {"deterministic": True, "samplesPerPrompt": 8},
    "actor": {"miniBatchSize": 4},
    "training": {"steps": STEPS, "validateEvery": 0},
    "checkpoint": {"everySteps": 5, "volume": {"retain": False}},
    "recovery": {"hangAfter": "5s", "maxRestarts": 100, "backoff": {"initial": "100ms", "max": "1s"}},
    "ttlAfterFinished": "0s",
}
"""A job whose weights hang on nothing but its spec."""

BEGIN_SECONDS = 300.0
STRIKE_SECONDS = 60.0
"""So long a fault waits for what it strikes, which may just be replaced."""

RECOVERY_SECONDS = 300.0
"""Deadline for the next step after a fault."""

END_SECONDS = 1200.0

GONE_SECONDS = 180.0
"""After the job: its pods take a moment to end, then its claim goes, and a pod on some node removes the volume."""

AWAY_SECONDS = 60.0

PAUSE_SECONDS = (1.0, 8.0)
"""From a step after one fault to the next one."""

LOOK_SECONDS, POD_LOOK_SECONDS = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Struck:
    """at: Unix time. attempt: the newest then. step: the last one before.

    next_update, next_step: seconds to the end of the next optimizer step, a repeated one included, and of a new one;
        inf where none came in time, None where the job ended first.
    repeated: updates that were done again. journaled: groups from the journal.
    """

    fault: Fault
    at: float
    attempt: int
    step: int
    next_update: float | None
    next_step: float | None
    repeated: int
    journaled: int


@dataclass(slots=True)
class Trial:
    """lines: every RL step that any attempt finished. history: those that count. left: objects, after its deletion.

    applied: Unix time of `kubectl apply`; None where it was not recorded.
    removal: seconds from the deletion until nothing was left, or it was given up; None where it was not recorded.
    """

    name: str
    volume: Volume
    lines: list[Line] = field(default_factory=list)
    history: list[Line] = field(default_factory=list)
    attempts: Attempts = field(default_factory=Attempts)
    running: Running = field(default_factory=Running)
    struck: list[Struck] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    applied: float | None = None
    removal: float | None = None

    @property
    def start(self) -> float | None:
        """Seconds from `kubectl apply` to the first RL step."""
        return None if self.applied is None else self.begin - self.applied

    @property
    def begin(self) -> float:
        """Unix time of the first RL step's begin."""
        return float(self.history[0]["time"] - self.history[0]["time/step"])

    @property
    def seconds(self) -> float:
        """From the first driver's claim to the end, as the job's status tells it; inf where it has not ended."""
        ended = self.status.get("completionTime")
        return datetime.fromisoformat(ended).timestamp() - self.attempts.begun[1] if ended else inf


def trial(
    job: Job, plane: Plane, faults: Iterator[Fault], dice: random.Random, say: Callable[[str], None] = lambda _: None
) -> Trial:
    """Apply the job, strike while it trains, and wait for its end. Its objects stay; `remove` deletes them."""
    applied = time.time()
    patiently(lambda: job.apply(**TRAINED))
    volume = Volume(job.eventually(job.folder, "bound volume", BEGIN_SECONDS))
    watch, steps = VolumeWatch(volume), Steps(volume)
    found = Trial(job.namespace, volume, attempts=watch.attempts, applied=applied)
    with job.access.client() as client:
        pods = ClusterWatch(job, client)
        found.running = pods.running
        with repeated({watch.look: LOOK_SECONDS, pods.look: POD_LOOK_SECONDS}):
            _train(job, plane, found, steps, faults, dice, say)
    watch.end()
    found.status = patiently(lambda: job.status)
    found.lines = [line for line in steps.lines() if _is_rl(line)]
    found.history = [line for line in read_metrics(volume.root) if "time/step" in line and _is_rl(line)]
    return found


def _train(
    job: Job, plane: Plane, found: Trial, steps: Steps, faults: Iterator[Fault], dice: random.Random,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """To the job's end, or to a fault after which it does not go on."""
    job.eventually(lambda: [line for line in steps.lines() if _is_rl(line)], "first RL step", BEGIN_SECONDS)
    for fault in faults:
        time.sleep(dice.uniform(*PAUSE_SECONDS))
        struck = _strike(job, plane, found, steps, fault)
        if struck is not None:
            found.struck.append(struck)
            say(f"{job.namespace}, step {struck.step}: {fault.name} -> {_cost(struck)}")
            if struck.next_update == inf:
                return
        if _ended(job):
            break
    job.eventually(lambda: _ended(job), "end", END_SECONDS)


def _cost(struck: Struck) -> str:
    if struck.next_update is None:
        return "the job ended"
    return f"next update {struck.next_update:.1f} s, {struck.repeated} repeated, {struck.journaled} groups journaled"


def remove(job: Job, found: Trial) -> None:
    """Delete the job, and see what it leaves."""
    began = time.monotonic()
    patiently(lambda: job.kubectl("delete", "rljob", job.name, "--timeout=300s", "--ignore-not-found"))
    deadline = time.monotonic() + GONE_SECONDS
    while (left := patiently(lambda: left_by(job))) and time.monotonic() < deadline:
        time.sleep(1)
    found.left, found.removal = left, time.monotonic() - began


def problems(found: Trial) -> list[str]:
    """What is wrong with a job, but for its weights."""
    wrong = []
    if late := [each.fault.name for each in found.struck if each.next_update == inf]:
        wrong.append(f"it did not go on within {RECOVERY_SECONDS:.0f} s: {late[0]}")
    if found.status.get("phase") != "Succeeded":
        wrong.append(f"it is {found.status.get('phase')}: {found.status.get('conditions')}")
    if (steps := [line["step"] for line in found.history]) != list(range(SUPERVISED + 1, SUPERVISED + STEPS + 1)):
        wrong.append(f"its steps are {steps}")
    if found.status.get("restarts", 0) > len(found.struck):
        wrong.append(f"{found.status['restarts']} restarts for {len(found.struck)} faults")
    wrong += doubles(found.running)
    rescored = {each.attempt for each in found.struck if each.fault.scores_again}
    wrong += made_again(found.attempts.made, rescored) + renamed(found.attempts.made)
    wrong += unseen(found.attempts.made, steps, PROMPTS)
    wrong += went_back(found.attempts) + repeated_within(found.lines, found.attempts)
    return wrong + [f"{each} is left" for each in found.left]


def _strike(job: Job, plane: Plane, found: Trial, steps: Steps, fault: Fault) -> Struck | None:
    """None where there was nothing to strike."""
    deadline = time.monotonic() + STRIKE_SECONDS
    while True:
        if (at := patiently(lambda: fault.strike(job, plane))) is not None:
            break
        if _ended(job) or time.monotonic() > deadline:
            return None
        time.sleep(1)
    attempt = found.attempts.at(at)
    recovery = _recovery(job, steps, at, lost=attempt if fault.costs_attempt else None)
    last = max(line["step"] for line in steps.lines() if line["time"] <= at)
    if recovery is None:
        never = None if _ended(job) else inf
        return Struck(fault, at, attempt, last, never, never, 0, 0)
    seconds = recovery.update - at, recovery.step - at
    return Struck(fault, at, attempt, last, *seconds, recovery.repeated, recovery.journaled)


def _recovery(job: Job, steps: Steps, at: float, *, lost: int | None) -> Recovery | None:
    deadline = time.monotonic() + RECOVERY_SECONDS
    look_at_job = time.monotonic() + 5
    while (found := recovery_after(steps.lines(), at, lost=lost)) is None:
        if time.monotonic() > deadline:
            return None
        if time.monotonic() > look_at_job:
            if _ended(job):
                return None
            look_at_job = time.monotonic() + 5
        time.sleep(LOOK_SECONDS)
    return found


def recovery_after(lines: list[Line], at: float, *, lost: int | None) -> Recovery | None:
    """As recovery_in, of a fault at that Unix time."""
    known = sum(line["time"] <= at for line in lines)
    updating = known < len(lines) and _update_began(lines[known]) < at
    return recovery_in(lines, known, updating=updating, lost=lost)


def _update_began(line: Line) -> float:
    """Unix time."""
    since = (TIME_UPDATE, TIME_SYNC, TIME_VALIDATION, TIME_CHECKPOINT)
    return float(line["time"] - sum(line.get(name, 0.0) for name in since))


def _ended(job: Job) -> bool:
    return patiently(lambda: job.phase) in ("Succeeded", "Failed")


def patiently(call: Callable[[], T]) -> T:
    """Also where another job's fault takes the API server away for a moment."""
    deadline = inf
    while True:
        try:
            return call()
        except ClusterError:
            now = time.monotonic()
            deadline = min(deadline, now + AWAY_SECONDS)  # of the first failure: the call itself may take minutes
            if now > deadline:
                raise
            time.sleep(1)


def _is_rl(line: Line) -> bool:
    return str(line["stage"]) == "rl"
