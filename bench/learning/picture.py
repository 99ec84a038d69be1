"""learning.png, from the results that the page shows."""

from collections.abc import Sequence
from itertools import cycle
from statistics import mean

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


def figure(found: Sequence[tuple[Arm, list[Result]]]) -> Figure:
    """Above, each task with its controls; then tasks beside TRL and LoRA, and reverse-text by preset and its parts."""
    drawn = Figure(figsize=(25, 7.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots(2, 6).ravel()
    for place, task in zip(axes, TASKS, strict=False):
        _panel(place, task.name, _of(found, task, ("main", "held", "control")), goal=task)
    others: list[tuple[Task, str, tuple[Role, ...], bool]] = [
        (REVERSE_TEXT, "presets", ("main", "preset"), False),
        (REVERSE_TEXT, "vLLM, LoRA and TRL", ("main", "engine", "trl"), False),
        (REVERSE_TEXT, "advantages, seed 0", ("main", "advantage"), True),
        (REVERSE_TEXT, "losses, 4 updates a step, seed 0", ("loss",), True),
        (SMOLLM2, "LoRA and TRL", ("main", "engine", "trl"), False),
        (COUNTDOWN, "PPO", ("main", "preset"), False),
    ]
    for place, (task, title, roles, one_seed) in zip(axes[len(TASKS) :], others, strict=False):
        runs = _of(found, task, roles)
        if one_seed:
            runs = {name: one for name, each in runs.items() if (one := of_one_seed(each))}
        _panel(place, f"{task.name}: {title}", runs)
    for place in axes[len(TASKS) + len(others) :]:
        place.set_axis_off()
    return drawn


def _of(found: Sequence[tuple[Arm, list[Result]]], task: Task, roles: Sequence[Role]) -> Runs:
    return {arm.name: runs for arm, runs in found if arm.task is task and arm.role in roles}


def _panel(axes: Axes, title: str, runs: Runs, goal: Task | None = None) -> None:
    axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
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
    if goal is not None and runs:
        main = next(iter(runs.values()))
        level = goal.level(mean(run.start for run in main))
        axes.axhline(level, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.03)  # a line at 1 is not cut
    axes.set_xlabel("RL step", fontsize=8.5)
    axes.set_ylabel("reward on held-out prompts", fontsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E4E4E4", linewidth=0.7)
    if not runs:
        axes.text(0.5, 0.5, "not run yet", ha="center", va="center", color="#888888")
        axes.set_xticks([])
    else:
        many = count > len(_MARKERS)
        axes.legend(fontsize=6 if many else 8, ncols=2 if many else 1, frameon=False, loc="best")
