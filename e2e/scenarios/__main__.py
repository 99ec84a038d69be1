"""`make e2e`: every scenario, one after the other, on one cluster; writes its part of docs/benchmarks/recovery.md.

A scenario that has passed at this commit is not run again, so the same command goes on after an interruption.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.recovery_page import write_part
from e2e.scenarios.conftest import SECONDS
from rljob_api.markdown import table

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/benchmarks"
RESULTS = PAGES / "scenarios.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """recovery: seconds from what was lost to the next optimizer step, for scenarios that lose something."""

    scenario: str
    passed: bool
    seconds: float
    recovery: float | None
    commit: str
    date: str


class Recorder:
    """Leaves out what has passed at this commit, and keeps each result as soon as it is there."""

    def __init__(self, commit: str, again: bool) -> None:
        self._commit = commit
        self._done = set() if again else {each.scenario for each in read() if each.passed and each.commit == commit}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if _name(item.nodeid) in self._done]
        items[:] = [item for item in items if item not in done]
        config.hook.pytest_deselected(items=done)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.failed and report.when == "setup"):
            recovery: Any = dict(report.user_properties).get(SECONDS)
            seconds, today = round(report.duration, 1), datetime.now(UTC).date().isoformat()
            result = Result(_name(report.nodeid), report.passed, seconds, recovery, self._commit, today)
            with RESULTS.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def read() -> list[Result]:
    return [Result(**json.loads(line)) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def write_page(results: list[Result]) -> None:
    """The last result of each scenario."""
    last: dict[str, Any] = {each.scenario: each for each in results}
    rows = [
        [
            name.partition("::")[2].removeprefix("test_").replace("_", " "),
            "passed" if each.passed else "FAILED",
            f"{each.seconds:.0f}",
            "" if each.recovery is None else f"{each.recovery:.1f}",
            each.commit,
            each.date,
        ]
        for name, each in sorted(last.items())
    ]
    heading = ("scenario", "", "seconds", "from the loss to the next optimizer step (s)", "commit", "date")
    about = (
        "The last result of each, by `make e2e`, on one machine whose two kubelets share its CPUs."
        " [e2e/scenarios](../../e2e/scenarios) has their stories."
    )
    write_part(
        PAGES, "recovery_scenarios.md", f"# Scenarios on a cluster with real nodes\n\n{about}\n\n{table(heading, rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.scenarios", description=__doc__)
    parser.add_argument("--only", metavar="EXPRESSION", help="those whose names match, as pytest's -k")
    parser.add_argument("--again", action="store_true", help="those that have passed at this commit, too")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    arguments = [str(ROOT / "e2e/scenarios"), "-v", *(["-k", options.only] if options.only else [])]
    code = pytest.main(arguments, plugins=[Recorder(commit, options.again)])
    write_page(read())
    return int(code) if code != pytest.ExitCode.NO_TESTS_COLLECTED else 0


def _name(node: str) -> str:
    """FILE::TEST, without the folder."""
    return node.rpartition("/")[2]


if __name__ == "__main__":
    sys.exit(main())
