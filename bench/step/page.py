"""cpu.md and cpu.png, from the rows of cpu.jsonl."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb
from pathlib import Path
from statistics import mean, median

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.step.results import ALONE, OURS, TRL, Row
from bench.step.runs import Steps
from bench.step.shapes import PROMPTS, SAMPLES, SHAPES, Shape
from rljob_trainer.progress import names
from rljob_trainer.progress.plot import PHASE_COLOURS

GOAL_SHAPE, GOAL = "10M", 0.10
"""Our overhead outside the engine is at most this share of a step."""

CONFIDENCE, FEWEST = 0.95, 6
"""Of the interval of a median, and the fewest values that have one."""

PARTS = (names.TIME_ROLLOUT, names.TIME_REWARDS, names.TIME_ADVANTAGE, names.TIME_UPDATE, names.TIME_SYNC)

_WORK = {"work/update": "a worker updates", "work/none": "no worker works"}
"""Of ours alone, by the workers' clocks, and what the page calls it."""

_METHOD = f"""{PROMPTS} prompts with {SAMPLES} samples, GRPO without a reference model, one update per step. The
benchmark fails if a response ends before its limit. Our runs and those of TRL's GRPOTrainer alternate, with a different
one first each time. A step's time starts at the end of the previous step; the first steps of each run do not count.
Ours is the whole `rljob run`: driver, rank, engine, rollout host and reward processes under Ray, weight sync, probe,
journal. The driver measures the phases: its "update" includes messages to the worker, "a worker updates" does not. "No
worker works" is the time of Ray and the driver while no worker is busy. TRL's update is the part of its step that
belongs to no other phase. "vLLM alone" is `LLM.chat` for the same responses in its own process. Memory counts shared
pages once per process. Busy cores are the largest use by other work in the second before a run. Compare seconds within
a shape only, because shapes may be measured on different days, and the speed of a virtual machine's cores varies."""


WHY_SHAPE = "tiny"

_WHY = """Why vllm takes longer than TRL on this shape, in seconds per step: vLLM alone takes {alone:.3f}, TRL's rollout
{rollout:.3f}. Sync takes {sync:.3f}, rewards {rewards:.3f}, and no worker works for {none:.3f}; TRL has almost none of
these. A worker's update takes {update:.3f}, TRL's {their_update:.3f}. Each engine step generates one token per response
and has a fixed cost for Python, small operations, sampling and scheduling, which matters little on the larger shape.
[step_time.md](step_time.md) has the profile of the engine's process."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A shape.

    runs: of each trainer or engine, in the order of the repetitions. vllm_alone: without us, in each repetition.
    """

    shape: Shape
    parameters: int
    runs: Mapping[str, Sequence[Steps]]
    vllm_alone: Sequence[Steps] = ()
    commits: Sequence[str] = ()

    def ratios(self, name: str) -> list[float]:
        """Of the repetitions: median step over TRL's in the same repetition."""
        return [ours.median / theirs.median for ours, theirs in zip(self.runs[name], self.runs[TRL], strict=True)]

    def part(self, name: str, part: str) -> float:
        return mean(run.parts.get(part, 0.0) for run in self.runs[name])

    def step(self, name: str) -> float:
        return mean(mean(run.seconds) for run in self.runs[name])

    def overhead(self, name: str) -> float:
        """Share of a step that is neither rollout nor a worker's update."""
        useful = self.part(name, names.TIME_ROLLOUT) + self.part(name, "work/update")
        return 1 - useful / self.step(name)

    def beyond_vllm(self) -> list[float]:
        """Of the repetitions: share of a step that is neither a worker's update nor what vLLM alone takes."""
        return [
            1 - (alone.median + ours.parts["work/update"]) / mean(ours.seconds)
            for ours, alone in zip(self.runs["vllm"], self.vllm_alone, strict=True)
        ]


def write_page(rows: Sequence[Row], folder: Path) -> None:
    measured = by_shape(rows)
    figure(measured).savefig(folder / "cpu.png", dpi=120)
    parts = ["# One GRPO step on a CPU", _about(rows), _METHOD, "![Seconds of a step](cpu.png)"]
    for each in measured:
        parts += [_title(each), _steps(each), _phases(each), _notes(each), *_goal(each), *_why(each)]
    (folder / "cpu.md").write_text("\n\n".join(parts) + "\n")


def by_shape(rows: Sequence[Row]) -> list[Measured]:
    found = []
    for shape in SHAPES:
        own = sorted((row for row in rows if row.shape == shape.name), key=lambda row: row.repetition)
        if own:
            steps = {name: [row.steps for row in own if row.name == name] for name in (*OURS, TRL, ALONE)}
            alone = steps.pop(ALONE)
            runs = {name: each for name, each in steps.items() if each}
            found.append(Measured(shape, own[0].parameters, runs, alone, sorted({row.commit for row in own})))
    return found


def _about(rows: Sequence[Row]) -> str:
    def said(of: Callable[[Row], object]) -> str:
        return ", ".join(dict.fromkeys(str(of(row)) for row in rows))

    return (
        "`make bench` of commit"
        f" {said(lambda row: row.commit)} on {said(lambda row: row.cores)} CPU cores"
        f" ({said(lambda row: row.processor or 'unknown processor')}),"
        f" {said(lambda row: row.date)}; {said(lambda row: row.packages)}. Written by the benchmark from"
        " [cpu.jsonl](cpu.jsonl), which has every run. [Where a step's time goes](step_time.md)."
    )


def _goal(each: Measured) -> list[str]:
    """What of our rollout vLLM alone would not take is overhead too."""
    if each.shape.name != GOAL_SHAPE or not each.vllm_alone:
        return []
    shares = each.beyond_vllm()
    said = (
        f"Goal: on this model, with vllm, our overhead outside the engine is at most {GOAL:.0%} of a step. The step"
        f" without a worker's update and without vLLM's own time is {median(shares):.1%} in the median repetition"
        f" ({', '.join(f'{share:.1%}' for share in shares)}): {'' if median(shares) <= GOAL else 'not '}reached."
    )
    return [said]


def _why(each: Measured) -> list[str]:
    if each.shape.name != WHY_SHAPE or not each.vllm_alone or median(each.ratios("vllm")) <= 1:
        return []
    return [
        _WHY.format(
            alone=median(run.median for run in each.vllm_alone),
            rollout=each.part(TRL, names.TIME_ROLLOUT),
            sync=each.part("vllm", names.TIME_SYNC),
            rewards=each.part("vllm", names.TIME_REWARDS),
            none=each.part("vllm", "work/none"),
            update=each.part("vllm", "work/update"),
            their_update=each.part(TRL, names.TIME_UPDATE),
        )
    ]


def _title(each: Measured) -> str:
    shape = each.shape
    runs = [run for runs in (*each.runs.values(), each.vllm_alone) for run in runs]
    steps, seconds = len(each.runs[TRL][0].seconds), sum(sum(run.seconds) for run in runs)
    said = (
        f"{len(each.runs[TRL])} repetitions of {steps} steps, which took {seconds / 60:.0f} minutes in all, without"
        f" starts and first steps; commit {', '.join(each.commits)}"
    )
    return f"## {shape.name}: {each.parameters:,} parameters, {shape.tokens} tokens per response\n\n{said}."


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
    head = ["s of a step, mean", *(names.short(part) for part in PARTS), "step", *_WORK.values()]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in each.runs:
        seconds = [*(each.part(name, part) for part in PARTS), each.step(name)]
        work = ["" if name == TRL else f"{each.part(name, part):.3f}" for part in _WORK]
        rows.append(f"| {' | '.join([_label(name), *(f'{value:.3f}' for value in seconds), *work])} |")
    return "\n".join(rows)


def _notes(each: Measured) -> str:
    verdicts = [
        f"{_label(name)}: {median(each.ratios(name)):.2f} of TRL's time in the median repetition"
        + (f", so it {verdict(each.ratios(name))}" if name == "hf" else "")
        for name in OURS
        if name in each.runs
    ]
    said = [
        f"{name}: Ray and the driver, while no worker works, {each.part(name, 'work/none') / each.step(name):.0%} of a"
        f" step; everything except rollout and a worker's update {each.overhead(name):.0%}"
        for name in OURS
        if name in each.runs
    ]
    if each.vllm_alone:
        alone, rollout = median(run.median for run in each.vllm_alone), each.part("vllm", names.TIME_ROLLOUT)
        said.append(
            f"vLLM alone takes {alone:.3f} s for the responses, our rollout with vLLM {rollout / alone:.2f} times that"
        )
    return f"{'; '.join(verdicts)}.\n\n{'; '.join(said)}."


def verdict(ratios: Sequence[float]) -> str:
    """Of medians over TRL's: whether ours takes no longer, and how sure that is."""
    low, high = interval(ratios)
    within = f"between {low:.2f} and {high:.2f} at {CONFIDENCE:.0%}" if len(ratios) >= FEWEST else "in all repetitions"
    if high <= 1:
        return f"takes no longer ({within})"
    return f"takes longer ({within})" if low > 1 else f"may take longer or not ({low:.2f} to {high:.2f})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, whatever the distribution: from the k-th smallest to the k-th largest value, where fewer than k of
    n coin tosses show heads with a probability of at most (1 - CONFIDENCE) / 2. With fewer values than FEWEST there is
    no such k, and it is the smallest and the largest one.

    It is the sign test's: Conover, Practical Nonparametric Statistics, section 3.2.
    """
    ordered, n = sorted(values), len(values)
    tails = accumulate(comb(n, heads) / 2**n for heads in range(n))
    k = max(1, sum(tail <= (1 - CONFIDENCE) / 2 for tail in tails))
    return ordered[k - 1], ordered[n - k]


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
