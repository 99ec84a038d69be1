"""The run as a terminal display of at least 80 columns, redrawn after changes."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from rljob_api.contract import ExitRecord
from rljob_api.printable import printable
from rljob_trainer.progress import names
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.views.format import duration, sparkline
from rljob_trainer.progress.views.summary import headline, shown_path, summary
from rljob_trainer.progress.views.watch import RunWatch
from rljob_trainer.volume import Volume

REDRAW_CHANGED, REDRAW_ALWAYS = 0.25, 1.0
"""Minimum seconds between two drawings, after a change and without one (for the phase's clock)."""

_REWARDS = (
    (names.REWARD_MEAN, "reward", ".3f", "bold green"),
    (names.VALIDATION_REWARD, "validation", ".3f", "green"),
    (names.RESPONSE_LENGTH_MEAN, "response length", ".1f", "cyan"),
    (names.ACTOR_KL, "KL", ".4f", "cyan"),
    (names.REVERSE_KL, "reverse KL", ".4f", "cyan"),
)
_ACTOR = (
    (names.ACTOR_ENTROPY, "entropy", ".3f", "cyan"),
    (names.ACTOR_GRAD_NORM, "gradient norm", ".3f", "cyan"),
    (names.TOKENS_PER_SECOND, "tokens/s", ",.0f", "cyan"),
)
_LOSS = (names.ACTOR_LOSS, "loss", ".3f", "bold green")
_PAIRS = (
    (names.REWARDS_ACCURACIES, "chosen preferred", ".3f", "bold green"),
    (names.REWARDS_MARGINS, "margin", ".3f", "cyan"),
)
_CURVES = {"sft": (_LOSS, *_ACTOR), "dpo": (_LOSS, *_PAIRS, *_ACTOR), "rl": (*_REWARDS, *_ACTOR)}
_PHASE_COLOURS = dict(
    zip(names.PHASE_TIMES, ("blue", "magenta", "yellow", "green", "cyan", "red", "white", "bright_black"), strict=True)
)
_MAX_WIDTH = 100


class LiveView:
    def __init__(self, run: RunInfo, console: Console) -> None:
        self._run, self._console = run, console
        self._watch = RunWatch(Volume(run.directory))
        self._started = self._drawn = time.monotonic()
        self._changed = False
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self.render)

    def start(self) -> None:
        self._live.start(refresh=True)

    def poll(self) -> None:
        news = self._watch.poll()
        for warning in news.warnings:
            self._print(warning, style="yellow")
        self._changed = self._changed or bool(news)
        if time.monotonic() - self._drawn >= (REDRAW_CHANGED if self._changed else REDRAW_ALWAYS):
            self._drawn, self._changed = time.monotonic(), False
            self._live.refresh()

    def note(self, message: str) -> None:
        self._print(message)

    def finish(self, record: ExitRecord | None) -> None:
        self._watch.poll()
        self._live.stop()
        self._print(headline(self._run))
        for line in summary(self._run, self._watch, record, time.monotonic() - self._started):
            self._print(line)

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """The whole display."""
        run, width = self._run, min(self._console.width, _MAX_WIDTH)
        subtitle = " · ".join(part for part in (run.model, run.engine, f"ranks {run.ranks}") if part)
        rows = [Text(subtitle, style="dim", no_wrap=True, overflow="ellipsis"), self._progress(), self._curves(width)]
        return Panel(
            Group(*rows, *self._phases(width - 4)),
            title=Text(f" {run.name} ", style="bold"),
            subtitle=Text(f" {shown_path(run.directory)} ", style="dim"),
            title_align="left", subtitle_align="right", width=width, border_style="blue",
        )  # fmt: skip

    def _progress(self) -> RenderableType:
        progress = self._watch.progress
        row = Table.grid(Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True), expand=True, padding=(0, 1))
        eta = duration((progress.eta - datetime.now(UTC)).total_seconds()) if progress.eta else "-:--"
        counted = f"{progress.stage:<3} step {progress.step}/{progress.total_steps or '?'}"
        bar = ProgressBar(
            total=max(1, progress.total_steps), completed=progress.step, complete_style="green", finished_style="green"
        )
        row.add_row(counted, bar, f"{progress.percent:.0f} %  eta {eta}")
        now = f"{printable(progress.phase) or 'starting'} {duration(self._watch.phase_seconds())}"
        elapsed = f"elapsed {duration(time.monotonic() - self._started)}"
        row.add_row(Text(now, style="yellow"), "", Text(elapsed, style="dim", justify="right"))
        return row

    def _curves(self, width: int) -> RenderableType:
        table = Table.grid(Column(width=15), Column(width=10, justify="right"), Column(), padding=(0, 1))
        stage = self._watch.progress.stage
        for name, label, form, colour in _CURVES.get(stage, ()):
            if values := self._watch.series(stage, name):
                curve = sparkline(values, width - 34)
                table.add_row(label, Text(f"{values[-1]:{form}}", style="bold"), Text(curve, style=colour))
        return table

    def _phases(self, width: int) -> Iterator[RenderableType]:
        """The last step's time by phase."""
        line = self._watch.history[-1] if self._watch.history else {}
        times = {name: line[name] for name in names.PHASE_TIMES if line.get(name, 0.0) > 0}
        total = sum(times.values())
        if not total:
            return
        bar, legend = Text(no_wrap=True), []
        for name, seconds in times.items():
            colour = _PHASE_COLOURS[name]
            bar.append("█" * round(width * seconds / total), style=colour)
            legend.append(Text("■ ", style=colour).append(f"{names.short(name)} {seconds:.2f} s", style="default"))
        yield Text()
        yield bar
        yield Columns(legend, padding=(0, 2))
