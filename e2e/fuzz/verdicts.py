"""What becomes of one malformed RLJob: refused with the name of a field, or good enough for everybody."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiClient, ApiException, CustomObjectsApi
from kubernetes.dynamic import DynamicClient

from rljob_api.conditions import Reason
from rljob_api.validation import validate
from rljob_operator.decide import decide
from rljob_operator.job import read_job
from rljob_operator.kube.kinds import OPTIONAL
from rljob_operator.observe.facts import derive
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.settings import Settings

NAMESPACE = "default"
RLJOBS: dict[str, Any] = {"group": "rljob.dev", "version": "v1alpha1", "plural": "rljobs", "namespace": NAMESPACE}
STRICT: dict[str, Any] = {"dry_run": "All", "field_validation": "Strict"}

SETTINGS = Settings(key=b"k" * 32, trainer_image="trainer:1")
MISSING = frozenset(OPTIONAL)
"""Kinds that the control plane of the fuzzer does not have."""

FIELD = re.compile(
    r'\b(spec|status|metadata|ObjectMeta)\b[.\[:]|\b(apiVersion|kind|API version)\b|unknown field "', re.IGNORECASE
)
"""A path, or one of the two fields that have none."""
_ONLY_THERE = re.compile(
    r'^status|decoding error: (unknown field "status\.[^"]*"(, |$))+$|expected int, got float64 evaluating rule'
)
"""What only the API server may refuse: what the operator writes, and a JSON client's 1.0, which kubectl sends as 1."""

_NO_METADATA = re.compile(r"cannot unmarshal \w+ into Go value of type v1\.ObjectMeta$")
"""Of `metadata` that is no object, before it looks at a schema. Good enough where `rljob validate` names the field."""

MORE = "some validation rules were not checked"
"""The API server says so beside what it found, of no field."""

REFUSALS = (400, 403, 409, 413, 422)


@dataclass(frozen=True)
class Verdict:
    """admitted: by the API server. findings: what should not be."""

    admitted: bool
    findings: tuple[str, ...]


def judge(client: ApiClient, document: Any) -> Verdict:
    """Nothing is created."""
    try:
        admitted = CustomObjectsApi(client).create_namespaced_custom_object(**RLJOBS, **STRICT, body=document)
    except ApiException as error:
        told = (*_of_refusal(error, document), *(() if _only_there(error) else _of_agreement(document, admitted=False)))
        return Verdict(False, told)
    return Verdict(True, (*_of_agreement(document, admitted=True), *_of_operator(client, admitted)))


def _of_refusal(error: ApiException, document: Any) -> Iterator[str]:
    if error.status not in REFUSALS:
        yield f"the API server fails: {error.status} {error.body}"
        return
    for line in _lines(error):
        if not (_NO_METADATA.search(line) and _metadata_is_named(document)):
            yield from _without_field("the API server refuses it", line)


def _metadata_is_named(document: Any) -> bool:
    """By `rljob validate`."""
    with suppress(Exception):  # which is a finding of `_of_agreement`
        return any(problem.field == "metadata" for problem in validate(json.dumps(document), "job.yaml").problems)
    return False


def _only_there(error: ApiException) -> bool:
    return all(_ONLY_THERE.search(line) for line in _lines(error))


def _lines(error: ApiException) -> list[str]:
    """FIELD: REASON for each cause."""
    try:
        status = json.loads(error.body or "")
    except ValueError:
        return [str(error.body)]
    causes = (status.get("details") or {}).get("causes") or ()
    return [f"{cause.get('field', '')}: {cause['message']}" for cause in causes] or [status["message"]]


def _of_agreement(document: Any, *, admitted: bool) -> Iterator[str]:
    """`rljob validate` says the same, before anything is sent."""
    try:
        judged = validate(json.dumps(document), "job.yaml")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        yield f"`rljob validate` raises {type(error).__name__}: {error}"
        return
    if admitted and judged.problems:
        yield f"only `rljob validate` refuses it: {judged.problems[0]}"
    if not admitted and not judged.problems and not judged.notes:
        yield "only the API server refuses it"


def _of_operator(client: ApiClient, admitted: Any) -> Iterator[str]:
    """The operator decides on it and the API server takes what it makes, or says which field of that it does not: the
    status then says it of the job's fields, which `reconciling` sees.
    """
    admitted["metadata"] |= {"namespace": NAMESPACE, "generation": 1, "resourceVersion": "1"}
    try:
        plan = decide(derive(Snapshot(read_job(admitted), datetime.now(UTC), missing=MISSING)), SETTINGS)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        yield f"the operator raises {type(error).__name__}: {error}"
        return
    for condition in plan.status.conditions if plan.status is not None else ():
        if condition.reason == Reason.SPEC_NOT_READABLE or (condition.status == "True" and condition.type == "Failed"):
            yield from _without_field("the operator refuses it", f"{condition.message}")
    api = DynamicClient(client)
    for manifest in (*plan.apply, *plan.create):
        try:
            kind = api.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
            api.create(kind, body=manifest, namespace=NAMESPACE, dry_run="All")
        except ApiException as error:
            for line in _lines(error):
                yield from _without_field(f"the API server refuses its {manifest['kind']}", line)


def _without_field(what: str, message: str) -> Iterator[str]:
    if not FIELD.search(message) and MORE not in message:
        yield f"{what} without a field's name: {message}"
