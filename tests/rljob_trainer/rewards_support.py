"""Pools of real reward processes for tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.rewards.policy import Response
from rljob_trainer.rewards.pool import RewardPool

BEHAVE = """
import os, signal, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, seconds=60):
    if solution_str == "hang":
        time.sleep(seconds)
    if solution_str == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        time.sleep(seconds)
    if solution_str == "exit":
        os._exit(3)
    if solution_str == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if solution_str == "oom":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "raise":
        raise ValueError("not this one")
    if solution_str == "sys.exit":
        raise SystemExit(4)
    if solution_str == "nan":
        return float("nan")
    if solution_str == "none":
        return None
    if solution_str == "sleep":
        time.sleep(0.4)
    if solution_str == "pid":
        return os.getpid()
    return float(len(solution_str))
"""


def rewards(*functions, timeout="20s", processes=1, on_error="fail"):
    functions = functions or ({"name": "own", "source": BEHAVE},)
    return Rewards.model_validate(
        {"functions": list(functions), "timeout": timeout, "processes": processes, "onError": on_error}
    )


def responses(*texts):
    return [Response(text, tokens=len(text)) for text in texts]


def scored(pool, task, responses):
    return pool.submit(task, responses).result()


def load(rewards, base_dir):
    RewardPool(rewards, base_dir).close()


@contextmanager
def reward_pools(base_dir: Path) -> Iterator[Callable[..., RewardPool]]:
    """Makes pools, and asserts at the end that no process of theirs is left."""
    pools = []

    def make(given: Rewards, base_dir: Path = base_dir, log: Path | None = None) -> RewardPool:
        pools.append(RewardPool(given, base_dir, log))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    assert not children()


def children():
    """Reward processes of these tests; what other tests have left to be reaped is none of them."""
    return [child for child in psutil.Process().children(recursive=True) if "rewards.child" in _command(child)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # and zombies
        return ""
