"""One line per step, for logs and pipes.

step  1/60 sft loss 2.713 | 53120 tok/s | update 0.05 | eta 0:03
step 12/60 rl  reward  0.512 len    7.9 kl 0.0012 ent 1.20 |  3150 tok/s | rollout  0.41 rewards  0.02 update  0.22 ...
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from rich.console import Console

from rljob_api.contract import ExitRecord
from rljob_api.printable import printable
from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.views.format import duration
from rljob_trainer.progress.views.summary import headline, summary
from rljob_trainer.progress.views.watch import RunWatch
from rljob_trainer.volume import Volume

SFT_INTERVAL = 5.0
"""Minimum seconds between two printed supervised steps."""

_RL_VALUES = (
    (names.REWARD_MEAN, "reward", "6.3f"),
    (names.RESPONSE_LENGTH_MEAN, "len", "6.1f"),
    (names.ACTOR_KL, "kl", ".4f"),
    (names.REVERSE_KL, "reverse kl", ".4f"),
    (names.ACTOR_ENTROPY, "ent", ".2f"),
    (names.VALIDATION_REWARD, "validation", ".3f"),
)
_SUPERVISED_VALUES = ((names.ACTOR_LOSS, "loss", ".3f"), (names.REWARDS_ACCURACIES, "preferred", ".3f"))
_LOOP_PHASES = {names.short(name) for name in names.PHASE_TIMES}
_QUICK = 0.005
"""Occasional phases shorter than this many seconds are not printed."""


class PlainView:
    def __init__(self, run: RunInfo, console: Console) -> None:
        self._run, self._console = run, console
        self._watch = RunWatch(Volume(run.directory))
        self._started = time.monotonic()
        self._printed = 0.0

    def start(self) -> None:
        self._print(headline(self._run))

    def poll(self) -> None:
        news = self._watch.poll()
        for warning in news.warnings:
            self._print(warning)
        if news.phase and news.phase not in _LOOP_PHASES:
            self._print(news.phase)
        for line in news.lines:
            self._step(line)

    def note(self, message: str) -> None:
        self._print(message)

    def finish(self, record: ExitRecord | None) -> None:
        self.poll()
        for line in summary(self._run, self._watch, record, time.monotonic() - self._started):
            self._print(line)

    def _step(self, line: Line) -> None:
        """Print an RL step; of supervised steps, one every SFT_INTERVAL."""
        if line["stage"] != "rl" and line["time"] - self._printed < SFT_INTERVAL:
            return
        self._printed, progress = line["time"], self._watch.progress
        eta = (progress.eta - datetime.now(UTC)).total_seconds() if progress.eta else None
        self._print(step_line(line, progress.total_steps, eta))

    def _print(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def step_line(line: Mapping[str, float | str], total_steps: int, eta: float | None) -> str:
    """eta: seconds to the end of the run."""
    total = str(total_steps or "?")
    values = _RL_VALUES if line["stage"] == "rl" else _SUPERVISED_VALUES
    shown = [f"{label} {line[name]:{form}}" for name, label, form in values if name in line]
    blocks = [f"step {line['step']:>{len(total)}}/{total} {line['stage']:<3} {' '.join(shown)}"]
    if names.TOKENS_PER_SECOND in line:
        blocks.append(f"{line[names.TOKENS_PER_SECOND]:5.0f} tok/s")
    if times := _times(line):
        blocks.append(times)
    if eta is not None:
        blocks.append(f"eta {duration(eta)}")
    return " | ".join(blocks)


def _times(line: Mapping[str, float | str]) -> str:
    """The phases of every step first, so that lines stay aligned; then others that took time."""
    always = (names.TIME_ROLLOUT, names.TIME_REWARDS, names.TIME_UPDATE, names.TIME_SYNC)
    found = {name: float(line[name]) for name in names.PHASE_TIMES if name in line}
    shown = [name for name in found if name in always or found[name] >= _QUICK]
    return " ".join(
        f"{names.short(name)} {found[name]:5.2f}" for name in sorted(shown, key=lambda name: name not in always)
    )
