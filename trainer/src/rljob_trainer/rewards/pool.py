"""Scores groups with the user's functions, in parallel, one deadline for each call.

    submit(group) ── one job for each response ──> queue ──> threads, one for each process ──> process
                                                                                              │ dies or hangs:
    future <── the group's last score, or its first error <──────────────────────────────────┘ only its own job fails

Infrastructure is no reward: a response whose process was killed or stopped, which may come from outside, is scored
again by a new one, twice at most. A job waits in the queue as long as it must; its deadline starts with the call.

A kept library (pebble) was tried: there a process that dies between two calls breaks the whole pool, since its
processes share one pipe and one lock.
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from rljob_api.durations import parse_duration
from rljob_api.v1alpha1 import Rewards
from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.policy import Component, Response, without_score
from rljob_trainer.rewards.process import CallError, RewardProcess
from rljob_trainer.rewards.protocol import Call, FunctionSetup, Score, Setup
from rljob_trainer.types import Floats, GroupScore, Prompt

_RETRIES = 2


class RewardPool:
    """The reward functions of a job, loaded in `rewards.processes` processes.

    log: a file for what the functions print; the default is the standard error of this process.

    Raises:
        RewardError: a function cannot be loaded; names the field and the line.
        InfrastructureError: no process can be started.
    """

    def __init__(self, rewards: Rewards, base_dir: Path, log: Path | None = None) -> None:
        self._rewards = rewards
        self._timeout = parse_duration(rewards.timeout)
        self._jobs: queue.SimpleQueue[tuple[_Group, int] | None] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._closed = False
        self._processes = [RewardProcess(_setup(rewards, base_dir), log) for _ in range(rewards.processes)]
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name=f"reward-{i}", daemon=True)
            for i, process in enumerate(self._processes)
        ]
        for thread in self._threads:
            thread.start()
        error = self._started.get()  # of the first process; the others load the same code meanwhile
        if error is not None:
            self.close()
            raise error

    def submit(self, prompt: Prompt, responses: Sequence[Response]) -> "Future[GroupScore]":
        """Score a group, without waiting: the weighted sum for each response, and each component.

        Safe from many threads at once. The future raises:
            RewardError: a call hung, crashed, raised or returned what is no reward, and rewards.onError is fail
                (drop_group sets GroupScore.error instead).
            InfrastructureError: no process can be started.
        """
        if self._closed:
            raise _closed()
        group = _Group(self._rewards, prompt, responses)
        for index in range(len(responses)):
            self._jobs.put((group, index))
        return group.future

    def close(self) -> None:
        """Kill the processes, also in the middle of a call, and wait until they are gone."""
        self._closed = True
        for process in self._processes:
            process.close()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job[0].fail(_closed())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self, process: RewardProcess) -> None:
        try:
            self._started.put(_start(process))
            while not self._closed and (job := self._jobs.get()) is not None:
                self._run(process, *job)
        finally:
            process.end()

    def _run(self, process: RewardProcess, group: "_Group", index: int) -> None:
        if group.future.done():  # another response failed, and the group with it
            return
        try:
            group.store(index, self._call(process, group, index))
        except CallError as error:
            group.fail(_closed()) if self._closed else group.blame(index, error)
        except Exception as error:  # noqa: BLE001  who waits for the group must see it, whatever it is
            group.fail(error)

    def _call(self, process: RewardProcess, group: "_Group", index: int) -> list[Score]:
        for _ in range(_RETRIES):
            try:
                return process.call(group.call(index), self._timeout)
            except CallError as error:
                if self._closed or not error.outside:
                    raise
                group.retried()
        return process.call(group.call(index), self._timeout)


class _Group:
    """A group on its way through the pool."""

    def __init__(self, rewards: Rewards, prompt: Prompt, responses: Sequence[Response]) -> None:
        self.future: Future[GroupScore] = Future()
        self._rewards = rewards
        self._prompt = prompt
        self._responses = responses
        self._scores: list[list[Score]] = [[] for _ in responses]
        self._left = len(responses)
        self._retries = 0
        self._lock = threading.Lock()

    def call(self, index: int) -> Call:
        response = self._responses[index]
        extra_info = {**self._prompt.extra_info, "response_tokens": response.tokens, "truncated": response.truncated}
        return Call(self._prompt.data_source, response.text, self._prompt.ground_truth, extra_info)

    def store(self, index: int, scores: list[Score]) -> None:
        with self._lock:
            self._scores[index] = scores
            self._left -= 1
            if self._left == 0 and not self.future.done():
                self.future.set_result(self._compose())

    def retried(self) -> None:
        with self._lock:
            self._retries += 1

    def blame(self, index: int, error: CallError) -> None:
        """The user's function failed for response `index`: rewards.onError decides."""
        name, field = self._rewards.functions[error.function].name, f"spec.rewards.functions[{error.function}]"
        try:
            score = without_score(
                self._rewards, Component(name, field), error.reason, self._prompt, self._responses, index
            )
        except RewardError as failure:
            self.fail(failure)
            return
        with self._lock:
            if not self.future.done():
                self.future.set_result(replace(score, retries=self._retries))

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _compose(self) -> GroupScore:
        total = np.zeros(len(self._responses))
        components: dict[str, Floats] = {}
        for i, function in enumerate(self._rewards.functions):
            scores = [sample[i] for sample in self._scores]
            values = np.array([score.value for score in scores])
            total += function.weight * values
            components[function.name] = values.astype(np.float32)
            shared = set.intersection(*(set(score.numbers) for score in scores))
            for number in sorted(shared):  # one that some samples lack has no mean
                components[f"{function.name}/{number}"] = np.array(
                    [score.numbers[number] for score in scores], dtype=np.float32
                )
        return GroupScore(self._prompt.id, total.astype(np.float32), components, retries=self._retries)


def _start(process: RewardProcess) -> Exception | None:
    try:
        process.start()
    except (RewardError, InfrastructureError) as error:
        return error
    return None


def _setup(rewards: Rewards, base_dir: Path) -> Setup:
    fields = FunctionSetup.__dataclass_fields__
    functions = [FunctionSetup(**{name: getattr(function, name) for name in fields}) for function in rewards.functions]
    return Setup(functions, str(base_dir.resolve()))


def _closed() -> InfrastructureError:
    return InfrastructureError("the reward pool was closed before the group was scored")
