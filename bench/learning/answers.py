"""learning_answers.json: what seed 0 of each task's grpo answered to the same prompts, before RL and after it."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rljob_api.markdown import table
from rljob_trainer.progress.answers import compare_answers
from rljob_trainer.volume import Volume

FILE = "learning_answers.json"

MOST = 6
"""Prompts of a task."""


def keep_answers(task: str, commit: str, run: Path, output: Path) -> None:
    """Add those of a finished run, in place of earlier ones of its task. A run that was never validated has none."""
    first, last, answers = compare_answers(Volume(run), MOST)
    if not answers:
        return
    kept = _read(output) | {
        task: {"commit": commit, "steps": [first, last], "answers": [asdict(answer) for answer in answers]}
    }
    (output / FILE).write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def answer_tables(output: Path) -> Iterator[str]:
    """For the page, a heading and a table for each task."""
    for task, kept in _read(output).items():
        first, last = kept["steps"]
        yield f"{task}, of commit {kept['commit']}:"
        yield table(
            ("question", f"after step {first}", f"after step {last}", "right"),
            [
                [_cell(answer[name]) for name in ("question", "before", "after", "ground_truth")]
                for answer in kept["answers"]
            ],
        )


def _read(output: Path) -> dict[str, Any]:
    file = output / FILE
    return json.loads(file.read_text()) if file.exists() else {}


def _cell(text: str) -> str:
    """One line that Markdown shows as it is."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line}`" if line else ""
