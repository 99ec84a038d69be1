"""Validates RLJob files and reports every error with its line, its field and a remedy."""

from rljob_api.validation.judge import Judged, Validated, in_order, load_rljob, validate, validate_file
from rljob_api.validation.overrides import apply_overrides
from rljob_api.validation.problems import InvalidRLJob, Problem, render_problems
from rljob_api.validation.ranks import with_ranks
from rljob_api.validation.source import Document, read_documents

__all__ = [
    "Document",
    "InvalidRLJob",
    "Judged",
    "Problem",
    "Validated",
    "apply_overrides",
    "in_order",
    "load_rljob",
    "read_documents",
    "render_problems",
    "validate",
    "validate_file",
    "with_ranks",
]
