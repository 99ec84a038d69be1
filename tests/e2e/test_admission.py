"""The tables of files and of changes before the real API server, which must judge them as its stand-in does."""

import json
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException, CustomObjectsApi

from e2e.cluster.fixtures import JOBS
from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJob, RLJobSpec
from rljob_api.validation import read_documents, validate
from tests.rljob_api import api_server
from tests.rljob_api.example_files import FILES, example_name
from tests.rljob_api.job_changes import AT_ANY_TIME, NEVER, REORDERED, REPLACED, SPEC, WHILE_SUSPENDED, changed
from tests.rljob_api.job_files import BROKEN, GOOD

RLJOBS = JOBS[0]

ROOT = "<nil>"
"""Where the API server finds what is wrong with a whole object; our line names metadata.name, as its message does."""

STRICT = {"namespace": "default", "dry_run": "All", "field_validation": "Strict"}


@pytest.fixture(scope="module")
def api(cluster):
    with cluster.client() as client:
        yield CustomObjectsApi(client)


CHANGES = AT_ANY_TIME + WHILE_SUSPENDED + NEVER


def document(row):
    return read_documents(row.text, "job.yaml")[0][0].value


def admit(api, row) -> Any:
    """The job as the API server would keep it, but it does not. Raises ApiException."""
    return api.create_namespaced_custom_object(**RLJOBS, **STRICT, body=document(row))


def refusal(api, row):
    """Why the API server refuses the file, as lines of FIELD: REASON; none where it admits it."""
    return reasons(lambda: admit(api, row))


def reasons(call):
    try:
        call()
    except ApiException as error:
        status = json.loads(error.body or "")
        causes = status.get("details", {}).get("causes", ())
        return [f"{cause['field']}: {cause['message']}" for cause in causes] or [status["message"]]
    return []


def test_good_files_are_admitted(api):
    assert {row.name: told for row in GOOD if (told := refusal(api, row))} == {}


@pytest.mark.parametrize("file", FILES, ids=example_name)
def test_an_example_is_admitted(api, file):
    for job in yaml.safe_load_all(file.read_text()):
        api.create_namespaced_custom_object(**RLJOBS, **STRICT, body=job)


def test_broken_files_are_refused(api):
    assert [row.name for row in BROKEN if not refusal(api, row)] == []


def test_broken_rules_are_told_in_the_same_words_about_the_same_fields(api):
    """Where the form is right: else rules are not judged. Kubernetes has words of its own for names of any kind."""
    differing = {}
    for row in BROKEN:
        form, _ = api_server.formed(document(row))
        lines = [line.replace(": Invalid value: ", ": ") for line in refusal(api, row)]
        theirs = sorted(line for line in lines if not line.startswith("metadata.name: "))
        problems = validate(row.text, "job.yaml").problems
        ours = sorted(f"{ROOT if each.field == 'metadata.name' else each.field}: {each.message}" for each in problems)
        if not form and theirs != ours:
            differing[row.name] = (theirs, ours)
    assert differing == {}


def test_defaults_are_those_that_the_models_give(api):
    schema = structural_schema(RLJob)
    differing = [row.name for row in GOOD if admit(api, row)["spec"] != with_defaults(schema, document(row))["spec"]]
    assert differing == []


@pytest.fixture(params=["Running", "Succeeded"])
def job(api, namespace, request):
    """One that exists, as the API server has it."""
    named = {**RLJOBS, "namespace": namespace, "name": "job"}
    metadata = {"name": "job", "namespace": namespace}
    body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": SPEC}
    api.create_namespaced_custom_object(**RLJOBS, namespace=namespace, body=body)
    return api.patch_namespaced_custom_object_status(**named, body={"status": {"phase": request.param}})


def test_changes_are_judged_as_the_rules_say(api, job):
    """Values that a new job could not have are refused for that too."""
    named = {**RLJOBS, "namespace": job["metadata"]["namespace"], "name": "job", "dry_run": "All"}
    root = api_server.root_schema()
    before = {"spec": SPEC, "status": job["status"]}
    differing = {}
    for path, value in CHANGES:
        after = before | {"spec": changed(path, value)}
        expected = api_server.refused_changes(root, before, after)
        expected += api_server.refused_changes(root["properties"]["spec"], SPEC, after["spec"])
        said = reasons(lambda after=after: api.replace_namespaced_custom_object(**named, body=job | after))
        missing = [message for message in expected if not any(message in line for line in said)]
        if missing or bool(said) != bool(expected):
            differing[path] = (expected, said)
    assert differing == {}


@pytest.mark.parametrize(("path", "value", "other"), REORDERED)
def test_another_order_of_what_has_none_is_let_through(api, namespace, path, value, other):
    named = {**RLJOBS, "namespace": namespace}
    body = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": changed(path, value),
    }
    made = api.create_namespaced_custom_object(**named, body=body)
    changes = made | {"spec": changed(path, other)}
    again = api.replace_namespaced_custom_object(**named, name="job", dry_run="All", body=changes)
    assert again["metadata"]["generation"] == 2, "the order is stored"


def test_another_key_in_place_of_one_is_a_change(api, namespace):
    """To the real API server it is none where the schema leaves both keys out, which its stand-in does not know."""
    wrong = {}
    for number, (path, value, other) in enumerate(REPLACED):
        job = Stored(api, namespace, f"job-{number}", changed(path, value))
        after = changed(path, other)
        running = job.refusal(after)
        job.update(changed("suspend", True, job.spec))
        suspended = job.refusal(after)
        job.update(changed("suspend", False, job.spec))
        job.end()
        ended = job.refusal(after)
        if suspended or "suspend is true" not in str(running) or "has ended" not in str(ended):
            wrong[f"{path}: {value} -> {other}"] = (running, suspended, ended)
    assert wrong == {}


class Stored:
    """A job that exists."""

    def __init__(self, api, namespace, name, spec):
        self._api, self._named, self.spec = api, {**RLJOBS, "namespace": namespace, "name": name}, spec
        body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}
        self._job = api.create_namespaced_custom_object(**RLJOBS, namespace=namespace, body=body)
        assert self._job["spec"] == with_defaults(structural_schema(RLJobSpec), spec), "all of it is kept"

    def update(self, spec):
        self._job = self._replaced(spec)

    def end(self):
        self._job = self._api.patch_namespaced_custom_object_status(**self._named, body={"status": {"phase": "Failed"}})

    def refusal(self, spec):
        """Why this change of it would be refused."""
        return reasons(lambda: self._replaced(spec, dry_run="All"))

    def _replaced(self, spec, **options):
        return self._api.replace_namespaced_custom_object(**self._named, **options, body=self._job | {"spec": spec})
