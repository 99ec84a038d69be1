"""The table of conditions and reasons against those who say them: decide, the recovery policy and the driver."""

import ast
import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from rljob_api.conditions import CONDITIONS, Aspect, Note, Reason
from rljob_api.conditions_reference import render
from rljob_api.recovery import decide_recovery
from rljob_api.v1alpha1 import DriverStatus
from rljob_api.v1alpha1.recovery import FAILURES
from rljob_api.v1alpha1.status import Phase
from rljob_operator import decide
from rljob_operator.decide.events import EVENT_REASONS
from rljob_operator.decide.status import OF_SOME_JOBS
from rljob_operator.plan import Plan
from rljob_trainer import errors as errors_module
from rljob_trainer.attempt.claim import exit_record
from tests.rljob_operator.situations import situations
from tests.rljob_operator.snapshots import conditions


def plans() -> list[Plan]:
    return [plan for plan in situations().values() if plan.status is not None]


def reason_of(plan: Plan) -> str:
    return conditions(plan.status)["Ready"][1]


@pytest.mark.parametrize("reason", Reason)
def test_a_job_has_each_reason_in_the_phases_of_the_table(reason):
    phases = {plan.status.phase for plan in plans() if plan.status is not None and reason_of(plan) == reason}
    assert phases
    assert phases == set(reason.where or phases)


def test_a_status_has_the_conditions_of_the_table_and_its_words():
    words, said, told = {*Reason, *Aspect, *Note}, set(), set()
    for plan in plans():
        found = conditions(plan.status)
        assert plan.status is not None
        some = {"RewardModelsReady"} if plan.status.reward_models else set()
        some |= {"Admitted", "Evicted"} if plan.status.workload else set()
        some |= {"PreflightPassed"} & {*found}  # of jobs whose fabric was measured
        assert list(found) == [kind for kind in CONDITIONS if kind in some or kind not in OF_SOME_JOBS]
        said |= {(reason, kind) for kind, (_, reason) in found.items()}
        told |= {event.reason for event in plan.events}
    assert {reason for reason, _ in said} | told | {Note.FIELD_IGNORED} == words | {"Reason"}
    assert {(word, kind) for word, kind in said if word in {*Aspect}} == {(word, *word.where) for word in Aspect}
    assert not {reason for reason, _ in said} & {*Note}
    assert len(words) == len(Reason) + len(Aspect) + len(Note), "one row a word"


INSIDE = {"RLJob", "WorkerLost", "WeightSync", "DamagedCheckpoint"}
"""Of those others are made before an attempt ends: abstract ones, one that becomes EngineLost, and one that becomes
Data where the job names the checkpoint; else that is left out.
"""


def test_what_a_driver_records_is_in_the_table():
    others = (ValueError("a bug"), OSError(errno.ENOSPC, "full"))
    recorded = {exit_record(error).reason for error in others} | {name.removesuffix("Error") for name in errors()}
    assert recorded - INSIDE < {*Reason}
    assert recorded - INSIDE - {Reason.STOPPED_ON_REQUEST, Reason.FENCED} < {*FAILURES}, "a rule may name it"


def errors() -> set[str]:
    """Names of all that is an RLJobError, whether its module was imported or not."""
    files = Path(errors_module.__file__).parent.rglob("*.py")
    classes = [
        node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)
    ]
    found = {"RLJobError"}
    while new := {each.name for each in classes if found & {ast.unparse(base) for base in each.bases}} - found:
        found |= new
    return found


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


DRIVER_STATES = get_args(DriverStatus.model_fields["state"].annotation)
SOURCES = [Path(decide_recovery.__code__.co_filename), *Path(decide.__file__).parent.glob("*.py")]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_reason_is_written_but_in_the_table(file):
    constants = {node.value for node in nodes(file) if isinstance(node, ast.Constant)}
    words = {each for each in constants if isinstance(each, str) and re.fullmatch("([A-Z][a-z]+)+", each)}
    assert words <= {*get_args(Phase), *CONDITIONS, *DRIVER_STATES, "True", "False", "Unknown"}


def test_the_page_names_the_events_that_no_condition_makes():
    said = re.search(
        r"PodsNotReady and\s+ServersNotReady while the\s+job runs; .*?becomes (.*?)\. These are", render(), re.DOTALL
    )
    assert said is not None
    assert set(re.findall(r"[A-Z]\w+", said[1])) == {*EVENT_REASONS}
