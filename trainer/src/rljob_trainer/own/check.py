"""Tries the user's functions in a process of its own, before anything starts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rljob_api import ResolvedSpec
from rljob_trainer.errors import JobError, first_line
from rljob_trainer.own.load import FIELDS, with_own_functions

SECONDS = 120.0
"""Deadline of loading the code and of two calls."""

RESULT = "rljob-errors: "
"""Begins the line of the trial's output that is its result: the user's code may print before and after it."""


def check_own_functions(spec: ResolvedSpec, base_dir: Path) -> None:
    """Raise JobError for the first error."""
    for error in own_function_errors(spec, base_dir):
        raise error


def own_function_errors(spec: ResolvedSpec, base_dir: Path) -> Iterator[JobError]:
    """All errors of algorithm.advantageFrom and lossFrom: of loading, signature, shapes, numbers, gradient."""
    fields = [field for name, field in FIELDS.items() if getattr(spec.algorithm, name) is not None]
    if not fields:
        return
    algorithm = with_own_functions(spec, base_dir).algorithm
    asked = json.dumps({"algorithm": algorithm.model_dump(mode="json"), "values": spec.critic is not None})
    command = [sys.executable, "-P", "-m", "rljob_trainer.own.trial"]
    try:
        tried = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield JobError(f"its first call took more than {SECONDS:g} s; correct the code", field=fields[0])
        return
    results = [line for line in tried.stdout.splitlines() if line.startswith(RESULT)]
    if tried.returncode or not results:
        last = (tried.stderr.strip() or "no output").splitlines()[-1]
        yield JobError(
            f"it ended its process with code {tried.returncode}: {first_line(ValueError(last))}; correct the code",
            field=fields[0],
        )
        return
    for field, message in json.loads(results[-1].removeprefix(RESULT)):
        yield JobError(message, field=field)
