"""Validates one file as the API server would, and reports all errors at once."""

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
    """A document that is meant to be an RLJob.

    problems: its own errors, without those that concern several documents.
    broken: the fields without a valid value.
    """

    document: Document
    problems: list[Problem]
    broken: set[FieldPath] = field(default_factory=set)

    def sound(self, *path: str | int) -> Any:
        """The value of a field as in the file; None if it is absent, or if it or a part of it has an error."""
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
        """Whether the field or a part of it has an error; an error of its parent does not count."""
        return any(wrong[: len(path)] == path for wrong in self.broken)

    def entries(self, *path: str) -> range:
        """The indices of a list, including entries with errors; empty if the value is not a list."""
        value = self.document.value
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return range(len(value) if isinstance(value, list) else 0)


@dataclass(frozen=True, slots=True)
class Validated:
    """The content of a file.

    jobs: the valid RLJobs. problems: every error, in the order of the file. notes: documents that were not validated.
    documents: all documents that are meant to be RLJobs, for further checks of their fields.
    """

    jobs: tuple[RLJob, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()
    documents: tuple[Judged, ...] = ()


def validate(text: str, source: str, overrides: Sequence[str] = ()) -> Validated:
    """Validate each RLJob of a YAML file; documents of other kinds only lead to a note.

    source: the file's name, for the positions of the problems.
    overrides: "PATH=VALUE" each, written into every RLJob before its validation.
    """
    documents, problems = read_documents(text, source)
    jobs: list[RLJob] = []
    judged: list[Judged] = []
    notes: list[Problem] = []
    named: dict[tuple[str, str], Document] = {}
    for document in documents:
        if kind := _other_kind(document.value):
            notes.append(_problem(document, ("kind",), f"{kind} is not validated here"))
            continue
        if (name := _namespaced_name(document.value)) and (first := named.setdefault(name, document)) is not document:
            message = f"another RLJob in line {first.start.line} has the same name"
            problems.append(_problem(document, _NAME, message, "Rename one of them"))
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
    """`validate` for a file by name; an unreadable file is reported as a problem."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(path, f"is not UTF-8 text: byte {error.start} is invalid")
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
        message = f"contains several RLJobs: {names}"
        raise InvalidRLJob([Problem(str(path), 1, 1, "", message, "Move each into its own file")])
    return validated.jobs[0]


def judge(document: Document) -> Judged:
    """Validate one document that is meant to be an RLJob."""
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
    """The schema of a file: that of the CRD, Kubernetes' own for metadata, and anything for status."""
    schema = structural_schema(RLJob)
    return schema | {"properties": schema["properties"] | {"metadata": METADATA, "status": {FREE_FORM: True}}}


def _parsed(value: Any) -> RLJob:
    written = {key: item for key, item in with_defaults(document_schema(), value).items() if key != "status"}
    return RLJob.model_validate(written, strict=True, by_alias=True, by_name=False)


def _other_kind(value: Any) -> str | None:
    """The kind of a document that is another Kubernetes object and not a misspelled RLJob."""
    if not isinstance(value, dict):
        return None
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or version.startswith(f"{GROUP}/"):
        return None
    return None if closest(kind, [KIND], cutoff=0.8) else kind


def _namespaced_name(value: Any) -> tuple[str, str] | None:
    """Namespace ("" if kubectl chooses it) and name; None if the document lacks them."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return None
    namespace, name = metadata.get("namespace", ""), metadata.get("name")
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else None


def _nothing_in(source: str, notes: Sequence[Problem]) -> Problem:
    message = "contains no RLJob" if notes else "is empty"
    return Problem(source, 1, 1, "", message, f"An RLJob starts with apiVersion: {GROUP}/v1alpha1 and kind: {KIND}")


def _problem(
    document: Document, path: tuple[str | int, ...], message: str, remedy: str = "", *, at_key: bool = False
) -> Problem:
    return Problem(*document.locate(path, key=at_key), dotted(path), message, remedy)


def _unreadable(path: Path | str, message: str) -> Validated:
    return Validated((), (Problem(str(path), None, None, "", message),))


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems by their position in the file."""
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
