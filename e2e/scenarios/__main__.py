"""`make e2e`: every scenario, one after the other, on one cluster; writes its part of docs/benchmarks/recovery.md.

A scenario that has passed with this very code is not run again, so the same command goes on after an interruption.
Of a cluster that E2E_KUBECONTEXT names nothing is kept: results are this machine's.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.commits import content, last_change
from bench.recovery_page import write_part
from e2e.cluster.binaries import BINARIES, KUBERNETES
from e2e.cluster.fixtures import CONTEXT
from e2e.scenarios.results import CODE, Recorder, Result, last, read
from rljob_api.markdown import table

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/benchmarks"
RESULTS = PAGES / "scenarios.jsonl"

WITHOUT_SECONDS = (
    "Scenarios without seconds (-) lose nothing that trains: their jobs only train, are stopped, changed or deleted on"
    " purpose, wait for a user or a quota, are evicted, or end because of a mistake in the job or before a bad node"
    " trains. Training continues without an operator that is"
    " killed or rolled to another version, and on a node that does not report; these scenarios check that the job takes"
    " further steps in the same pods. The scenario that kills the operator in every phase also deletes a head pod, and"
    " kills the operator while the job recovers: its seconds start at the loss of the head and include half a minute"
    " for the dead operator's Lease. The [campaign of faults](recovery_cluster.md) says how soon an update follows the"
    " operator's death."
)

GANGS = (
    "Scenarios with a gang scheduler in brackets run on a control plane with KWOK's fake nodes, with played drivers:"
    f" Volcano {BINARIES['vc-scheduler'].version}, scheduler-plugins {BINARIES['coscheduling-scheduler'].version}"
    f" (coscheduling), Kubernetes {KUBERNETES}'s own scheduler (native)."
)

CLOCKS = (
    "Seconds end with the first optimizer step that the next attempt computes itself. They start with the kill, if"
    " the driver is killed, by the pod's clock. If a pod is deleted or a node is drained, they start before the"
    " command (in the scenario that kills the operator in every phase, after it). Then the pod's kubelet runs"
    " preStop, which makes the driver save a checkpoint and exit, and sends SIGTERM, also for a deletion by force;"
    " the seconds include all of that. If a node is lost, they start before SIGKILL to all its processes, so they"
    " include the time until Kubernetes detects the loss. If a reward model's server gets SIGKILL, they start before"
    " that; the job stays in its attempt, and the seconds end with the step after the longest pause."
)
"""Where the seconds to the next optimizer step start."""


OTHER_CLOCKS = (
    "The clock of the API server's audit log tells when Kueue evicted a job, when the operator released the quota (its"
    " last pod had ended), and when the operator created the next RayCluster. The clock of the pod tells when an"
    " optimizer step ended. Rewards of a preempted job and of an undisturbed one are equal bit for bit, and no step was"
    " repeated."
)


def write_page(results: Iterable[Result]) -> None:
    """The last result of each scenario."""
    found, code = last(results), content(CODE)
    older = sum(each.code != code for each in found.values())
    rows = [
        [
            _words(name),
            "passed" if each.passed else "FAILED",
            f"{each.seconds:.0f}",
            "-" if each.recovery is None else f"{each.recovery:.1f}",
            each.commit,
            each.date,
        ]
        for name, each in sorted(found.items())
    ]
    others = [
        [_words(name), what, f"{seconds:.1f}", each.commit]
        for name, each in sorted(found.items())
        for what, seconds in each.measured.items()
    ]
    heading = ("scenario", "", "seconds", "from the loss to the next optimizer step (s)", "commit", "date")
    about = (
        "The last result of each scenario of [e2e/scenarios](../../e2e/scenarios), by `make e2e`, on one machine whose"
        " two kubelets share its CPUs."
        f" {GANGS} {_age(older, len(found))}\n\n{CLOCKS}\n\n{WITHOUT_SECONDS}"
    )
    parts = ["# Scenarios on a cluster with real nodes", about, table(heading, rows)]
    if others:
        parts += ["## Other times", OTHER_CLOCKS, table(("scenario", "what", "seconds", "commit"), others)]
    write_part(PAGES, "recovery_scenarios.md", "\n\n".join(parts))


def _words(scenario: str) -> str:
    return scenario.partition("::")[2].removeprefix("test_").replace("_", " ")


def _age(older: int, count: int) -> str:
    if not older:
        return "All ran with the same code."
    return f"{older} of {count} ran with older code than the newest; the table has their commits."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.scenarios", description=__doc__)
    parser.add_argument("--only", metavar="EXPRESSION", help="those whose names match, as pytest's -k")
    parser.add_argument("--again", action="store_true", help="those that have passed with this code, too")
    options = parser.parse_args()
    arguments = [str(ROOT / "e2e/scenarios"), "-v", *(["-k", options.only] if options.only else [])]
    if os.environ.get(CONTEXT):
        return int(pytest.main(arguments))
    code = content(CODE) or sys.exit(f"git knows no files of {ROOT}, and results are kept by what these are")
    recorder = Recorder(RESULTS, last_change(CODE), code, again=options.again)
    end = pytest.main(arguments, plugins=[recorder])
    write_page(read(RESULTS))
    return 0 if end == pytest.ExitCode.NO_TESTS_COLLECTED and recorder.left_out else int(end)


if __name__ == "__main__":
    sys.exit(main())
