"""Samples and scores the tasks: the engine runs in this thread, rewards in their own processes."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from rljob_trainer.engines.engine import Completion, Request, RolloutEngine
from rljob_trainer.rewards.scorer import Scorer
from rljob_trainer.rollouts.episodes import turn_seed
from rljob_trainer.types import Episode, Group, Sampling, Task, answered


async def groups(
    tasks: Sequence[Task], engine: RolloutEngine, scorer: Scorer, sampling: Sampling, samples: int, seed: int,
    running: int, scored: Callable[[int], None],
) -> list[Group]:  # fmt: skip
    """The scored answers to `tasks`, in their order; `samples` each, with the seeds of a run's validation.

    running: samples that the engine generates at once. scored: called with the number of scored tasks.
    Raises RewardError if a reward cannot score, InfrastructureError if the engine fails.
    """
    by_id = {task.id: task for task in tasks}
    waiting = list(reversed(tasks))
    answers: dict[str, list[Completion]] = {task.id: [] for task in tasks}
    scoring: list[asyncio.Task[Group]] = []
    finished = count(1)
    while waiting or engine.unfinished:
        while waiting and engine.unfinished < 2 * running:
            task = waiting.pop()
            seeds = tuple(turn_seed(seed, task.id, sample, 0) for sample in range(samples))
            engine.submit(Request(task.id, task.token_ids, sampling, seeds))
        for completion in engine.step():
            answers[completion.request_id].append(completion)
            if len(answers[completion.request_id]) == samples:
                task, found = by_id[completion.request_id], answers.pop(completion.request_id)
                scoring.append(asyncio.create_task(scorer.score(task, _episodes(task, found, sampling))))
                scoring[-1].add_done_callback(lambda _: scored(next(finished)))
        await asyncio.sleep(0)
        _raise_errors(scoring)
    order = {task.id: index for index, task in enumerate(tasks)}
    return sorted(await asyncio.gather(*scoring), key=lambda group: order[group.task.id])


def _raise_errors(scoring: Sequence["asyncio.Task[Group]"]) -> None:
    for each in scoring:
        if each.done():
            each.result()


def _episodes(task: Task, found: Sequence[Completion], sampling: Sampling) -> list[Episode]:
    return [
        Episode(task.id, each.sample, (trajectory,), "truncated" if trajectory.truncated else "finished")
        for each in sorted(found, key=lambda completion: completion.sample)
        for trajectory in [
            answered(
                task.token_ids, each.token_ids, each.log_probs, each.versions, sampling.temperature, each.finish_reason
            )
        ]
    ]
