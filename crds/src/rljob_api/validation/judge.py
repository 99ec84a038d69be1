"""One file, judged as the API server would judge it, with every error at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rljob_api.schema import FREE_FORM, Schema, structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJob
from rljob_api.validation.metadata import METADATA
from rljob_api.validation.overrides import apply_overrides
from rljob_api.validation.problems import InvalidRLJob, Problem
from rljob_api.validation.rules import rule_findings
from rljob_api.validation.source import Document, FieldPath, dotted, read_documents
from rljob_api.validation.structure import broken_fields, findings
from rljob_api.validation.suggest import closest

_NAME = ("metadata", "name")
GROUP = "rljob.dev"
KIND = "RLJob"


@dataclass(frozen=True, slots=True)
class Judged:
    """A document that is meant to be an RLJob. problems: of it, but for those with other documents.

    broken: fields that have no sound value.
    """

    document: Document
    problems: list[Problem]
    broken: set[FieldPath] = field(default_factory=set)

    def sound(self, *path: str | int) -> Any:
        """The value of a field as the file has it; None where it is absent, or an error is of it or of a part of it."""
        if self.is_broken(*path):
            return None
        value = self.document.value
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            else:
                value = value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None
        return value

    def is_broken(self, *path: str | int) -> bool:
        """Whether an error is of the field or of a part of it; one of what holds it leaves it to be judged."""
        return any(wrong[: len(path)] == path for wrong in self.broken)

    def entries(self, *path: str) -> range:
        """The indices of a list, whatever is wrong with some of its entries; empty where it is none."""
        value = self.document.value
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return range(len(value) if isinstance(value, list) else 0)


@dataclass(frozen=True, slots=True)
class Validated:
    """What a file holds.

    jobs: its valid RLJobs. problems: every error, in the order of the file. notes: what was left unjudged.
    documents: all that are meant to be RLJobs, for whoever judges more of their fields than the API does.
    """

    jobs: tuple[RLJob, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    documents: tuple[Judged, ...] = ()


def validate(text: str, source: str, overrides: Sequence[str] = ()) -> Validated:
    """Judge each RLJob of a YAML file; documents of other kinds are noted and left alone.

    source: the file's name, for the problems' positions.
    overrides: "PATH=VALUE" each, written into every RLJob before it is judged.
    """
    documents, problems = read_documents(text, source)
    jobs: list[RLJob] = []
    judged: list[Judged] = []
    notes: list[Problem] = []
    named: dict[tuple[str, str], Document] = {}
    for document in documents:
        if kind := _other_kind(document.value):
            notes.append(_problem(document, ("kind",), f"a {kind} is not judged here"))
            continue
        if (name := _namespaced_name(document.value)) and (first := named.setdefault(name, document)) is not document:
            message = f"is the name of the RLJob that begins in line {first.start.line}"
            problems.append(_problem(document, _NAME, message, "Rename one of the two"))
        unwritten = apply_overrides(document, overrides)
        judged.append(judge(document))
        if found := [*unwritten, *judged[-1].problems]:
            problems += found
        else:
            jobs.append(_parsed(document.value))
    if not jobs and not problems:
        problems.append(_nothing_in(source, notes))
    return Validated(tuple(jobs), tuple(in_order(problems)), tuple(notes), tuple(judged))


def validate_file(path: Path | str, overrides: Sequence[str] = ()) -> Validated:
    """`validate` for a file by name; a file that cannot be read is a problem too."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(path, f"is not UTF-8 text: byte {error.start} is wrong")
    except OSError as error:
        return _unreadable(path, f"cannot be read: {error.strerror}")
    return validate(text, str(path), overrides)


def load_rljob(path: Path | str, overrides: Sequence[str] = ()) -> RLJob:
    """The one RLJob of a file, overrides applied.

    Raises InvalidRLJob with every problem of the file.
    """
    validated = validate_file(path, overrides)
    if validated.problems:
        raise InvalidRLJob(validated.problems)
    if len(validated.jobs) > 1:
        names = ", ".join(job.metadata.name for job in validated.jobs)
        message = f"holds several RLJobs: {names}"
        raise InvalidRLJob([Problem(str(path), 1, 1, "", message, "Give each a file of its own")])
    return validated.jobs[0]


def judge(document: Document) -> Judged:
    """One document that is meant to be an RLJob, with every error of it."""
    schema = document_schema()
    value = with_defaults(schema, document.value)
    found = [finding for finding in findings(schema, value) if finding.path not in document.broken]
    broken = broken_fields(found) | document.broken
    found += rule_findings(schema, value, broken)
    said = [
        _problem(document, finding.path, finding.message, finding.remedy, at_key=finding.at_key) for finding in found
    ]
    return Judged(document, document.problems + said, broken)


@cache
def document_schema() -> Schema:
    """The schema of a whole file: the CRD's, and Kubernetes' own for metadata. status is the operator's, not judged."""
    schema = structural_schema(RLJob)
    return schema | {"properties": schema["properties"] | {"metadata": METADATA, "status": {FREE_FORM: True}}}


def _parsed(value: Any) -> RLJob:
    written = {key: item for key, item in with_defaults(document_schema(), value).items() if key != "status"}
    return RLJob.model_validate(written, strict=True, by_alias=True, by_name=False)


def _other_kind(value: Any) -> str | None:
    """The kind of a document that is clearly some other Kubernetes object, not a misspelt RLJob."""
    if not isinstance(value, dict):
        return None
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or version.startswith(f"{GROUP}/"):
        return None
    return None if closest(kind, [KIND], cutoff=0.8) else kind


def _namespaced_name(value: Any) -> tuple[str, str] | None:
    """Namespace, "" where it is left to kubectl, and name; None where the document does not say them."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return None
    namespace, name = metadata.get("namespace", ""), metadata.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else None


def _nothing_in(source: str, notes: Sequence[Problem]) -> Problem:
    message = "holds no RLJob" if notes else "is empty"
    return Problem(source, 1, 1, "", message, f"An RLJob begins with apiVersion: {GROUP}/v1alpha1 and kind: {KIND}")


def _problem(
    document: Document, path: tuple[str | int, ...], message: str, remedy: str = "", *, at_key: bool = False
) -> Problem:
    return Problem(*document.locate(path, key=at_key), dotted(path), message, remedy)


def _unreadable(path: Path | str, message: str) -> Validated:
    return Validated((), (Problem(str(path), None, None, "", message),))


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """As they stand in their file."""
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
