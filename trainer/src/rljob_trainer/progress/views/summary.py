"""The first and last lines of the views for people."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rljob_api.contract import ExitCode, ExitRecord
from rljob_trainer.progress import names
from rljob_trainer.progress.answers import compare_answers
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.views.format import duration
from rljob_trainer.progress.views.watch import RunWatch
from rljob_trainer.volume import Volume

_CURVES = (
    ("sft", names.ACTOR_LOSS, "supervised loss"),
    ("dpo", names.ACTOR_LOSS, "preference loss"),
    ("dpo", names.REWARDS_ACCURACIES, "chosen preferred"),
    ("rl", names.REWARD_MEAN, "reward"),
    ("rl", names.REVERSE_KL, "reverse KL to the teacher"),
    ("rl", names.VALIDATION_REWARD, "validation reward"),
)

_ANSWERS = 5
_WIDTHS = (28, 28, 28, 56)
"""Maximum width of each column of answers."""

_EDGE = 5
"""Steps in the means of a curve's beginning and end, because single steps are noisy."""


def headline(run: RunInfo) -> str:
    ranks = f"{run.ranks} rank{'s' if run.ranks != 1 else ''}"
    parts = (run.name, run.model, f"engine {run.engine}" if run.engine else "", ranks, shown_path(run.directory))
    return " · ".join(part for part in parts if part)


def shown_path(path: Path) -> str:
    """Relative to the current directory if it is inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def summary(run: RunInfo, watch: RunWatch, record: ExitRecord | None, seconds: float) -> list[str]:
    """The outcome, the curves' first and last values, answers, and the error of a failure."""
    if not watch.history:
        before = f"{_outcome(record)} before the first step, after {duration(seconds)}"
        return [before, f"  run: {shown_path(run.directory)}", *_error(record)]
    last = watch.history[-1]["step"]
    lines = [f"{_outcome(record)}: step {last}/{watch.progress.total_steps or last} in {duration(seconds)}"]
    shown = [
        f"{label} {change}" for stage, name, label in _CURVES if (change := _change(watch.series(stage, name), name))
    ]
    if shown:
        lines.append("  " + " · ".join(shown))
    lines.append(f"  run: {shown_path(run.directory)} · curves: rljob plot {shown_path(run.directory)}")
    return lines + _answers(run.directory) + _error(record)


def _answers(directory: Path) -> list[str]:
    """A table of answers before and after training."""
    first, last, answers = compare_answers(Volume(directory), _ANSWERS)
    if not answers:
        return []
    head = ("question", f"step {first}", f"step {last}", "ground truth")
    rows = [head, *((each.question, each.before, each.after, each.ground_truth) for each in answers)]
    cells = [[_cell(text, longest) for text, longest in zip(row, _WIDTHS, strict=True)] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def _cell(text: str, longest: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _error(record: ExitRecord | None) -> list[str]:
    if record is None or record.code in (ExitCode.DONE, ExitCode.STOPPED):
        return []
    return [f"error: {record.field}: {record.message}" if record.field else f"error: {record.message}"]


def _outcome(record: ExitRecord | None) -> str:
    if record is None:
        return "ended without an exit record"
    texts: dict[int, str] = {ExitCode.DONE: "done", ExitCode.STOPPED: "stopped"}
    return texts.get(record.code, f"failed ({record.reason})")


def _change(values: Sequence[float], name: str) -> str:
    """Such as "0.021 -> 0.934"; the first and last validation are not averaged."""
    if not values:
        return ""
    edge = 1 if name == names.VALIDATION_REWARD else max(1, min(_EDGE, len(values) // 2))
    return f"{fmean(values[:edge]):.3f} -> {fmean(values[-edge:]):.3f}"
