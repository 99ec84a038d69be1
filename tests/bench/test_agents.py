"""The page of the benchmark of agents, from results that were made up."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bench.agents import played
from bench.agents.measure import Idle, Played, Single
from bench.agents.page import Results, write_page
from rljob_trainer.environments import Policy, Task

CALM = Played(100.0, 0.99, 60_000, 160.0, 0.2, 0.1, [0.5, 1.0, 0.9], [64.0, 64.0, 3.0])
PLAIN = Single(1000.0, 500.0, 9000.0, 0.1)
RESULTS = Results(
    "make", "c1", "2026-11-29", "2 cores", [CALM], [replace(CALM, busy=0.96)],
    {"threads": Idle(200, 1e-3, 2e-2, 0.1, 0)}, [PLAIN], [replace(PLAIN, step=495.0)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("busy", "before", "said", "quiet"),
    [(0.96, 0.1, "96.97%: reached", "No other program"), (0.9, 1.7, "90.91%: not reached", "up to 1.7 cores")],
)
def test_the_page_judges_the_goal_and_says_whether_the_machine_was_quiet(busy, before, said, quiet, tmp_path):
    write_page(replace(RESULTS, slept=[replace(CALM, busy=busy, busy_before=before)]), tmp_path)
    page = (tmp_path / "agents.md").read_text()
    assert said in page
    assert quiet in page
    assert "0.990 of the plain job's speed" in page
    assert "| threads | 200 | 1.0 ms | 20.0 ms | 10.0% of a core |" in page
    assert (tmp_path / "agents.png").exists()


def test_idle_episodes_are_watched_once_all_are_idle(monkeypatch):
    async def ask(method: str, argument: Any) -> Any:
        return [], "", "stop"

    task, policy = Task("0/0/0", [], [1], None, {}, ""), Policy(0, ask)

    async def both() -> Any:
        monkeypatch.setattr(played, "_WATCH", played._Watch())
        return await asyncio.gather(*(played.idle(task, policy, 0.3, 2, threads) for threads in (True, False)))

    first, second = asyncio.run(both())
    assert first.metrics == second.metrics
    assert first.metrics["idle"] == 2
    assert 0 <= first.metrics["lag_median"] <= first.metrics["lag_largest"] < 0.3
