"""scenarios.jsonl: a line for each run of a scenario. Lines are only ever appended; a scenario's last one counts."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.scenarios.conftest import MEASURED, SECONDS

CODE = (
    "charts",
    "crds",
    "e2e/chaos/base.py",
    "e2e/chaos/weights.py",
    "e2e/cluster",
    "e2e/cluster_chaos/faults.py",
    "e2e/cluster_chaos/leftovers.py",
    "e2e/nodes",
    "e2e/scenarios",
    "examples/kueue/queues.yaml",
    "examples/reverse-text.yaml",
    "operator",
    "requirements",
    "runtime_image",
    "tests/charts",
    "tests/e2e/jobs.py",
    "tests/e2e/operator_process.py",
    "tests/e2e/queued",
    "tests/e2e/waiting.py",
    "tests/rljob_operator/played_driver.py",
    "tests/rljob_operator/played_head.py",
    "tests/rljob_operator/played_routes.py",
    "tests/rljob_operator/snapshots.py",
    "tests/rljob_trainer/reward_models_support.py",
    "trainer",
)
"""What decides a result: what is in the images and the cluster, and the scenarios themselves."""


@dataclass(frozen=True, slots=True)
class Result:
    """seconds: of the scenario; where its preparation or its tidying up failed, of that.

    recovery: seconds from what was lost to the next optimizer step, for scenarios that lose something.
    measured: other seconds that the scenario reports, by what they are.
    commit: the last one of CODE, for people. code: digest of its files; "" in lines that are older than digests.
    """

    scenario: str
    passed: bool
    seconds: float
    recovery: float | None
    commit: str
    date: str
    code: str = ""
    measured: dict[str, float] = field(default_factory=dict)


class Recorder:
    """A plugin of pytest's: leaves out what has passed with this very code, and keeps each result at once.

    left_out: how many that were, of those that were asked for.
    """

    def __init__(self, file: Path, commit: str, code: str, *, again: bool = False) -> None:
        self._file, self._commit, self._code = file, commit, code
        self._done = set() if again else passed(read(file), code)
        self.left_out = 0

    @pytest.hookimpl(trylast=True)  # after -k, lest a name that is none be one that has passed
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if _name(item.nodeid) in self._done]
        items[:] = [item for item in items if item not in done]
        self.left_out = len(done)
        config.hook.pytest_deselected(items=done)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of what goes before and after a scenario only failures are kept: a line after the scenario's own counts."""
        if report.skipped or (report.when != "call" and report.passed):
            return
        properties: dict[str, Any] = dict(report.user_properties)
        recovery, measured = properties.get(SECONDS), properties.get(MEASURED, {})
        seconds, today = round(report.duration, 1), datetime.now(UTC).date().isoformat()
        name, commit = _name(report.nodeid), self._commit
        result = Result(name, report.passed, seconds, recovery, commit, today, self._code, measured)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def read(file: Path) -> list[Result]:
    return [Result(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def last(results: Iterable[Result]) -> dict[str, Result]:
    """By scenario."""
    return {each.scenario: each for each in results}


def passed(results: Iterable[Result], code: str) -> set[str]:
    """Scenarios that have, when they ran last with that code."""
    return {name for name, each in last(each for each in results if each.code == code).items() if each.passed}


def _name(node: str) -> str:
    """FILE::TEST, without the folder."""
    return node.rpartition("/")[2]
