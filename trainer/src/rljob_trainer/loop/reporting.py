"""Everything that an attempt tells the outside: metrics, progress, loggers, samples for people."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rljob_trainer.engines.ends import as_ids, end_ids
from rljob_trainer.loggers import LoggerSet
from rljob_trainer.loop.metrics import idle_metrics
from rljob_trainer.progress import names
from rljob_trainer.progress.answers import question
from rljob_trainer.progress.history import history
from rljob_trainer.progress.metrics import MetricsWriter, Stage
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.transcript import episode_row
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.rollouts.rollout_client import NAME
from rljob_trainer.types import Episode, Group, Ids, Task, Trajectory
from rljob_trainer.volume import Volume
from rljob_trainer.workers.waiting import wait_for_all
from rljob_trainer.workers.worker import Answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLES_SHOWN = 8
"""Responses, and failed episodes, written down at each validation."""


class Reporting:
    """One attempt's reports. The loop names its phases here, and their seconds become the step's times."""

    def __init__(
        self, volume: Volume, attempt: int, progress: ProgressReporter, loggers: LoggerSet,
        tokenizer: "PreTrainedTokenizerBase",
    ) -> None:  # fmt: skip
        self._progress, self._loggers, self._tokenizer = progress, loggers, tokenizer
        self._metrics = MetricsWriter(volume, attempt)
        self._root, self._samples = volume.root, volume.samples(attempt)
        self._bad_batch = volume.bad_batch(attempt)
        self._times: dict[str, float] = {}
        self._generating = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step as time/NAME and show it as what the trainer does now.

        What is timed inside it counts for itself alone: validation is not as long as the start of its engines.
        """
        self.now(name)
        start, before = time.monotonic(), sum(self._times.values())
        yield
        inside = sum(self._times.values()) - before
        self.add_time(name, max(0.0, time.monotonic() - start - inside))  # engines have clocks of their own

    def now(self, name: str) -> None:
        """Show what the trainer does now; its seconds are measured elsewhere."""
        self._progress.phase(name)

    def add_time(self, name: str, seconds: float) -> None:
        self._times[f"time/{name}"] = self._times.get(f"time/{name}", 0.0) + seconds

    def engines_worked(self, seconds: float) -> None:
        """For so long an engine had requests, in the mean over engines."""
        self._generating += seconds

    def begin(self, step: int, total_steps: int, supervised: int, supervised_stage: Stage) -> None:
        """supervised: how many of all steps are of `supervised_stage`."""
        self._progress.begin(
            step=step, total_steps=total_steps, supervised_steps=supervised, supervised_stage=supervised_stage
        )

    def step_done(self, step: int, stage: Stage, metrics: dict[str, float]) -> None:
        """Write the step's line everywhere."""
        measured = metrics | self._times
        if stage == "rl":
            measured |= idle_metrics(measured, self._generating)
        line = self._metrics.write(step, stage, measured)
        self._times, self._generating = {}, 0.0
        self._progress.step_done(line)
        self._loggers.log(step, {name: line[name] for name in measured})

    def has_validated(self, step: int) -> bool:
        """Whether the run has a validation with the weights after `step`."""
        lines = history(Volume(self._root))
        return any(line["step"] == step and names.VALIDATION_REWARD in line for line in lines)

    def validated(self, step: int, metrics: dict[str, float]) -> None:
        """Write a validation that belongs to no step: the one before the first RL step."""
        self._loggers.log(step, metrics)
        self._metrics.write(step, "rl", metrics)
        if names.VALIDATION_REWARD in metrics:
            self._progress.validated(metrics[names.VALIDATION_REWARD])

    def samples(self, step: int, groups: Sequence[GroupRef]) -> None:
        """Write the first episode of each of the first tasks, and then the first that was left out, likewise."""
        scored = self.fetch([group for group in groups if group.summary.error is None][:SAMPLES_SHOWN])
        failed = self.fetch([group for group in groups if group.summary.failed][:SAMPLES_SHOWN])
        played = [(group, next(each for each in group.episodes if each.trajectories)) for group in scored]
        left_out = [(group, next(each for each in group.episodes if not each.trajectories)) for group in failed]
        rows = [self._sample(step, group.task, episode) for group, episode in played + left_out]
        self._samples.parent.mkdir(parents=True, exist_ok=True)
        with self._samples.open("a") as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        self._loggers.episodes(step, rows)

    def _sample(self, step: int, task: Task, episode: Episode) -> dict[str, Any]:
        """An episode, and the text that rewards see of it; one that was left out has neither response nor reward."""
        last = episode.trajectories[-1] if episode.trajectories else None
        return {
            "step": step,
            "prompt": self._text(task.token_ids),
            "question": question(task.messages),
            "response": None if last is None else self._response(last),
            "groundTruth": task.ground_truth,
            "reward": None if last is None else episode.reward,
            "task": task.id,
            "episode": episode_row(episode, self._decode),
        }

    def fetch(self, groups: Sequence[GroupRef]) -> list[Group]:
        """The groups themselves, from Ray's object store."""
        references = list(dict.fromkeys(each.bundle for each in groups))
        answers: list[Answer[Sequence[Group]]] = [Answer(each, NAME, "") for each in references]
        bundles = dict(zip(references, wait_for_all(answers, 60.0, "samples to show"), strict=True))
        return [bundles[each.bundle][each.index] for each in groups]

    def bad_batch(self, rows: Iterable[dict[str, Any]]) -> None:
        """Keep the samples of a step with a skipped update, in place of those of an earlier one.

        Each row gets its text beside its tokens. NaN stays NaN, which Python's json reads.
        """
        self._bad_batch.parent.mkdir(parents=True, exist_ok=True)
        part = self._bad_batch.with_suffix(".part")
        with part.open("w") as file:
            for row in rows:
                text = str(self._tokenizer.decode(row["tokenIds"], skip_special_tokens=False))
                file.write(json.dumps(row | {"text": text}, ensure_ascii=False) + "\n")
        part.replace(self._bad_batch)

    def _response(self, trajectory: Trajectory) -> str:
        """The text that rewards see."""
        ends = end_ids(self._root / "model") | set(as_ids(self._tokenizer.eos_token_id))
        return str(self._tokenizer.decode(trajectory.response_ids(ends), clean_up_tokenization_spaces=False))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))

    def _text(self, token_ids: Ids) -> str:
        return str(self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))
