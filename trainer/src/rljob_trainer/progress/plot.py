"""`rljob plot`: the curves of one or several runs as small multiples, one colour per run.

The faint line shows the steps, the strong line their local mean. Supervised steps are shaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rljob_trainer.errors import DataError
from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line, read_metrics

Array = NDArray[np.float64]

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, distinct with any colour vision (https://jfly.uni-koeln.de/color/)."""

_PHASES: Final = tuple(name for name in names.PHASE_TIMES if name != names.TIME_START)
"""Without the start of a stage, which happens once and would make all other bars flat."""

PHASE_COLOURS: Final = dict(
    zip(_PHASES, ("#0072B2", "#CC79A7", "#F0E442", "#009E73", "#56B4E9", "#D55E00", "#E69F00"), strict=True)
)
LEAST_SPAN: Final = 0.01
"""An axis spans at least this share of its largest value, so that rounding noise is not magnified."""

SMOOTHING: Final = 40
"""The local mean's standard deviation is one SMOOTHING-th of the curve's length."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run's history; `label` names it in the legend."""

    label: str
    lines: Sequence[Line]

    def series(self, name: str, stage: str = "rl") -> tuple[Array, Array]:
        """Steps and values of a metric, in one stage."""
        pairs = [(line["step"], line[name]) for line in self.lines if name in line and line["stage"] == stage]
        array = np.array(pairs, dtype=float).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    @property
    def supervised_steps(self) -> int:
        return max((line["step"] for line in self.lines if line["stage"] != "rl"), default=0)


@dataclass(frozen=True, slots=True)
class _Panel:
    """points: a metric that only some steps have. unit: by which values are divided."""

    title: str
    name: str
    stages: tuple[str, ...] = ("rl",)
    bottom: float | None = None
    top: float | None = None
    points: str | None = None
    unit: float = 1.0


_ALL: Final = ("sft", "dpo", "rl")
_PANELS: Final = {
    "L": _Panel("Response length (tokens)", names.RESPONSE_LENGTH_MEAN),
    "E": _Panel("Entropy (nats per token)", names.ACTOR_ENTROPY, _ALL),
    "K": _Panel("KL to the reference (nats per token)", names.ACTOR_KL),
    "C": _Panel("Clipped tokens (share)", names.ACTOR_CLIP_FRACTION, bottom=0),
    "N": _Panel("Gradient norm", names.ACTOR_GRAD_NORM, _ALL, bottom=0),
    "D": _Panel("Log-probability: |engine - trainer| (mean, nats)", names.ROLLOUT_LOG_PROB_DIFF_MEAN, bottom=0),
    "M": _Panel("MFU of an update (share)", names.ACTOR_MFU, _ALL, bottom=0),
    "P": _Panel("GPU memory of an update (GiB)", names.MEMORY_UPDATE, _ALL, bottom=0, unit=1 << 30),
    "I": _Panel("Idle engines (share of a step)", names.IDLE_ENGINES, bottom=0, top=1),
    "J": _Panel("Idle ranks (share of a step)", names.IDLE_RANKS, bottom=0, top=1),
    "S": _Panel("Effective sample size (share)", names.ROLLOUT_EFFECTIVE_SAMPLE_SIZE, bottom=0, top=1.05),
}
_REWARD: Final = _Panel(
    "Reward (mean of the step's responses; points: validation)", names.REWARD_MEAN, points=names.VALIDATION_REWARD
)
_SUPERVISED_LOSS: Final = _Panel("Supervised loss (nats per token)", names.ACTOR_LOSS, ("sft",))
_PREFERENCE_LOSS: Final = _Panel("Preference loss (mean of the step's pairs)", names.ACTOR_LOSS, ("dpo",))
_LAYOUT: Final = "RRRRRRRRLLLL;EEEEKKKKCCCC;NNNNDDDDSSSS;{use};TTTTTTTTTTTT"
_USE: Final = {True: "MMMPPPIIIJJJ", False: "IIIIIIJJJJJJ"}
"""Of the hardware: with or without GPUs."""

_INK, _PALE, _GRID = "#444444", "#888888", "#E4E4E4"


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """The histories of run directories with short unique labels. Raises DataError for one without metrics."""
    resolved = [folder.resolve() for folder in folders]
    same = len({folder.name for folder in resolved}) < len(resolved)
    runs = []
    for given, folder in zip(folders, resolved, strict=True):
        lines = read_metrics(folder)
        if not lines:
            raise DataError(f"{given} has no metrics; pass a run's directory, after its first step")
        runs.append(Run(str(given) if same else folder.name, lines))
    return runs


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the file name (png, pdf, svg). Raises DataError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be written: {reason}; choose another --output") from error


def draw(runs: Sequence[Run]) -> Figure:
    """One figure for all runs, with the panels of _LAYOUT."""
    figure = Figure(figsize=(12, 13), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    on_gpus = any(names.MEMORY_UPDATE in line for run in runs for line in run.lines)
    axes = figure.subplot_mosaic(_LAYOUT.format(use=_USE[on_gpus]))
    for one in axes.values():
        _frame(one)
    stages = {line["stage"] for run in runs for line in run.lines}
    _draw_panel(
        axes["R"], _REWARD if "rl" in stages else _PREFERENCE_LOSS if "dpo" in stages else _SUPERVISED_LOSS, runs
    )
    for label in _PANELS.keys() & axes.keys():
        _draw_panel(axes[label], _PANELS[label], runs)
    if len(runs) == 1:
        _draw_times(axes["T"], runs[0])
    else:
        _compare_times(axes["T"], runs)
    _head(figure, runs)
    return figure


def smooth(values: Array) -> Array:
    """Local mean with a centred Gaussian window; a trailing mean would show every rise late."""
    deviation = max(1.0, len(values) / SMOOTHING)
    distance = np.arange(-3 * round(deviation), 3 * round(deviation) + 1)
    window = np.exp(-0.5 * (distance / deviation) ** 2)
    total = np.convolve(values, window)[len(distance) // 2 :][: len(values)]
    weight = np.convolve(np.ones_like(values), window)[len(distance) // 2 :][: len(values)]
    return np.asarray(total / weight)


def _draw_panel(axes: Axes, panel: _Panel, runs: Sequence[Run]) -> None:
    _title(axes, panel.title)
    for run, colour in zip(runs, _colours(runs), strict=True):
        for stage in panel.stages:
            steps, values = run.series(panel.name, stage)
            _curve(axes, steps, values / panel.unit, colour)
        if panel.points is not None and len(at := run.series(panel.points)[0]):
            values = run.series(panel.points)[1]
            axes.plot(at, values, "o", color=colour, markeredgecolor="white", markersize=7, label="validation")
    _finish(axes, runs)
    if axes.lines:
        axes.set_ylim(panel.bottom, panel.top)


def _draw_times(axes: Axes, run: Run) -> None:
    _title(axes, "Time of a step (seconds)")
    lines = [line for line in run.lines if names.TIME_STEP in line]
    steps = np.array([line["step"] for line in lines], dtype=float)
    parts = {name: np.array([line.get(name, 0.0) for line in lines]) for name in _PHASES}
    parts = {name: values for name, values in parts.items() if values.any()}
    if parts:
        axes.stackplot(
            steps, *parts.values(), step="mid", linewidth=0,
            labels=[names.short(name) for name in parts], colors=[PHASE_COLOURS[name] for name in parts],
        )  # fmt: skip
    _finish(axes, [run])
    _legend(axes)


def _compare_times(axes: Axes, runs: Sequence[Run]) -> None:
    """Mean over the RL steps, one bar per run."""
    _title(axes, "Mean time of an RL step (seconds)")
    rows = np.arange(len(runs))
    left = np.zeros(len(runs))
    counts = [max(1, len(run.series(names.TIME_STEP)[0])) for run in runs]
    for name in _PHASES:
        widths = np.array([run.series(name)[1].sum() / count for run, count in zip(runs, counts, strict=True)])
        if widths.any():
            axes.barh(rows, widths, left=left, color=PHASE_COLOURS[name], label=names.short(name), height=0.6)
            left += widths
    axes.set_yticks(rows, [run.label for run in runs])
    axes.invert_yaxis()
    _legend(axes)


def _curve(axes: Axes, steps: Array, values: Array, colour: str) -> None:
    if not len(steps):
        return
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.9, label="raw")
    axes.plot(steps, smooth(values), color=colour, linewidth=1.9, label="smoothed")


def _frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#BBBBBB")
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=8.5, length=0)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, fontweight="bold", color=_INK, loc="left")


def _finish(axes: Axes, runs: Sequence[Run]) -> None:
    """Set the x axis to steps, equal for all panels, and shade supervised ones."""
    axes.set_xlabel("step", fontsize=8.5, color=_INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not axes.has_data():
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=_PALE)
        axes.set(xticks=[], yticks=[])
        return
    axes.set_xlim(0, max(line["step"] for run in runs for line in run.lines) + 0.5)
    _widen(axes)
    for run, colour in zip(runs, _colours(runs), strict=True):
        axes.axvspan(
            0, run.supervised_steps, color=colour if len(runs) > 1 else _PALE, alpha=0.1, linewidth=0, zorder=0
        )
    if supervised := max(run.supervised_steps for run in runs):
        axes.text(supervised / 2, 0.98, "SFT", transform=axes.get_xaxis_transform(), ha="center", va="top",
                  fontsize=8.5, color=_PALE)  # fmt: skip


def _widen(axes: Axes) -> None:
    low, high = axes.get_ylim()
    missing = LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    if missing > 0:
        axes.set_ylim(low - missing / 2, high + missing / 2)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=8,
                    labelcolor=_INK, handlelength=1.2, columnspacing=1.4)  # fmt: skip


def _head(figure: Figure, runs: Sequence[Run]) -> None:
    if len(runs) == 1:
        figure.suptitle(runs[0].label, fontsize=13, fontweight="bold", color="#222222")
        return
    handles = [figure.axes[0].plot([], [], color=colour, linewidth=2.5)[0] for colour in _colours(runs)]
    figure.legend(handles, [run.label for run in runs], loc="outside upper center", ncols=min(4, len(runs)),
                  frameon=False, fontsize=10)  # fmt: skip


def _colours(runs: Sequence[Run]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(runs))]
