"""learning.jsonl: one line for each arm, seed and commit that was run; lines are only ever appended."""

import fcntl
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

from bench.commits import CHANGED, last_change
from bench.learning.arms import ROOT, TASKS, Arm, Task
from bench.learning.data import digest
from rljob_trainer.progress import names
from rljob_trainer.progress.history import Line

Point = tuple[float, float]

CODE = (
    "bench/learning/arms.py",
    "bench/learning/training.py",
    "bench/learning/shuffled.py",
    "bench/learning/trl_trainer.py",
    "bench/trl_job.py",
    "crds/src",
    "trainer/src",
)
"""What decides a result, besides the task's example; a commit to anything else leaves results valid."""

LAST = 10
"""RL steps that the closing numbers are means of."""

CLOSING = (
    names.ACTOR_KL,
    names.ACTOR_ENTROPY,
    names.ACTOR_CLIP_FRACTION,
    names.ACTOR_GRAD_NORM,
    names.RESPONSE_LENGTH_MEAN,
    names.ROLLOUT_LOG_PROB_DIFF_MEAN,
    names.ROLLOUT_LOG_PROB_DIFF_MAX,
    names.ROLLOUT_EFFECTIVE_SAMPLE_SIZE,
    names.TIME_STEP,
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    validation, reward: (RL step, greedy reward on held-out prompts), (RL step, mean reward of the step's samples);
    RL step 0 is the model after its supervised steps. closing: means over the last steps. samples: of one RL step.
    job: digest of the arm's spec and its rows. overrides: --set's, of an experiment.
    """

    task: str
    arm: str
    seed: int
    commit: str
    job: str
    device: str
    packages: str
    date: str
    seconds: float
    samples: int
    validation: list[Point]
    reward: list[Point]
    closing: dict[str, float] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)

    @property
    def start(self) -> float:
        return self.validation[0][1]

    @property
    def end(self) -> float:
        return self.validation[-1][1]

    @property
    def height(self) -> float:
        """Of its curve: the mean over all validations."""
        return mean(value for _, value in self.validation)


@dataclass(frozen=True, slots=True)
class Curves:
    """What of a run's history goes into its result."""

    validation: list[Point]
    reward: list[Point]
    closing: dict[str, float]


def curves(lines: Sequence[Line], supervised_steps: int) -> Curves:
    """lines: of metrics, every step."""
    reinforced = [line for line in lines if line["stage"] != "sft" and {names.REWARD_MEAN, names.ACTOR_LOSS} & {*line}]
    ends = reinforced[-LAST:]
    return Curves(
        validation=_points(lines, names.VALIDATION_REWARD, supervised_steps),
        reward=_points(reinforced, names.REWARD_MEAN, supervised_steps),
        closing={name: float(f"{mean(line[name] for line in ends):.4g}") for name in CLOSING if name in ends[0]},
    )


def _points(lines: Iterable[Line], name: str, supervised_steps: int) -> list[Point]:
    return [(line["step"] - supervised_steps, round(line[name], 4)) for line in lines if name in line]


@contextmanager
def alone_with(file: Path) -> Iterator[None]:
    """Exits where another process is; two campaigns would run the same. The kernel gives the lock back at our end."""
    with file.open("ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another campaign adds to {file}: wait for it, or give another --output")
        yield


def read(file: Path) -> list[Result]:
    """All results, oldest first, but for a last line that was cut while it was written. Exits where a line is none."""
    text = file.read_text() if file.exists() else ""
    lines = text.removesuffix(_cut(text)).splitlines()
    return [_parsed(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _parsed(line: str, place: str) -> Result:
    try:
        result = Result(**json.loads(line))
    except (ValueError, TypeError) as error:
        sys.exit(f"{place} is no result: {error}; a line that was cut while it was written can be deleted")
    if result.task not in (task.name for task in TASKS):
        sys.exit(f"{place} is of a task that there is not, {result.task}: delete it, or give another --output")
    return result


def append(file: Path, result: Result) -> None:
    """A last line that was cut goes."""
    text = file.read_text() if file.exists() else ""
    if cut := _cut(text):
        os.truncate(file, len(text.removesuffix(cut).encode()))
    with file.open("a") as output:
        output.write("" if cut or not text or text.endswith("\n") else "\n")
        output.write(json.dumps(asdict(result)) + "\n")


def _cut(text: str) -> str:
    """The last line, where it has no end and is no JSON; else nothing."""
    last = text.rpartition("\n")[2]
    try:
        json.loads(last or "{}")
    except ValueError:
        return last
    return ""


def newest(results: Iterable[Result]) -> dict[tuple[str, str, int], Result]:
    """The last result of each (task, arm, seed)."""
    return {(result.task, result.arm, result.seed): result for result in results}


def of_one_seed(runs: Iterable[Result]) -> list[Result]:
    """Of an arm's results the one that is compared with other arms'; none where that seed was not run."""
    return [run for run in runs if run.seed == 0]


def shown(arms: Iterable[Arm], results: Iterable[Result]) -> dict[tuple[str, str, int], Result]:
    """What a page has of the arms as they are now: the newest result of each (task, arm, seed), of any commit."""
    jobs = {(arm.task.name, arm.name): digest(arm.task, arm.overrides) for arm in arms}
    return newest(result for result in results if result.job == jobs.get((result.task, result.arm)))


def missing(arms: Iterable[Arm], results: Iterable[Result], commits: Mapping[str, str]) -> list[tuple[Arm, int]]:
    """(arm, seed) without a result of its task's commit, the first seed of every arm before the second of any.

    Results of changed files never count: the next change has the same name.
    """
    done = {
        (result.task, result.arm, result.seed, result.commit)
        for result in results
        if not result.commit.endswith(CHANGED)
    }
    wanted = [
        (arm, seed)
        for arm in arms
        for seed in arm.seeds
        if (arm.task.name, arm.name, seed, commits[arm.task.name]) not in done
    ]
    return sorted(wanted, key=lambda pair: pair[1])


def code_commit(task: Task) -> str:
    """The last commit that changed what decides the results. Exits where git knows none."""
    commit = last_change((*CODE, str(task.example.relative_to(ROOT))))
    return commit or sys.exit(f"git knows no commit of {ROOT}: give --commit, a name for what the results are of")
