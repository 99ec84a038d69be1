"""Every test process, and every process it starts, computes with one thread and asks nothing of the network."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

# Before torch or Ray are imported: they read these once. Ranks share few cores, and one thread sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell runs us in the background, and all that we start would inherit it. Tests end some of it by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["e2e.cluster.fixtures"]

LONGEST = (
    "e2e/queued/test_queued_jobs", "e2e/queued/test_queue_rights",
    "e2e/test_lost_node", "e2e/test_fuzz", "bench/test_models", "rljob_trainer/test_run_recovery",
    "rljob_trainer/test_examples",
    "rljob_trainer/test_reward_models_served", "e2e/test_lifecycle", "rljob_trainer/test_run_chain",
    "rljob_trainer/test_chaos", "rljob_trainer/test_run_resume", "e2e/test_operator_deaths",
    "rljob_trainer/test_heartbeats", "e2e/test_operator_life", "rljob_trainer/test_run_failures", "charts/test_install",
    "rljob_trainer/test_supervisor", "rljob_trainer/test_rollouts", "rljob_trainer/test_rank_splits",
    "rljob_trainer/test_engine_conformance", "rljob_trainer/test_rollout_vllm", "rljob_trainer/test_hosting",
    "e2e/test_lease", "rljob_operator/test_world_deaths", "rljob_operator/test_world_schedules",
)  # fmt: skip
"""They begin first, so that at the end no process of pytest-xdist is alone with one of them."""


@pytest.fixture(autouse=True)
def _log_settings() -> Iterator[None]:
    """A test that runs a command in this process leaves the settings of its log to no other test."""
    settings = structlog.get_config()
    yield
    structlog.configure(**settings)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    tests = Path(__file__).parent
    items.sort(key=lambda item: place.get(str(item.path.relative_to(tests).with_suffix("")), len(place)))
