"""Prints errors on the command line: what to change and where, without a traceback."""

import sys
import tempfile
import traceback
from pathlib import Path


def report(error: Exception) -> int:
    """Print the error to stderr. Returns its exit code."""
    # Imported here: they import the API's models, which `rljob --help` does not need.
    from rljob_api.contract import ExitCode
    from rljob_api.validation import InvalidRLJob
    from rljob_trainer.errors import RLJobError, is_full, is_outage

    if isinstance(error, RLJobError):
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, InvalidRLJob):
        print(*(f"error: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
        return ExitCode.JOB
    if is_full(error):
        print(f"error: {error}; free space", file=sys.stderr)
        return ExitCode.STORAGE_FULL
    if is_outage(error):
        print(f"error: {error}; check whether the file system answers", file=sys.stderr)
        return ExitCode.INFRASTRUCTURE
    path = _save_traceback(error)
    print(f"this is a bug: {type(error).__name__}: {error}\n  report it with the traceback in {path}", file=sys.stderr)
    return ExitCode.BUG


def _save_traceback(error: Exception) -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="rljob-", suffix=".traceback", delete=False) as file:
        file.writelines(traceback.format_exception(error))
    return Path(file.name)
