"""The environments of the benchmark: they run in the job's environment processes."""

import asyncio
import json
import os
import time
from pathlib import Path

from rljob_trainer.environments import Episode, Policy, Task

LOOK_SECONDS = 0.05


class Sleeps:
    """Sleeps in each step, and notes when the policy began and ended each turn: [start, end], unix seconds.

    note: a file that all episodes append to.
    """

    def __init__(self, seconds: float, turns: int, note: str) -> None:
        self.seconds, self.left, self.note = seconds, turns, note

    def reset(self, task: Task) -> None:  # noqa: ARG002
        self.asked = time.time()

    def step(self, answer: str) -> tuple[str, float, bool]:
        with Path(self.note).open("a") as file:
            file.write(json.dumps([self.asked, time.time()]) + "\n")
        self.left -= 1
        time.sleep(self.seconds)
        self.asked = time.time()
        return "next", answer.count("e") / max(1, len(answer)), self.left == 0


class _Watch:
    """What one environment process does while all its episodes are idle."""

    def __init__(self) -> None:
        self.idle = 0
        self.all_idle = asyncio.Event()
        self.looking: asyncio.Task[dict[str, float]] | None = None

    async def found(self) -> dict[str, float]:
        assert self.looking is not None
        return await self.looking

    async def look(self, seconds: float) -> dict[str, float]:
        """The event loop's lag, and CPU seconds of this process and of its parent, the rollout host."""
        before, start, lags = (_cpu("self"), _cpu(os.getppid())), time.monotonic(), []
        while time.monotonic() - start < seconds:
            asked = time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)
            lags.append(time.monotonic() - asked - LOOK_SECONDS)
        cpu = [(now - then) / seconds for now, then in zip((_cpu("self"), _cpu(os.getppid())), before, strict=True)]
        lags.sort()
        return {
            "idle": self.idle,
            "lag_median": lags[len(lags) // 2],
            "lag_largest": lags[-1],
            "cpu": cpu[0],
            "host_cpu": cpu[1],
        }


_WATCH = _Watch()


async def idle(task: Task, policy: Policy, seconds: float, episodes: int, threads: bool) -> Episode:
    """Takes a turn, waits until all episodes did, and then sleeps for that long; half of it they are watched."""
    await policy.generate(task.token_ids)
    _WATCH.idle += 1
    if _WATCH.idle == episodes:
        _WATCH.looking = asyncio.create_task(_WATCH.look(seconds / 2))
        _WATCH.all_idle.set()
    await _WATCH.all_idle.wait()
    await (asyncio.to_thread(time.sleep, seconds) if threads else asyncio.sleep(seconds))
    return Episode(0.0, metrics=await _WATCH.found())


async def one_turn(task: Task, policy: Policy) -> None:
    await policy.generate(task.token_ids)


def _cpu(process: int | str) -> float:
    """Seconds of a process's CPU time, by /proc."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
