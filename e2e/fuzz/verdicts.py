"""What becomes of one malformed RLJob: refused with the name of a field, or good enough for everybody."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubernetes.client import ApiException, CustomObjectsApi

from rljob_api.validation import validate
from rljob_operator.job import read_job
from rljob_operator.render import CannotMerge, Placement, cluster_of, lasting_children, secret_of
from rljob_operator.settings import Settings

RLJOBS: dict[str, Any] = {"group": "rljob.dev", "version": "v1alpha1", "plural": "rljobs", "namespace": "default"}
STRICT: dict[str, Any] = {"dry_run": "All", "field_validation": "Strict"}

SETTINGS = Settings(key=b"k" * 32, trainer_image="trainer:1")

FIELD = re.compile(r"spec|metadata|ObjectMeta|status|API ?version|kind|name|unknown field", re.IGNORECASE)
MORE = "some validation rules were not checked"
"""The API server says so beside what it found, of no field."""

REFUSALS = (400, 403, 409, 413, 422)


@dataclass(frozen=True)
class Verdict:
    """admitted: by the API server. findings: what should not be."""

    admitted: bool
    findings: tuple[str, ...]


def judge(api: CustomObjectsApi, document: Any) -> Verdict:
    """Nothing is created."""
    try:
        admitted = api.create_namespaced_custom_object(**RLJOBS, **STRICT, body=document)
    except ApiException as error:
        return Verdict(False, (*_of_refusal(error), *_of_agreement(document, admitted=False)))
    return Verdict(True, (*_of_agreement(document, admitted=True), *_of_operator(admitted)))


def _of_refusal(error: ApiException) -> Iterator[str]:
    if error.status not in REFUSALS:
        yield f"the API server fails: {error.status} {error.body}"
        return
    for line in _lines(error):
        if not FIELD.search(line) and MORE not in line:
            yield f"no field is named: {line}"


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


def _of_operator(admitted: Any) -> Iterator[str]:
    """The operator reads it and makes its objects, or says in the status what it cannot."""
    admitted["metadata"] |= {"namespace": "default", "generation": 1, "resourceVersion": "1"}
    try:
        job = read_job(admitted)
        if (unread := job.problem or job.unread) is not None:
            yield f"the operator cannot read it: {unread}"
            return
        made = [*lasting_children(job, SETTINGS), secret_of(job, SETTINGS.key)]
        made.append(cluster_of(job, job.spec.cluster.image or "trainer:1", SETTINGS, Placement()))
        json.dumps(made)
    except CannotMerge as error:
        if not FIELD.search(f"{error}"):
            yield f"the operator refuses it without a field's name: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
        yield f"the operator raises {type(error).__name__}: {error}"
