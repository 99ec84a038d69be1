"""learning.png, from the results that the page shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil
from statistics import mean
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.learning.arms import COUNTDOWN, REVERSE_TEXT, SMOLLM2, TASKS, Arm, Role, Task
from bench.learning.results import Result, of_one_seed
from rljob_trainer.progress.plot import COLOURS

Runs = dict[str, list[Result]]
"""Results of a task by arm, one for each seed."""


_DASHES = ("-", (0, (4, 2)), (3, (4, 2)), (0, (1, 2)), (1.5, (1, 2)), (0, (6, 4)))
"""Of a panel's lines, in turns: what lies under another line is seen between its dashes."""

_MARKERS = "os^Dv*"
"""Each line has them at validations of its own: where lines are one, its markers say whose it is."""


COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class Panel:
    """Some arms of a task. one_seed: only their runs with seed 0. goal: whether its line is drawn."""

    task: Task
    title: str
    roles: tuple[Role, ...]
    one_seed: bool = False
    goal: bool = False


PANELS: Final = (
    *(Panel(task, "", ("main", "held", "control"), goal=True) for task in TASKS),
    Panel(REVERSE_TEXT, ": presets", ("main", "preset")),
    Panel(REVERSE_TEXT, ": vLLM, LoRA and TRL", ("main", "engine", "trl")),
    Panel(REVERSE_TEXT, ": advantages, seed 0", ("main", "advantage"), one_seed=True),
    Panel(REVERSE_TEXT, ": losses, 4 updates a step, seed 0", ("loss",), one_seed=True),
    Panel(SMOLLM2, ": LoRA and TRL", ("main", "engine", "trl")),
    Panel(COUNTDOWN, ": PPO", ("main", "preset")),
)


def figure(found: Sequence[tuple[Arm, list[Result]]]) -> Figure:
    """Each task with its controls, then what is compared; without panels that have fewer than two lines."""
    panels = [(panel, runs) for panel in PANELS if len(runs := _of(found, panel)) > 1]
    rows = max(1, ceil(len(panels) / COLUMNS))
    drawn = Figure(figsize=(4.25 * COLUMNS, 3.75 * rows), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots(rows, COLUMNS, squeeze=False).ravel()
    for place, (panel, runs) in zip(axes, panels, strict=False):
        _draw(place, panel, runs)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    return drawn


def _of(found: Sequence[tuple[Arm, list[Result]]], panel: Panel) -> Runs:
    runs = {arm.name: each for arm, each in found if arm.task is panel.task and arm.role in panel.roles}
    return {name: one for name, each in runs.items() if (one := of_one_seed(each))} if panel.one_seed else runs


def _draw(axes: Axes, panel: Panel, runs: Runs) -> None:
    axes.set_title(f"{panel.task.name}{panel.title}", fontsize=10, fontweight="bold", loc="left")
    count = len(runs)
    looks = zip(cycle(COLOURS), cycle(_DASHES), cycle(_MARKERS), strict=False)  # 7 colours with 6 others: 42 pairs
    for number, ((name, each), (colour, dashes, marker)) in enumerate(zip(runs.items(), looks, strict=False)):
        steps = [step for step, _ in each[0].validation]
        values = np.array([[value for _, value in run.validation] for run in each])
        axes.plot(
            steps, values.mean(axis=0), color=colour, linestyle=dashes, linewidth=1.8, label=name,
            marker=marker, markersize=5, markevery=(number, count),
        )  # fmt: skip
        if len(each) > 1:
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    if panel.goal:
        level = panel.task.level(mean(run.start for run in next(iter(runs.values()))))
        axes.axhline(level, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.03)  # a line at 1 is not cut
    axes.set_xlabel("RL step", fontsize=8.5)
    axes.set_ylabel("reward on held-out prompts", fontsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E4E4E4", linewidth=0.7)
    many = count > len(_MARKERS)
    axes.legend(fontsize=6 if many else 8, ncols=2 if many else 1, frameon=False, loc="best")
