"""One fault: which process of a run gets which signal, and while what is going on."""

import random
import signal
from dataclasses import dataclass
from typing import Literal

import psutil

Kind = Literal[
    "driver", "rank", "engine", "scorer", "reward process", "ray head", "gcs", "raylet", "environment process"
]  # fmt: skip
Phase = Literal["rollout", "scoring", "advantage", "update", "sync", "saving", "any"]

_TITLES: dict[Kind, str] = {
    "driver": "rljob_trainer.cli driver",
    "rank": "ray::RankHost",
    "engine": "ray::EngineHost",
    "scorer": "ray::RolloutHost",
    "reward process": "rljob_trainer.rewards.child",
    "ray head": "rljob_trainer.local.ray_head",
    "gcs": "gcs_server",
    "raylet": "raylet/raylet",
    "environment process": "rljob_trainer.environments.child",
}
"""What the command lines of a run's processes contain."""

KINDS: tuple[Kind, ...] = tuple(_TITLES)
PHASES: tuple[Phase, ...] = ("rollout", "scoring", "advantage", "update", "sync", "saving", "any")

_WEIGHTS = (3, 3, 3, 2, 3, 0.5, 1, 1, 6)
"""How often each kind is hit: ray head, gcs and raylet cost a new Ray each time."""

STOPPED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Fault:
    """phase: in which to strike. continued_after: seconds after which a stopped process goes on; None for never."""

    kind: Kind
    signal: Literal["SIGKILL", "SIGSTOP"]
    phase: Phase
    continued_after: float | None = None

    @property
    def costs_ray(self) -> bool:
        """Whether the run needs another Ray, and so another attempt. One that is continued in time may not cost it.

        Ray's head is not missed before the run's end, because nothing needs it before; its end is.
        """
        if self.kind == "ray head":
            return self.signal == "SIGKILL"
        return self.kind in ("gcs", "raylet") and self.continued_after is None

    def __str__(self) -> str:
        again = f", SIGCONT after {self.continued_after:.1f} s" if self.continued_after is not None else ""
        return f"{self.signal} to {self.kind} in {self.phase}{again}"


def draw(dice: random.Random, *, environment: bool = False) -> Fault:
    """environment: whether the job has one."""
    kinds = KINDS if environment else KINDS[:-1]
    kind = dice.choices(kinds, _WEIGHTS[: len(kinds)])[0]
    phase = dice.choice(PHASES)
    if dice.random() >= STOPPED_SHARE:
        return Fault(kind, "SIGKILL", phase)
    return Fault(kind, "SIGSTOP", phase, dice.uniform(0.2, 12.0) if dice.random() < 0.5 else None)


def find(kind: Kind, run: psutil.Process) -> list[psutil.Process]:
    """The processes of that kind below a run's supervisor; of engines the one that works, not its spare."""
    found = []
    for process in run.children(recursive=True):
        try:
            if _TITLES[kind] in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:  # it ended while we looked
            continue
    return [max(found, key=busy_seconds)] if kind == "engine" and found else found


def busy_seconds(process: psutil.Process) -> float:
    """Of a CPU; 0 for a process that has ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def inject(fault: Fault, run: psutil.Process, dice: random.Random) -> psutil.Process | None:
    """Send the signal to one process of the kind. Returns it, None where there is none."""
    targets = find(fault.kind, run)
    if not targets:
        return None
    target = dice.choice(targets)
    try:
        target.send_signal(getattr(signal, fault.signal))
    except psutil.NoSuchProcess:
        return None
    return target
