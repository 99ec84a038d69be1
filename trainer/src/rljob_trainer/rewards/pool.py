"""Scores groups with the user's functions in parallel, with a deadline for each call.

    submit(group) ── one job for each response ──> queue ──> threads, one for each process ──> process
                                                                                              │ dies or hangs:
    future <── the group's last score, or its first error <──────────────────────────────────┘ only its own job fails

If a function scores groups, the group is one job. If a process was killed or stopped, perhaps from outside, a new
process scores the response again, at most twice. The deadline starts with the call, not with the wait in the queue.

The library pebble does not work here: its processes share one pipe and one lock, so a process that dies between two
calls breaks the whole pool.
"""

import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from rljob_api.durations import parse_duration
from rljob_api.v1alpha1 import Rewards
from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.policy import Component, Response, without_score
from rljob_trainer.rewards.process import CallError, RewardProcess, Scores
from rljob_trainer.rewards.protocol import Call, FunctionSetup, Setup
from rljob_trainer.rewards.scores import GroupScore
from rljob_trainer.types import Floats, Task

_RETRIES = 2
_LARGEST_MESSAGE = 64  # responses
_MESSAGE_SECONDS = 0.02
"""Target time for the responses of one message. A message costs more than most functions, so quick ones share it; slow
ones do not, so that no response waits while a process is idle."""


class RewardPool:
    """Reward functions of a job that see the same environment, loaded in `rewards.processes` processes.

    log: file for the functions' output; the default is the standard error of this process.
    places: indices of the functions in rewards.functions; the default is all of them.

    Raises:
        RewardError: a function cannot be loaded; names the field and the line.
        InfrastructureError: no process can be started.
    """

    def __init__(
        self, rewards: Rewards, base_dir: Path, log: Path | None = None, places: Sequence[int] | None = None
    ) -> None:
        self._rewards = rewards
        self._setup = _setup(rewards, base_dir, range(len(rewards.functions)) if places is None else places)
        self._timeout = parse_duration(rewards.timeout)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._closed = False
        self._processes = [RewardProcess(self._setup, log) for _ in range(rewards.processes)]
        self._at_once = min(rewards.processes, os.cpu_count() or 1)  # for quick, CPU-bound functions
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name=f"reward-{i}", daemon=True)
            for i, process in enumerate(self._processes)
        ]
        for thread in self._threads:
            thread.start()
        error = self._started.get()  # from the first process; the others load the same code
        if error is not None:
            self.close()
            raise error
        self._whole_groups = self._processes[0].batch

    def submit(self, task: Task, responses: Sequence[Response]) -> "Future[GroupScore]":
        """Start to score a group: the weighted sum for each response, and each component.

        Safe from many threads at once. The future raises:
            RewardError: a call hung, crashed, raised or returned no valid reward, and rewards.onError is fail
                (drop_group sets GroupScore.error instead).
            InfrastructureError: no process can be started.
        """
        if self._closed:
            raise _closed()
        group = _Group(self._rewards, self._setup, task, responses)
        indices = range(len(responses))
        for job in [indices] if self._whole_groups else [range(index, index + 1) for index in indices]:
            self._jobs.put(_Job(group, job))
        return group.future

    def close(self) -> None:
        """Kill the processes, even during a call, and wait until they are gone."""
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
                job.group.fail(_closed())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self, process: RewardProcess) -> None:
        most = 1
        try:
            self._started.put(_start(process))
            while not self._closed and (jobs := self._take(most)):
                start = time.monotonic()
                self._run(process, jobs)
                each = (time.monotonic() - start) / len(jobs)
                most = max(1, min(_LARGEST_MESSAGE, int(_MESSAGE_SECONDS / max(each, 1e-6))))
        finally:
            process.end()

    def _take(self, most: int) -> "list[_Job]":
        """Queued jobs: at least one, at most this process's share; none once the pool is closed."""
        most = 1 if self._processes[0].batch else most
        jobs = [self._jobs.get()]
        most = min(most, 1 + self._jobs.qsize() // self._at_once)
        with suppress(queue.Empty):
            while jobs[-1] is not None and len(jobs) < most:
                jobs.append(self._jobs.get_nowait())
        if jobs[-1] is None and len(jobs) > 1:
            self._jobs.put(None)
        return [job for job in jobs if job is not None]

    def _run(self, process: RewardProcess, jobs: "list[_Job]") -> None:
        """Call until each job has its score or its group has failed; a new process continues for a lost one."""
        while jobs := [job for job in jobs if not job.group.future.done()]:  # its group failed
            asked = [(job, index) for job in jobs for index in job.indices]
            waiting = iter(asked)
            try:
                for answer in process.call([job.group.call(index) for job, index in asked], self._timeout):
                    self._answered(*next(waiting), answer)
            except Exception as error:  # noqa: BLE001  the group's future must carry every error
                next(waiting)[0].group.fail(error)
            jobs = [job for job in jobs if not job.done]

    def _answered(self, job: "_Job", index: int, answer: Scores | CallError) -> None:
        if not isinstance(answer, CallError):
            job.group.store(index, answer)
            job.done = index == job.indices[-1]
            return
        if self._closed:
            job.group.fail(_closed())
        elif answer.outside and job.retries < _RETRIES:
            job.retries += 1
            return
        else:
            job.group.blame(index, answer)
        job.done = True


@dataclass(slots=True)
class _Job:
    """Responses of a group that are scored together. done: they have their scores, or the group has failed."""

    group: "_Group"
    indices: range
    retries: int = 0
    done: bool = False


class _Group:
    """A group that the pool is scoring."""

    def __init__(self, rewards: Rewards, setup: Setup, task: Task, responses: Sequence[Response]) -> None:
        self.future: Future[GroupScore] = Future()
        self._rewards = rewards
        self._functions = setup.functions
        self._task = task
        self._responses = responses
        self._scores: dict[int, Scores] = {}
        self._lock = threading.Lock()

    def call(self, index: int) -> Call:
        response = self._responses[index]
        extra_info = {**self._task.extra_info, "response_tokens": response.tokens, "truncated": response.truncated}
        if response.answers is not None:
            extra_info["answers"] = list(response.answers)
        return Call(self._task.data_source, response.text, self._task.ground_truth, extra_info)

    def store(self, index: int, scores: Scores) -> None:
        with self._lock:
            self._scores[index] = scores
            if len(self._scores) == len(self._responses) and not self.future.done():
                self.future.set_result(self._compose())

    def blame(self, index: int, error: CallError) -> None:
        """The user's function failed for response `index`; rewards.onError decides the result."""
        function = self._functions[error.function]
        component = Component(function.name, function.field)
        try:
            score = without_score(self._rewards, component, error.reason, self._task, self._responses, index)
        except RewardError as failure:
            self.fail(failure)
            return
        with self._lock:
            if not self.future.done():
                self.future.set_result(score)

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _compose(self) -> GroupScore:
        total = np.zeros(len(self._responses))
        components: dict[str, Floats] = {}
        spans: list[list[tuple[int, float]]] = [[] for _ in self._responses]
        for i, function in enumerate(self._functions):
            if not function.scores(self._task.data_source):
                continue
            scores = [self._scores[index][i] for index in range(len(self._responses))]
            values = np.array([score.value for score in scores])
            weight = self._rewards.functions[function.place].weight
            total += weight * values
            if any(score.spans for score in scores):
                sums = [sum(value for _, value in score.spans) for score in scores]
                components[f"{function.name}/spans"] = np.array(sums, np.float32)
                for own, score in zip(spans, scores, strict=True):
                    own += [(end, weight * value) for end, value in score.spans]
            components[function.name] = values.astype(np.float32)
            shared = set.intersection(*(set(score.numbers) for score in scores))
            for number in sorted(shared):  # a number that some samples lack has no mean
                components[f"{function.name}/{number}"] = np.array(
                    [score.numbers[number] for score in scores], dtype=np.float32
                )
        return GroupScore(self._task.id, total.astype(np.float32), components, spans=spans if any(spans) else ())


def _start(process: RewardProcess) -> Exception | None:
    try:
        process.start()
    except (RewardError, InfrastructureError) as error:
        return error
    return None


def _setup(rewards: Rewards, base_dir: Path, places: Sequence[int]) -> Setup:
    fields = FunctionSetup.__dataclass_fields__.keys() - {"place"}
    functions = [rewards.functions[place] for place in places]
    setups = [
        FunctionSetup(**{name: getattr(function, name) for name in fields}, place=place)
        for place, function in zip(places, functions, strict=True)
    ]
    return Setup(setups, str(base_dir.resolve()), functions[0].env)


def _closed() -> InfrastructureError:
    return InfrastructureError("the reward pool was closed before the group was scored")
