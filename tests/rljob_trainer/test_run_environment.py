"""Runs of a job with an environment: it trains, and it ends bit for bit as an undisturbed one."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_trainer.progress.history import Line
from tests.rljob_trainer.run_support import (
    Ended,
    Machine,
    finish,
    machine,
    trained,
    wait_for_step,
    wait_until,
    worker,
    write_job,
)

SOURCE = """
import time

class Environment:
    '''Two turns: the reward of the first is its length, and of the second the share of a's in it.'''
    def reset(self, task):
        self.turns = 0

    def step(self, answer):
        time.sleep(0.02)
        self.turns += 1
        reward = len(answer) / 10 if self.turns == 1 else answer.count('a') / max(1, len(answer))
        return "abc"[len(answer) % 3], reward, self.turns == 2
"""
CHILD = "environments.child"
STEPS = 6


GAME: dict[str, Any] = {
    "environment": {"source": SOURCE, "maxTurns": 2, "maxEpisodeTokens": 60, "processes": 1},
    "rewards": {"functions": []},
    "rollout": {"deterministic": True, "samplesPerPrompt": 4},
    "data": {"validation": ["synthetic://reverse-text?rows=4&maxLength=6"]},
    "training": {"steps": STEPS, "validateEvery": STEPS},
}


def result(lines: list[Line]) -> list[dict[str, float]]:
    """What the steps computed; not what took time or was repaired."""
    return [
        {
            name: value
            for name, value in line.items()
            if name.split("/")[0] in ("reward", "actor", "episode", "response")
        }
        for line in lines
    ]


def disturb(place: Machine, run: Path, process: Any) -> None:
    """Kill an environment process, freeze another, and kill their host."""
    wait_for_step(run, 1, process)
    send(place, signal.SIGKILL)
    wait_for_step(run, 2, process)
    send(place, signal.SIGSTOP)
    wait_for_step(run, 3, process)
    worker(place, "ray::RolloutHost").kill()


def send(place: Machine, number: int) -> None:
    """To a process that plays: one ends while it is looked at, another one starts."""

    def sent() -> bool:
        for each in worker(place, "ray::RolloutHost").children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any(CHILD in part for part in each.cmdline()):
                    each.send_signal(number)
                    return True
        return False

    wait_until(sent)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_disturbed_run_ends_as_a_calm_one(tmp_path: Path):
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    path = write_job(tmp_path, "game", **GAME)
    ended: list[Ended] = []
    with machine() as place:
        ended.append(place.rljob("run", path, "--dir", calm))
        process = place.start_run(path, "--dir", disturbed)
        disturb(place, disturbed, process)
        ended.append(finish(process))
        shown = place.rljob("samples", calm)
    assert [each.code for each in ended] == [0, 0], ended
    lines = trained(calm)
    assert [line["episode/turns"] for line in lines] == [2.0] * STEPS
    assert all(line["rollout/log_prob_diff_mean"] < 1e-3 and line["actor/grad_norm"] > 0 for line in lines)
    assert result(trained(disturbed)) == result(lines)
    assert "policy" in shown.out and "tokens in the loss, reward" in shown.out  # noqa: PT018
