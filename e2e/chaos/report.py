"""What the faults cost, as a table and a picture."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean

import numpy as np

from e2e.chaos.faults import KINDS, Kind
from e2e.chaos.steps import effective_time_ratio
from e2e.chaos.trial import Struck, Trial

FAULT_EVERY_SECONDS = 600.0
"""Time of training between two faults, for the ETTR of one kind."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Trials of one job. calm: undisturbed runs. verdict: how the disturbed ones compare with them, in a sentence."""

    title: str
    calm: Sequence[Trial]
    trials: Sequence[Trial]
    verdict: str

    @property
    def struck(self) -> list[Struck]:
        return [each for trial in self.trials for each in trial.struck]

    @property
    def effective_time_ratio(self) -> float:
        """ETTR of the disturbed runs, their mean."""
        return self._ratio(self.trials)

    @property
    def undisturbed_ratio(self) -> float:
        """ETTR of the undisturbed runs, their mean."""
        return self._ratio(self.calm)

    def _ratio(self, trials: Sequence[Trial]) -> float:
        calm = [line for each in self.calm for line in each.rl_steps]
        if not calm or not trials:  # an undisturbed run has failed, and the verdict says so
            return nan
        return fmean(effective_time_ratio(calm, len(each.rl_steps), each.seconds) for each in trials)


@dataclass(frozen=True, slots=True)
class Goal:
    """seconds: at most so many from the kill of such a process to the end of the next optimizer step."""

    kind: Kind
    engine: str
    seconds: float


GOALS = (Goal("driver", "", 10.0), Goal("engine", "hf", 5.0), Goal("engine", "vllm", 30.0))
STALL_GOAL = 0.05
"""Seconds for which a checkpoint may keep the training of a tiny model waiting."""


def goals(campaigns: Sequence[Campaign]) -> str:
    """Markdown: each goal, and how often it was met; of faults that had another process frozen beside them, apart."""
    rows = ["| | goal | times | met | p50 | p95 | longest |", "|---" * 7 + "|"]
    for goal in GOALS:
        kills = [
            each
            for campaign in campaigns
            if campaign.title.startswith(goal.engine)
            for each in campaign.struck
            if (each.fault.kind, each.fault.signal) == (goal.kind, "SIGKILL")
        ]
        name = f"{goal.engine} {goal.kind} killed to next update".strip()
        for alone, what in ((True, name), (False, f"{name}, while another process was still frozen")):
            rows += _goal(what, [each.next_update for each in kills if each.alone is alone], goal.seconds, "s", 1)
    stalls = [1000 * stall for each in campaigns for calm in each.calm for stall in calm.stalls]
    return "\n".join(rows + _goal("training waits for a checkpoint", stalls, 1000 * STALL_GOAL, "ms", 0))


def _goal(name: str, values: Sequence[float], goal: float, unit: str, digits: int) -> list[str]:
    """No row where nothing was measured."""
    if not values:
        return []
    met = sum(value < goal for value in values)
    shown = (f"{value:.{digits}f} {unit}" for value in (*percentiles(values), max(values)))
    return [f"| {name} | < {goal:g} {unit} | {len(values)} | {met} | {' | '.join(shown)} |"]


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """The 50th and the 95th, each one of the values: between one that is inf and another there is nothing."""
    p50, p95 = np.percentile(values, (50, 95), method="inverted_cdf")
    return float(p50), float(p95)


def table(campaign: Campaign) -> str:
    """Markdown: one row for each kind of fault."""
    groups: dict[str, list[Struck]] = defaultdict(list)
    for each in campaign.struck:
        groups[f"{each.fault.kind} {each.fault.signal}"].append(each)
    order = {kind: index for index, kind in enumerate(KINDS)}
    head = (
        "| fault | times | next update, s: p50 | p95 | next new step, s: p50 | p95 "
        "| repeated updates: mean | max | journaled groups | ETTR |"
    )
    names = sorted(groups, key=lambda name: (order[groups[name][0].fault.kind], name))
    rows = [_row(name, groups[name]) for name in names]
    return "\n".join([head, "|---" * 10 + "|", *rows, _row("**all**", campaign.struck)])


def _row(name: str, struck: Sequence[Struck]) -> str:
    update, step = ([getattr(each, field) for each in struck] for field in ("next_update", "next_step"))
    repeated = [each.repeated for each in struck]
    cells = [
        name, str(len(struck)), *(f"{value:.1f}" for values in (update, step) for value in percentiles(values)),
        f"{np.mean(repeated):.1f}", str(max(repeated)), str(sum(each.journaled for each in struck)),
        f"{FAULT_EVERY_SECONDS / (FAULT_EVERY_SECONDS + np.mean(step)):.3f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def draw(campaigns: Sequence[Campaign], path: Path) -> None:
    """Seconds to the next update, every fault a dot, by kind."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    dice = np.random.default_rng(0)
    for number, campaign in enumerate(campaigns):
        struck = campaign.struck
        height = [KINDS.index(each.fault.kind) + dice.uniform(-0.25, 0.25) for each in struck]
        colours = [f"C{number}" for _ in struck]
        killed = [each.fault.signal == "SIGKILL" for each in struck]
        for signal, marker in ((True, "o"), (False, "s")):
            chosen = [i for i, each in enumerate(killed) if each is signal]
            label = f"{campaign.title}, {'SIGKILL' if signal else 'SIGSTOP'}"
            x = [struck[i].next_update for i in chosen]
            axes.scatter(
                x,
                [height[i] for i in chosen],
                s=22,
                marker=marker,
                c=[colours[i] for i in chosen],
                label=label,
                alpha=0.7,
            )
    axes.set_yticks(range(len(KINDS)), KINDS)
    axes.set_xscale("log")
    axes.set_xlabel("seconds from the signal to the next optimizer step")
    figure.legend(fontsize=7, loc="outside lower center", ncols=4)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)
