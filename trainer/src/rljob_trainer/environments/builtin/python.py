"""python: a program in a process of its own, confined as docs/sandbox.md says."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rljob_trainer.environments.builtin import ToolUnusable
from rljob_trainer.environments.tools import ToolBroken
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.sandbox import Limits, Outcome, run

_CHARACTERS = 4000
"""Of what the policy reads of a program's output: its beginning and its end."""

_ENDS = {
    "timed_out": "Error: the program ran longer than {seconds:g} s",
    "too_much_output": "Error: the program printed too much",
    "too_much_disk": "Error: the program wrote too many or too large files",
}


def make(settings: Mapping[str, Any], _base_dir: Path) -> Callable[..., Any]:
    seconds = float(settings["seconds"])
    try:
        run("")
    except InfrastructureError as error:
        raise ToolUnusable(str(error)) from error

    def python(code: str) -> str:
        """Run a Python program and return what it prints. It has no network, and keeps nothing between calls.

        Args:
            code: The program. Print the result.
        """
        try:
            return observed(run(code, limits=Limits(seconds=seconds)), seconds)
        except InfrastructureError as error:
            raise ToolBroken(str(error)) from error

    return python


def observed(outcome: Outcome, seconds: float) -> str:
    """What the policy reads: the output, and how the program failed."""
    parts = [outcome.stdout.strip()]
    if outcome.status == "failed":
        parts.append(outcome.stderr.strip() or f"Error: the program ended with exit code {outcome.exit_code}")
    elif outcome.status != "finished":
        parts.append(_ENDS[outcome.status].format(seconds=seconds))
    return _shortened("\n".join(part for part in parts if part)) or "The program printed nothing."


def _shortened(text: str) -> str:
    half = _CHARACTERS // 2
    return text if len(text) <= _CHARACTERS else f"{text[:half]}\n...\n{text[-half:]}"
