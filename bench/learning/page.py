"""learning.md and learning.png, from the newest result of each arm and seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from bench.by_hand import write_keeping_what_is_by_hand
from bench.learning.answers import answer_tables
from bench.learning.arms import (
    CONTROL_BAND,
    CONTROL_SHARE,
    COUNTDOWN,
    IN_TRL,
    LORA_AFTER_SUPERVISED,
    ON_A_GPU,
    PRESETS,
    PRETRAINED_ON_A_GPU,
    REVERSE_TEXT,
    SHUFFLED,
    SMOLLM2,
    TASKS,
    TEACHER,
    UNCHANGED,
    Arm,
    control_band,
)
from bench.learning.comparison import ABOUT, comparison, spread
from bench.learning.data import reward_of_sums, seen_backwards, validation_prompts
from bench.learning.picture import figure
from bench.learning.results import CLOSING, LAST, Result, of_one_seed, shown
from bench.learning.training import CPUS, known_arms
from rljob_api.markdown import table
from rljob_trainer.progress import names

_METHOD = """Each task is its example: [reverse-text](../../examples/reverse-text/README.md),
[addition](../../examples/addition/README.md), [countdown](../../examples/countdown/README.md),
[smollm2](../../examples/smollm2/README.md) and [calculator](../../examples/calculator-tool/README.md), an environment
with a tool, which start from a pretrained model. Rewards are those of responses to held-out prompts, greedy except for
those two, which are sampled at temperature 1, after the supervised steps (start)
and after the last RL step (end): {prompts}.
Training uses none of them, no sum of addition with exchanged numbers and no other target of the same numbers; it uses
the reverse of {backwards} words of reverse-text, and sums and products of smollm2 with exchanged numbers. Adding all
numbers of a countdown, whatever its target, scores {sums:.3f}. The examples' settings were chosen from runs with some
of these seeds. The controls are the same jobs with a learning rate of 0, and with the rewards of a step shuffled
among its responses; the latter also with a stronger KL penalty, beside the same job with its own rewards: {held}."""

_PICTURE = """Lines are means over the seeds of the tables, bands reach from the lowest seed to the highest, and dotted
lines are goals. Advantages and losses are those of seed 0. Each line has markers at different validations, so that
equal lines stay distinguishable."""

_ADAPTERS = """LoRA on reverse-text begins with the exported model of the same seed after its supervised steps, and has
{lora} set."""

_OTHER_MODELS = """SPIN and DPO begin with that model too. They read no rewards, so their jobs have no validation, and
their first and last models are validated by `rljob eval`. DPO's pairs are the right response to each training prompt,
and the one that the model samples at temperature 1 where that is another; its beta was chosen from six settings of it
and the learning rate, on this seed. The teacher of the distillation arms is the exported model of the same seed with
{teacher}; they train on its signal alone."""

_CONTROLS = """A control is flat if no validation differs from its start by more than its goal allows. It gains if a
validation is further above; otherwise it falls. "Furthest" is the largest distance of a validation of all seeds above
and below its run's start. Shuffled rewards also move the weights: advantages keep their size, so Adam's steps are
equally large, and a KL penalty of 0.001 does not pull the policy back to the supervised one, so the reward falls. A
stronger penalty holds the policy, but still lets it learn from informative rewards. The band for shuffled rewards
shrinks near 1, where a band of 0.1 could not be left. The settings of arms with a stronger penalty were chosen on seed
0 only; those of addition on all three seeds."""

_ONE_SEED = """On reverse-text, seed 0. Every advantage uses the example's settings, which were chosen for grpo:
learning rate, aggregation of tokens, KL penalty and its coefficient. Other presets have other penalties or none. So
this is one seed at grpo's settings and no ranking of advantages: the results of one advantage differ by more between
seeds, as those of dr_grpo below show. Losses are compared with four updates per step, because with one update every
ratio is 1. Presets are under [Goals](#goals), with all that they set:
{presets}."""

_DR_GRPO = """TRL has dr_grpo too (`scale_rewards="none"`). Starting from the same weights and compared as above, it
separates the effect of the advantage from that of our implementation. TRL's GRPOTrainer lacks rloo and
reinforce_plus_plus_baseline. They use the same differences from the group's mean, times a factor that all responses of
a step share (the latter also subtracts their mean over the step's tokens). Its RLOOTrainer is another algorithm: it
takes the ratio of whole responses, and the penalty from their rewards."""

_TRL_LOSSES = """TRL has these losses too, here with four updates a step, as ours. It draws the responses of each update
at random, where ours takes whole groups."""

_ANSWERS = """The first prompts of the validation, and what seed 0 of grpo answered, before RL and at its end.
A new line is a space here."""

_CLOSING = f"""Means over the last {LAST} steps and all seeds. A run's metrics have them for every step. The benchmark
deletes a run's folder at its end and keeps these means, the rewards of all steps and validations, and a picture of
seed 0 of each task's grpo. Several runs shared one GPU, so their seconds are not comparable."""

_NO_CPUS = "No run used CPUs only, so this page does not say how long that takes."

_NOT_RUN = "Not run yet."

FLAT, FALLS, GAINS = "flat", "falls, gains nothing", "gains"
"""What a control may do."""


def write_page(results: Iterable[Result], folder: Path) -> bool:
    """Returns False, and writes nothing, where no run of the arms as they are now is finished.

    learning.md keeps what follows its line `<!-- by hand -->`.
    """
    known = known_arms()
    last = shown(known, results)
    every = [
        (arm, [last[key] for seed in arm.seeds if (key := (arm.task.name, arm.name, seed)) in last]) for arm in known
    ]
    found = [(arm, runs) for arm, runs in every if runs]
    if found:
        figure(found).savefig(folder / "learning.png", dpi=120)
        text = "\n\n".join(part.strip() for part in _parts(every, folder))
        write_keeping_what_is_by_hand(folder / "learning.md", text)
    return bool(found)


def _parts(every: Sequence[tuple[Arm, list[Result]]], folder: Path) -> list[str]:
    found = [(arm, runs) for arm, runs in every if runs]
    runs = [run for _, each in found for run in each]
    by_name, pretrained = (
        {arm.name: each for arm, each in every if arm.task is task} for task in (REVERSE_TEXT, SMOLLM2)
    )
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
        _ADAPTERS.format(
            lora=_code(each for each in LORA_AFTER_SUPERVISED if "null" not in each and "base" not in each)
        ),
        _OTHER_MODELS.format(teacher=_code(TEACHER)),
        _CONTROLS,
        "## Answers",
        _ANSWERS,
        *answer_tables(folder),
        "## TRL",
        ABOUT,
        comparison(by_name["grpo"], by_name["TRL"]) or _NOT_RUN,
        comparison(pretrained["grpo"], pretrained["TRL"]) or f"smollm2: {_NOT_RUN}",
        "## Advantages and losses",
        _ONE_SEED.format(presets="; ".join(f"{name} with {_code(each)}" for name, each in PRESETS.items())),
        _registry(found),
        _DR_GRPO,
        comparison(by_name["advantage dr_grpo"], by_name["TRL, dr_grpo"]) or _NOT_RUN,
        _TRL_LOSSES,
        *(
            comparison(by_name[ours], by_name[theirs]) or f"{theirs}: {_NOT_RUN}"
            for ours, theirs in [*((name, f"TRL, {name}") for name in IN_TRL), ("loss sapo", "TRL, sapo")]
        ),
        "## What a practitioner checks",
        _CLOSING,
        table(("task", "arm", *(_heading(name) for name in CLOSING)), _closing(found)),
        "## Machines",
        _settings() if any(run.device.endswith(CPUS) for run in runs) else f"{_settings()} {_NO_CPUS}",
        table(("machine", "versions", "commit", "runs", "s a run"), _machines(runs)),
    ]


def _about(runs: Sequence[Result]) -> str:
    hours = sum(run.seconds for run in runs) / 3600
    tried = dict.fromkeys(each for run in runs for each in run.overrides)
    said = f" All runs had {', '.join(f'`--set {each}`' for each in tried)} on top of these settings." if tried else ""
    commits, dates = sorted({run.commit for run in runs}), sorted({run.date for run in runs})
    of = f"{len(commits)} commits" if len(commits) > 1 else f"commit {commits[0]}"
    when = f"from {dates[0]} to {dates[-1]}" if len(dates) > 1 else f"of {dates[0]}"
    return (
        f"{len(runs)} runs of {of} ([list](#machines)), {when}; they took {hours:.1f} hours in all, some side by side."
        " `make bench-learning` runs them and continues after an interruption. It repeats runs whose example, or whose"
        " code (`CODE` in [results.py](../../bench/learning/results.py)), has changed; until then this page has the"
        " older results. The benchmark writes it from"
        f" [learning.jsonl](learning.jsonl), which has every run with its machine, curves and commit.{said}"
    )


def _prompts() -> str:
    """How many each task is validated on, and how many of them differ."""
    found = {task.name: validation_prompts(task) for task in TASKS}
    return ", ".join(f"{len(each)} prompts of {name} ({len(set(each))} different ones)" for name, each in found.items())


def _held() -> str:
    """What the arms with a stronger penalty have set, of each task."""
    return "; ".join(f"{arm.task.name} with {_code(arm.overrides)}" for arm in known_arms() if arm.role == "held")


def _settings() -> str:
    return f"""A run has its example's settings, except for those of its arm, its seeds and `checkpoint.everySteps=0`.
On a GPU it also has {_code(ON_A_GPU)};
smollm2 and calculator {_code(PRETRAINED_ON_A_GPU)}. Since 2026-11-30 matrix
products of float32 there are in TF32 (`TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`), of ours and of TRL alike.
Different numbers of runs shared a GPU, so their seconds are not comparable. Versions are those of the machine,
not those that this project locks."""


def _code(settings: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in settings)


def _goals(every: Sequence[tuple[Arm, list[Result]]]) -> list[list[str]]:
    rows = []
    for arm, runs in every:
        if arm.role in ("main", "engine", "held", "preset", "control"):
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
        if arm.trainer != "trl":
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
