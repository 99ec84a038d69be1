"""agents.md and agents.png, from agents.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.agents.jobs import EPISODES, IDLE_SECONDS, SAMPLES, SLEEP, TOKENS, TURNS
from bench.agents.measure import BIN, Idle, Played, Single

GOAL = 0.95
"""The engine's busy share with sleeps, over that without."""

QUIET = 0.5
"""Cores that other programs may use before a run."""

_COLOURS = {"without sleeps": "#0072B2", "1 s in each step": "#D55E00"}


@dataclass(frozen=True, slots=True)
class Results:
    """calm, slept: repetitions in turns. idle: by how the environment sleeps. plain, one_turn: repetitions in turns."""

    command: str
    commit: str
    date: str
    machine: str
    calm: Sequence[Played]
    slept: Sequence[Played]
    idle: Mapping[str, Idle]
    plain: Sequence[Single]
    one_turn: Sequence[Single]

    def kept(self) -> list[float]:
        """Of the repetitions: the busy share with sleeps, over that without."""
        return [slept.busy / calm.busy for slept, calm in zip(self.slept, self.calm, strict=True)]

    def speed(self) -> list[float]:
        """Of the repetitions: tokens a second of whole steps, as an environment of one turn over plain."""
        return [one.step / plain.step for one, plain in zip(self.one_turn, self.plain, strict=True)]

    def busiest(self) -> float:
        """Cores that other programs used before a run, at most."""
        played = [each.busy_before for each in (*self.calm, *self.slept)]
        return max(played + [each.busy_before for each in (*self.plain, *self.one_turn)])


def write_page(results: Results, folder: Path) -> None:
    figure(results).savefig(folder / "agents.png", dpi=120)
    parts = ["# Episodes of several turns, and how busy they keep an engine", _about(results)]
    parts += ["## An environment that sleeps", _sleeps(results), "![Use of the engine over time](agents.png)"]
    parts += ["## Idle episodes", _idle(results), "## Single turns", _single(results)]
    (folder / "agents.md").write_text("\n\n".join(parts) + "\n")


def _about(results: Results) -> str:
    calm = (
        "No other program used more than half a core in the second before a run."
        if results.busiest() <= QUIET
        else f"The machine was not quiet: other programs used up to {results.busiest():.1f} cores before a run. So"
        " tokens a second are too low, and those of different runs cannot be compared. Shares can be, but a slow engine"
        " hides sleeps better than a fast one: on a quiet machine, `make bench-agents` says more."
    )
    return (
        f"`{results.command}` of commit {results.commit} on {results.machine}, {results.date}. Each measurement is a"
        " whole `rljob run` with real processes of rank, engine (`hf`), rollout host and environment, and a model with"
        " random weights. Its tokenizer is one of bytes, so one token of 262 ends a turn. The numbers are in"
        f" [agents.json](agents.json). {calm}"
    )


def _sleeps(results: Results) -> str:
    kept = results.kept()
    about = (
        f"{EPISODES} episodes in flight, of {TURNS} turns of up to {TOKENS} tokens each. `step` sleeps {SLEEP:g} s, or"
        " not at all. The engine is busy while it has a request, by its own trace, from the first turn's begin to the"
        " last turn's end."
    )
    lines = [
        about,
        "",
        "| | s | busy | without a request, s | tokens | tokens/s | tokens a turn, mean | `idle/engines` of the step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in (("without sleeps", results.calm), ("1 s in each step", results.slept)):
        for run in runs:
            cells = [
                f"{run.seconds:.1f}", f"{run.busy:.2%}", f"{(1 - run.busy) * run.seconds:.1f}", f"{run.tokens:,}",
                f"{run.tokens / run.seconds:.0f}", f"{run.turn_tokens:.0f}", f"{run.idle_metric:.1%}",
            ]  # fmt: skip
            lines.append(f"| {name} | {' | '.join(cells)} |")
    least = min(share for run in (*results.calm, *results.slept) for share in run.busy_of[1:-1])
    verdict = "reached" if min(kept) >= GOAL else "not reached"
    return "\n".join(lines) + (
        f"\n\nGoal: with sleeps the engine is busy at least {GOAL:.0%} of the time that it is busy without. It is"
        f" {', '.join(f'{share:.2%}' for share in kept)}: {verdict}. Between the first and the last second of the"
        f" rollouts it is busy for at least {least:.0%} of each second. The rest of `idle/engines` is the start of"
        " workers and the update."
    )


def _idle(results: Results) -> str:
    about = (
        f"One environment process (`processes: 1`). All episodes have taken a turn and sleep; they are watched for"
        f" {IDLE_SECONDS / 2:g} s from inside the process. Lag is how late its event loop wakes a coroutine."
    )
    lines = [
        about,
        "",
        "| sleeps in | idle episodes | lag, median | largest | CPU of the process | of the rollout host |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {each.episodes:.0f} | {1e3 * each.lag_median:.1f} ms | {1e3 * each.lag_largest:.1f} ms |"
        f" {each.cpu:.1%} of a core | {each.host_cpu:.1%} of a core |"
        for name, each in results.idle.items()
    ]
    return "\n".join(lines)


def _single(results: Results) -> str:
    speed = results.speed()
    about = (
        f"128 samples a step ({SAMPLES} a prompt) of up to 128 tokens, scored by `similarity`: plain, and as an"
        " environment whose `rollout` takes one turn. The runs take turns; the first step of each does not count."
    )
    lines = [
        about,
        "",
        "| repetition | plain: tokens/s, rollouts | steps | environment: tokens/s, rollouts | steps | over plain |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {plain.rollout:.0f} | {plain.step:.0f} | {one.rollout:.0f} | {one.step:.0f} | {ratio:.3f} |"
        for number, (plain, one, ratio) in enumerate(zip(results.plain, results.one_turn, speed, strict=True), 1)
    ]
    caveat = "" if results.busiest() <= QUIET else " Other programs slowed the runs unequally: do not use this ratio."
    return "\n".join(lines) + f"\n\nThe median repetition has {median(speed):.3f} of the plain job's speed.{caveat}"


def figure(results: Results) -> Figure:
    """Of the first repetition: the share of each second in which the engine was busy; episodes that it answers."""
    drawn = Figure(figsize=(10, 5.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    busy, playing = drawn.subplots(2, 1, sharex=True)
    for (name, colour), run in zip(_COLOURS.items(), (results.calm[0], results.slept[0]), strict=True):
        times = BIN * np.arange(len(run.busy_of))
        busy.plot(times, [100 * share for share in run.busy_of], color=colour, label=f"{name}: {run.busy:.1%}")
        playing.plot(times, run.playing, color=colour, label=name)
    busy.set_ylabel("engine busy (% of each second)")
    busy.set_ylim(0, 105)
    playing.set_ylabel(f"episodes of {EPISODES} that it\ngenerates for")
    playing.set_ylim(0, EPISODES * 1.05)
    playing.set_xlabel("seconds since the first turn began")
    for axes in (busy, playing):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left")
    return drawn
