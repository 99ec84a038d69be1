"""Each file of the table before three judges: `rljob validate`, the generated CRD, and the pydantic models."""

from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJob
from rljob_api.validation import read_documents, render_problems, validate
from tests.rljob_api import api_server
from tests.rljob_api.job_files import BROKEN, BROKEN_YAML, GOOD, JOB, Row


def rows(table):
    return pytest.mark.parametrize("row", table, ids=lambda row: row.name[:60])


def document(row: Row) -> Any:
    """The first document of the file, which holds its RLJob."""
    return read_documents(row.text, "job.yaml")[0][0].value


@cache
def admitted(text: str) -> tuple[list[str], list[str]]:
    """What the CRD says of that document; CEL in pure Python takes its time."""
    return api_server.admit(read_documents(text, "job.yaml")[0][0].value)


@rows(GOOD)
def test_a_good_file_gives_its_job_and_the_crd_admits_it(row):
    validated = validate(row.text, "job.yaml")
    assert render_problems(validated.problems) == ""
    assert len(validated.jobs) == 1
    assert admitted(row.text) == ([], [])


@rows(BROKEN + BROKEN_YAML)
def test_a_broken_file_is_told_every_problem_with_its_place(row):
    validated = validate(row.text, "job.yaml")
    assert [str(problem) for problem in validated.problems] == [f"job.yaml:{line}" for line in row.expected]
    assert row.expected


@rows(BROKEN)
def test_the_crd_refuses_it_too_and_by_the_same_rules(row):
    errors, messages = admitted(row.text)
    assert errors or messages
    ours = [problem.message for problem in validate(row.text, "job.yaml").problems]
    assert errors or sorted(messages) == sorted(ours)


@rows(GOOD + BROKEN)
def test_the_models_refuse_what_the_schema_refuses(row):
    """Where it is the form that is wrong: pydantic knows neither rules nor list maps, and metadata is Kubernetes'."""
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
    """Not among the good files: a real cluster deletes what an absent owner has."""
    owned = "  name: gsm8k-grpo\n  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: c, uid: u}]\n"
    assert validate(JOB.replace("  name: gsm8k-grpo\n", owned), "job.yaml").problems == ()


def test_of_many_unknown_fields_each_is_told_and_the_first_get_a_remedy():
    wrong = "".join(f"    step{number}: 1\n" for number in range(25))
    problems = validate(JOB.replace("    steps: 100\n", f"    steps: 100\n{wrong}"), "job.yaml").problems
    assert [problem.message for problem in problems] == ["unknown field"] * 25
    assert [bool(problem.remedy) for problem in problems] == [True] * 20 + [False] * 5


def test_the_table_breaks_every_rule():
    """A rule that no file breaks is not tested."""
    expected = "\n".join(line for row in BROKEN for line in row.expected)
    untested = [message for message in _messages(api_server.root_schema()) if message not in expected]
    assert untested == []


def _messages(schema):
    """Of the rules that judge a file; those that judge changes have a test of their own."""
    rules = schema.get("x-kubernetes-validations", ())
    yield from (rule["message"] for rule in rules if "oldSelf" not in rule["rule"])
    for field in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from _messages(field)


def test_other_kinds_beside_an_rljob_are_noted():
    text = JOB + "---\napiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: c}\n"
    (note,) = validate(text, "job.yaml").notes
    assert str(note) == "job.yaml:24:7: kind: a RayCluster is not judged here"
