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
    from rljob_trainer.attempt.claim import exit_record

    if isinstance(error, InvalidRLJob):
        _print(*(f"error: {problem}" for problem in error.problems))
        return ExitCode.JOB
    record = exit_record(error)
    if record.code == ExitCode.BUG:
        _print(f"{record.message}\n  report it with the traceback in {_save_traceback(error)}")
    else:
        _print(f"error: {record.field}: {record.message}" if record.field else f"error: {record.message}")
    return record.code


def _print(*lines: str) -> None:
    from rljob_api.printable import printable

    print(*map(printable, lines), sep="\n", file=sys.stderr)


def _save_traceback(error: Exception) -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="rljob-", suffix=".traceback", delete=False) as file:
        file.writelines(traceback.format_exception(error))
    return Path(file.name)
