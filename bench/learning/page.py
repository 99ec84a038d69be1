"""learning.md and learning.png, from the newest result of each arm and seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from bench.learning.arms import (
    CONTROL_BAND,
    CONTROL_SHARE,
    COUNTDOWN,
    REVERSE_TEXT,
    SHUFFLED,
    TASKS,
    UNCHANGED,
    Arm,
    control_band,
)
from bench.learning.comparison import ABOUT, comparison, spread
from bench.learning.data import digest, reward_of_sums, seen_backwards, validation_prompts
from bench.learning.picture import figure
from bench.learning.results import CLOSING, LAST, Result, newest, of_one_seed, of_these
from bench.learning.training import CPUS, ON_A_GPU, known_arms
from rljob_api.markdown import table
from rljob_trainer.progress import names

_METHOD = """Each task is its example: [reverse-text](../../examples/reverse-text/README.md),
[addition](../../examples/addition/README.md), [countdown](../../examples/countdown/README.md). Rewards are of greedy
responses to held-out prompts, after the supervised steps (start) and after the last RL step (end):
{prompts}.
Training never sees them, nor a sum with its numbers exchanged or another target of the same numbers; it sees
{backwards} of reverse-text's words backwards. Whoever adds all numbers of a countdown, whatever its target, gets
{sums:.3f}. The examples' settings were chosen by what runs with some of these seeds did. The controls are the same
jobs with a learning rate of 0, and with every response paid the reward of another one; that also with a stronger KL
penalty, beside the same job with its own rewards: {held}."""

_PICTURE = """Lines are means over the seeds that the tables show, bands reach from the lowest of them to the highest,
dotted lines are goals. Advantages and losses are of seed 0 alone. A line has its markers at validations of its own:
they tell lines apart that are one."""

_CONTROLS = """A control is flat where no validation lies further from its start than its goal says, above or below; it
gains where one lies further above, and else it falls and gains nothing. "Furthest" is how far the highest validation of
all seeds lies above its run's start, and the lowest below. Rewards that say nothing move the weights all
the same: advantages keep their size, so Adam's steps are as large as ever, and at the examples' penalty, whose
coefficient is 0.001, nothing brings the policy back to what the supervised steps had taught: it falls. A stronger
penalty holds it, and gives way to rewards that do say something. How far shuffled rewards may lie above the start
shrinks near 1, where a band of 0.1 could not be left. What an arm with a stronger penalty has set was tried out first:
on seed 0, so that the other seeds' results chose nothing; addition's on all three seeds."""

_ONE_SEED = """On reverse-text, seed 0. Every advantage has the example's settings, which were chosen for grpo:
learning rate, aggregation of tokens, KL penalty and its coefficient. The presets of the others take other penalties or
none, and no other advantage was given settings of its own: what lies below grpo does so at grpo's settings, with one
seed, which says not how well it can do, nor ranks the advantages: those of one differ by more between seeds, as the
three of dr_grpo below show. Losses are compared with four updates a step, because with one no ratio leaves
1."""

_DR_GRPO = """TRL has dr_grpo too (there: `scale_rewards="none"`), from the same weights and compared as above, so that
one can tell what is the advantage's own and what is ours. rloo and reinforce_plus_plus_baseline, which TRL's trainer
has not, take the same differences from the group's mean, times a factor that all responses of a step share (the latter
also less their mean over the step's tokens)."""

_CLOSING = f"""Means over the last {LAST} steps, over all seeds. A run's own metrics have them at every step. The
benchmark removes a run's folder when it has ended, and keeps these means, the rewards of all steps and validations, and
a picture of seed 0 of each task's grpo. Seconds are of runs that went side by side on one GPU, and compare nothing."""

_SETTINGS = f"""A run has its example's settings but for its arm's, its seeds and `checkpoint.everySteps=0`. On a GPU it
also gets {", ".join(f"`{each}`" for each in ON_A_GPU)}; several runs may share the GPU, more
of them or fewer, so seconds say how long it took and compare nothing.
Versions there are the machine's, as the table says, not those that this project locks."""

_NO_CPUS = "No run here was on CPUs alone, so the page says nothing of how long that takes."

_NOT_RUN = "Not run yet."

FLAT, FALLS, GAINS = "flat", "falls, gains nothing", "gains"
"""What a control may do."""


def write_page(results: Iterable[Result], folder: Path) -> bool:
    """Returns False, and writes nothing, where no run of the arms as they are now is finished."""
    known = known_arms()
    last = newest(of_these(results, {(arm.task.name, arm.name): digest(arm.task, arm.overrides) for arm in known}))
    every = [
        (arm, [last[key] for seed in arm.seeds if (key := (arm.task.name, arm.name, seed)) in last]) for arm in known
    ]
    found = [(arm, runs) for arm, runs in every if runs]
    if found:
        figure(found).savefig(folder / "learning.png", dpi=120)
        (folder / "learning.md").write_text("\n\n".join(part.strip() for part in _parts(every)) + "\n")
    return bool(found)


def _parts(every: Sequence[tuple[Arm, list[Result]]]) -> list[str]:
    found = [(arm, runs) for arm, runs in every if runs]
    runs = [run for _, each in found for run in each]
    by_name = {arm.name: each for arm, each in every if arm.task is REVERSE_TEXT}
    return [
        "# Learning",
        _about(runs),
        _METHOD.format(
            prompts=_prompts(), backwards=seen_backwards(REVERSE_TEXT), sums=reward_of_sums(COUNTDOWN), held=_held()
        ),
        "![Reward on held-out prompts](learning.png)",
        _PICTURE,
        "## Goals",
        table(("task", "arm", "start", "end, each seed", "goal", "reached", "furthest", "commit"), _goals(every)),
        _CONTROLS,
        "## TRL",
        ABOUT,
        comparison(by_name["grpo"], by_name["TRL"]) or _NOT_RUN,
        "## Advantages and losses",
        _ONE_SEED,
        _registry(found),
        _DR_GRPO,
        comparison(by_name["advantage dr_grpo"], by_name["TRL, dr_grpo"]) or _NOT_RUN,
        "## What a practitioner checks",
        _CLOSING,
        table(("task", "arm", *(_heading(name) for name in CLOSING)), _closing(found)),
        "## Machines",
        _SETTINGS if any(run.device.endswith(CPUS) for run in runs) else f"{_SETTINGS} {_NO_CPUS}",
        table(("machine", "versions", "commit", "runs", "s a run"), _machines(runs)),
    ]


def _about(runs: Sequence[Result]) -> str:
    hours = sum(run.seconds for run in runs) / 3600
    tried = dict.fromkeys(each for run in runs for each in run.overrides)
    said = (
        f" All of it with {', '.join(f'`--set {each}`' for each in tried)}, over what the page says." if tried else ""
    )
    commits, dates = sorted({run.commit for run in runs}), sorted({run.date for run in runs})
    of = f"{len(commits)} commits" if len(commits) > 1 else f"commit {commits[0]}"
    when = f"from {dates[0]} to {dates[-1]}" if len(dates) > 1 else f"of {dates[0]}"
    return (
        f"{len(runs)} runs of {of} ([which](#machines)), {when}; they took {hours:.1f} hours in all, some side by side."
        " `make bench-learning` does them, in as many calls as it takes: a call runs what has no result of the last"
        " commit that changed the task's example or the code that decides it (`CODE` in"
        " [results.py](../../bench/learning/results.py)), so any change there has the next call run all again. Until"
        " then the page has the older ones. Written by the benchmark from"
        f" [learning.jsonl](learning.jsonl), which has every run with its machine, curves and commit.{said}"
    )


def _prompts() -> str:
    """How many each task is validated on, and how many of them differ."""
    found = {task.name: validation_prompts(task) for task in TASKS}
    return ", ".join(f"{len(each)} prompts of {name} ({len(set(each))} different ones)" for name, each in found.items())


def _held() -> str:
    """What the arms with a stronger penalty have set, of each task."""
    return "; ".join(
        f"{arm.task.name} with {', '.join(f'`{each}`' for each in arm.overrides)}"
        for arm in known_arms()
        if arm.role == "held"
    )


def _goals(every: Sequence[tuple[Arm, list[Result]]]) -> list[list[str]]:
    rows = []
    for arm, runs in every:
        if arm.role in ("main", "engine", "held", "control"):
            start = spread([run.start for run in runs]) if runs else ""
            ends = ", ".join(f"{run.end:.3f}" for run in runs)
            commits = ", ".join(dict.fromkeys(run.commit for run in runs))
            rows.append(
                [arm.task.name, arm.name, start, ends, _goal(arm), _reached(arm, runs), _furthest(arm, runs), commits]
            )
    return rows


def _goal(arm: Arm) -> str:
    if arm.role != "control":
        return arm.task.goal_text
    if arm.name == UNCHANGED:
        return "flat: its start, at every validation"
    above = f"never more than {CONTROL_BAND:g}, nor {CONTROL_SHARE:.0%} of the way to 1, over its start"
    return f"gains nothing: {above}" if arm.name == SHUFFLED else f"flat: {above}, nor {CONTROL_BAND:g} below it"


def _reached(arm: Arm, runs: Sequence[Result]) -> str:
    """Of a control also what it does: one that falls gains nothing, which is its goal."""
    moves = dict.fromkeys(_move(arm, run) for run in runs) if arm.role == "control" else {}
    count = sum(_reaches(arm, run) for run in runs)
    said = "yes" if count == len(arm.seeds) else f"{count} of {len(arm.seeds)}"
    said += f": {'; '.join(moves)}" if moves else ""
    unfinished = len(arm.seeds) - len(runs)
    return f"{said}, {unfinished} not run yet" if unfinished else said


def _reaches(arm: Arm, run: Result) -> bool:
    if arm.role != "control":
        return arm.task.reached(run.start, run.end)
    return _move(arm, run) in ((FLAT, FALLS) if arm.name == SHUFFLED else (FLAT,))


def _move(control: Arm, run: Result) -> str:
    """What it does over all validations."""
    above, below = (0.0, 0.0) if control.name == UNCHANGED else (control_band(run.start), CONTROL_BAND)
    values = [value for _, value in run.validation]
    if max(values) > run.start + above:
        return GAINS
    return FLAT if min(values) >= run.start - below else FALLS


def _furthest(arm: Arm, runs: Sequence[Result]) -> str:
    """Of a control: how far any validation of any seed lies above its start, and how far below."""
    moved = [value - run.start for run in runs for _, value in run.validation]
    return f"+{max(moved):.3f}, -{abs(min(moved)):.3f}" if moved and arm.role == "control" else ""


def _registry(found: Sequence[tuple[Arm, list[Result]]]) -> str:
    rows = [
        [arm.name, f"{run.start:.3f}", f"{run.end:.3f}", _clipped(run)]
        for arm, runs in found
        for run in of_one_seed(runs)
        if arm.role in ("advantage", "loss") or (arm.task is REVERSE_TEXT and arm.role == "main")
    ]
    return table(("arm", "start", "end", "clipped tokens (share)"), rows) if rows else _NOT_RUN


def _clipped(run: Result) -> str:
    """Empty where its trainer does not say."""
    share = run.closing.get(names.ACTOR_CLIP_FRACTION)
    return "" if share is None else f"{share:.4f}"


def _closing(found: Sequence[tuple[Arm, list[Result]]]) -> list[list[str]]:
    rows = []
    for arm, runs in found:
        if arm.trainer == "rljob":
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
