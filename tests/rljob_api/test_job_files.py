"""Each file of the table through three validators: `rljob validate`, the generated CRD, and the pydantic models."""

from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJob
from rljob_api.validation import read_documents, render_problems, validate
from tests.rljob_api import api_server, golden
from tests.rljob_api.job_files import BROKEN, BROKEN_YAML, GOOD, JOB, Row


def rows(table):
    return pytest.mark.parametrize("row", table, ids=lambda row: row.name[:60])


def document(row: Row) -> Any:
    """The first document of the file, which holds its RLJob."""
    return read_documents(row.text, "job.yaml")[0][0].value


@cache
def admitted(text: str) -> tuple[list[str], list[str]]:
    """The CRD's verdict on that document, cached because CEL in pure Python is slow."""
    return api_server.admit(read_documents(text, "job.yaml")[0][0].value)


@rows(GOOD)
def test_a_good_file_gives_its_job_and_the_crd_admits_it(row):
    validated = validate(row.text, "job.yaml")
    assert render_problems(validated.problems) == ""
    assert len(validated.jobs) == 1
    assert admitted(row.text) == ([], [])


@rows(BROKEN + BROKEN_YAML)
def test_each_problem_of_a_broken_file_is_reported_with_its_position_and_field(row):
    problems = validate(row.text, "job.yaml").problems
    assert [f"{problem.line}:{problem.column} {problem.field}".strip() for problem in problems] == [*row.expected]
    assert row.expected


def test_the_messages_are_those_of_the_golden_file():
    """After a change of a message: python -m tests.rljob_api.golden."""
    assert golden.render() == golden.FILE.read_text()


@rows(BROKEN)
def test_the_crd_rejects_it_too_and_by_the_same_rules(row):
    errors, messages = admitted(row.text)
    assert errors or messages
    ours = [problem.message for problem in validate(row.text, "job.yaml").problems]
    assert errors or sorted(messages) == sorted(ours)


@rows(GOOD + BROKEN)
def test_the_models_refuse_what_the_schema_refuses(row):
    """Only for errors of form: pydantic knows neither rules nor list maps, and Kubernetes validates metadata."""
    errors, _ = admitted(row.text)
    if "repeated entry" in errors or any("metadata" in line for line in row.expected):
        return
    written = with_defaults(structural_schema(RLJob), document(row) | {"status": None})
    try:
        RLJob.model_validate(written, strict=True, by_alias=True, by_name=False)
    except ValidationError:
        assert errors
    else:
        assert not errors


def test_an_owner_has_fields_of_its_own():
    """Not among the good files, because a real cluster deletes objects whose owner is absent."""
    owned = "  name: gsm8k-grpo\n  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: c, uid: u}]\n"
    assert validate(JOB.replace("  name: gsm8k-grpo\n", owned), "job.yaml").problems == ()


def test_each_of_many_unknown_fields_is_reported_and_the_first_20_get_a_remedy():
    wrong = "".join(f"    step{number}: 1\n" for number in range(25))
    problems = validate(JOB.replace("    steps: 100\n", f"    steps: 100\n{wrong}"), "job.yaml").problems
    assert [problem.message for problem in problems] == ["unknown field"] * 25
    assert [bool(problem.remedy) for problem in problems] == [True] * 20 + [False] * 5


def test_the_table_breaks_every_rule():
    """A rule that no file breaks is not tested."""
    broken = golden.FILE.read_text()
    untested = [message for message in _messages(api_server.root_schema()) if message not in broken]
    assert untested == []


def _messages(schema):
    """The messages of the rules about a file; test_transitions covers rules about changes."""
    rules = schema.get("x-kubernetes-validations", ())
    yield from (rule["message"] for rule in rules if "oldSelf" not in rule["rule"])
    for field in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from _messages(field)


def test_other_kinds_beside_an_rljob_are_noted():
    text = JOB + "---\napiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: c}\n"
    (note,) = validate(text, "job.yaml").notes
    assert (note.line, note.field) == (24, "kind")
    assert "RayCluster" in note.message
