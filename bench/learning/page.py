"""learning.md and learning.png, from the newest result of each arm and seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.learning.arms import CONTROL_BAND, CONTROL_SHARE, TASKS, UNCHANGED, Arm, Role, Task, control_band
from bench.learning.data import digest, validation_prompts
from bench.learning.results import CLOSING, LAST, Result, newest, of_these
from bench.learning.training import known_arms
from rljob_trainer.plot import COLOURS
from rljob_trainer.progress import names

Runs = dict[str, list[Result]]
"""Results of a task by arm, one for each seed."""

_METHOD = """Each task is its example: [reverse-text](../../examples/reverse-text/README.md),
[addition](../../examples/addition/README.md), [countdown](../../examples/countdown/README.md). Rewards are of greedy
responses to held-out prompts, after the supervised steps (start) and after the last RL step (end):
{prompts}.
Training never sees them, nor a sum with its numbers exchanged or another target of the same numbers. The controls are
the same jobs with a learning rate of 0, and with every response paid the reward of another one."""


_SHUFFLED = """Rewards that say nothing move the weights all the same: advantages keep their size, so Adam's steps are
as large as ever, and lead away from what the supervised steps had taught."""

_ONE_SEED = """On reverse-text, seed 0, with grpo's learning rate and aggregation of tokens for all of them. Losses are
compared with four updates a step, because with one no ratio leaves 1."""

_NOT_RUN = "Not run yet."


def write_page(results: Iterable[Result], folder: Path) -> bool:
    """Returns False, and writes nothing, where no run of the tasks as they are now is finished."""
    last = newest(of_these(results, {task.name: digest(task) for task in TASKS}))
    every = [
        (arm, [last[key] for seed in arm.seeds if (key := (arm.task.name, arm.name, seed)) in last])
        for arm in known_arms()
    ]
    found = [(arm, runs) for arm, runs in every if runs]
    if found:
        figure(found).savefig(folder / "learning.png", dpi=120)
        (folder / "learning.md").write_text("\n\n".join(_parts(every)) + "\n")
    return bool(found)


def _parts(every: Sequence[tuple[Arm, list[Result]]]) -> list[str]:
    found = [(arm, runs) for arm, runs in every if runs]
    runs = [run for _, each in found for run in each]
    return [
        "# Learning",
        _about(runs),
        _METHOD.format(prompts=_prompts()),
        "![Reward on held-out prompts](learning.png)",
        "## Goals",
        _table(("task", "arm", "start", "end, each seed", "goal", "reached", "commit"), _goals(every)),
        _SHUFFLED,
        "## TRL",
        _comparison(found),
        "## Advantages and losses",
        _ONE_SEED,
        _registry(found),
        "## What a practitioner checks",
        f"Means over the last {LAST} steps, over all seeds. Every step of every run has them in its metrics.",
        _table(("task", "arm", *(_heading(name) for name in CLOSING)), _closing(found)),
        "## Machines",
        _table(("machine", "versions", "commit", "runs", "s a run"), _machines(runs)),
    ]


def _about(runs: Sequence[Result]) -> str:
    hours = sum(run.seconds for run in runs) / 3600
    dates = sorted({run.date for run in runs})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"`make bench-learning`; {len(runs)} runs that took {hours:.1f} hours, several at a time; {when}. Written by"
        " the benchmark from [learning.jsonl](learning.jsonl), which has every run with its commit, machine and curves."
    )


def _prompts() -> str:
    """How many each task is validated on, and how many of them differ."""
    found = {task.name: validation_prompts(task) for task in TASKS}
    return ", ".join(f"{len(each)} prompts of {name} ({len(set(each))} different ones)" for name, each in found.items())


def _goals(every: Sequence[tuple[Arm, list[Result]]]) -> list[list[str]]:
    rows = []
    for arm, runs in every:
        if arm.role in ("main", "engine"):
            goal = arm.task.goal_text
            reached = [arm.task.reached(run.start, run.end) for run in runs]
        elif arm.name == UNCHANGED:
            goal = "its start, at every validation"
            reached = [all(value == run.start for _, value in run.validation) for run in runs]
        elif arm.role == "control":
            goal = f"never more than {CONTROL_BAND:g}, nor {CONTROL_SHARE:.0%} of the way to 1, over its start"
            reached = [max(value for _, value in run.validation) <= run.start + control_band(run.start) for run in runs]
        else:
            continue
        ends = ", ".join(f"{run.end:.3f}" for run in runs)
        said = "yes" if sum(reached) == len(arm.seeds) else f"{sum(reached)} of {len(arm.seeds)}"
        if unfinished := len(arm.seeds) - len(runs):
            said += f", {unfinished} not run yet"
        commits = ", ".join(dict.fromkeys(run.commit for run in runs))
        start = _range([run.start for run in runs]) if runs else ""
        rows.append([arm.task.name, arm.name, start, ends, goal, said, commits])
    return rows


def _comparison(found: Sequence[tuple[Arm, list[Result]]]) -> str:
    by_role = {arm.role: runs for arm, runs in found if arm.task is TASKS[0]}
    ours, theirs = by_role.get("main", []), by_role.get("trl", [])
    if not ours or not theirs:
        return _NOT_RUN
    figures = {
        name: ([run.start for run in runs], [run.end for run in runs], list(map(_whole, runs)))
        for name, runs in (("ours", ours), ("TRL", theirs))
    }
    rows = [
        [name, *map(_range, values), _range([run.seconds for run in runs], digits=0)]
        for (name, values), runs in zip(figures.items(), (ours, theirs), strict=True)
    ]
    level = all(mean(own) >= min(other) for own, other in zip(figures["ours"], figures["TRL"], strict=True))
    verdict = "Ours is within the range of TRL's seeds, or above it" if level else "Ours is below all of TRL's seeds"
    about = (
        "TRL's GRPOTrainer, generating with transformers, from the weights that our run has after its supervised steps;"
        f" the same data, rewards and hyper-parameters, {ours[0].samples} samples a step for both. Mean, and the range"
        f" over {len(ours)} and {len(theirs)} seeds. TRL's trainer takes biases and norms out of the weight decay,"
        " begins its warm-up with a step of 0, and adds 1e-4 to a group's standard deviation where ours adds 1e-6. Its"
        " seconds hold our supervised steps and the export; several runs shared a machine."
    )
    head = ("reverse-text", "start", "end", "mean over all validations", "s a run")
    return f"{about}\n\n{_table(head, rows)}\n\n{verdict}, in the mean, at equal samples."


def _whole(run: Result) -> float:
    """The height of its curve."""
    return mean(value for _, value in run.validation)


def _registry(found: Sequence[tuple[Arm, list[Result]]]) -> str:
    rows = [
        [arm.name, f"{runs[0].start:.3f}", f"{runs[0].end:.3f}", f"{runs[0].closing[names.ACTOR_CLIP_FRACTION]:.4f}"]
        for arm, runs in found
        if arm.role in ("advantage", "loss") or (arm.task is TASKS[0] and arm.role == "main")
    ]
    return _table(("arm", "start", "end", "clipped tokens (share)"), rows) if rows else _NOT_RUN


def _closing(found: Sequence[tuple[Arm, list[Result]]]) -> list[list[str]]:
    rows = []
    for arm, runs in found:
        if arm.role != "trl":
            values = [[run.closing[name] for run in runs if name in run.closing] for name in CLOSING]
            rows.append([arm.task.name, arm.name, *(f"{mean(each):.3g}" if each else "" for each in values)])
    return rows


def _heading(name: str) -> str:
    metric = names.METRICS[name]
    return f"{name} ({metric.unit})" if metric.unit else name


def _machines(runs: Sequence[Result]) -> list[list[str]]:
    kinds = dict.fromkeys(_kind(run) for run in runs)
    rows = []
    for kind in kinds:
        seconds = [run.seconds for run in runs if _kind(run) == kind]
        rows.append([*kind, str(len(seconds)), f"{min(seconds):.0f} to {max(seconds):.0f}"])
    return rows


def _kind(run: Result) -> tuple[str, str, str]:
    return run.device, run.packages, run.commit


def _range(values: Sequence[float], digits: int = 3) -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---------------------------------------------------------------------- picture


def figure(found: Sequence[tuple[Arm, list[Result]]]) -> Figure:
    """Above, each task with its controls; below, reverse-text by engine and TRL, by advantage, by loss."""
    drawn = Figure(figsize=(13, 7.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    axes = drawn.subplots(2, 3)
    for place, task in zip(axes[0], TASKS, strict=True):
        _panel(place, task.name, _of(found, task, ("main", "control")), goal=task)
    below: list[tuple[str, tuple[Role, ...]]] = [
        ("reverse-text: engines and TRL", ("main", "engine", "trl")),
        ("reverse-text: advantages", ("main", "advantage")),
        ("reverse-text: losses, four updates a step", ("loss",)),
    ]
    for place, (title, roles) in zip(axes[1], below, strict=True):
        runs = _of(found, TASKS[0], roles)
        _panel(place, title, {name: each[:1] for name, each in runs.items()} if "advantage" in roles else runs)
    return drawn


def _of(found: Sequence[tuple[Arm, list[Result]]], task: Task, roles: Sequence[Role]) -> Runs:
    return {arm.name: runs for arm, runs in found if arm.task is task and arm.role in roles}


def _panel(axes: Axes, title: str, runs: Runs, goal: Task | None = None) -> None:
    axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
    for (name, each), colour in zip(runs.items(), COLOURS[: len(runs)], strict=True):
        steps = [step for step, _ in each[0].validation]
        values = np.array([[value for _, value in run.validation] for run in each])
        axes.plot(steps, values.mean(axis=0), color=colour, linewidth=1.8, label=name)
        if len(each) > 1:
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    if goal is not None and runs:
        main = next(iter(runs.values()))
        level = goal.goal + (mean(run.start for run in main) if goal.above_start else 0.0)
        axes.axhline(level, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1)
    axes.set_xlabel("RL step", fontsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E4E4E4", linewidth=0.7)
    if not runs:
        axes.text(0.5, 0.5, "not run yet", ha="center", va="center", color="#888888")
        axes.set_xticks([])
    else:
        axes.legend(fontsize=8, frameon=False, loc="best")
