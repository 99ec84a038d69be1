"""Scores groups with all reward models of a job, from an event loop in its own thread."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.rewards.models.client import ModelClient
from rljob_trainer.rewards.models.formats import Unscored
from rljob_trainer.rewards.policy import Response, without_score
from rljob_trainer.rewards.scores import GroupScore
from rljob_trainer.types import Floats, Task


class _WithoutScore(Exception):
    """A response has no score, so its group is dropped."""

    def __init__(self, score: GroupScore) -> None:
        super().__init__(score.error)
        self.score = score


class RewardModels:
    """The clients of rewards.models. urls: of their servers, by name.

    Raises:
        RewardError: a scorePattern is invalid.
        JobError: a model has no URL.
    """

    def __init__(self, rewards: Rewards, urls: Mapping[str, str]) -> None:
        self._rewards = rewards
        missing = [model.name for model in rewards.models if model.name not in urls]
        if missing:
            raise JobError(
                f"no server URL for {', '.join(missing)}; start them with rljob run or the operator, "
                "or pass --reward-model NAME=URL",
                field="spec.rewards.models",
            )
        self._clients = [
            ModelClient(model, urls[model.name], f"spec.rewards.models[{i}]") for i, model in enumerate(rewards.models)
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-models", daemon=True)
        self._thread.start()

    def submit(self, task: Task, responses: Sequence[Response]) -> "Future[GroupScore]":
        """Start to score a group: the weighted sum for each response, and each model's own score.

        Safe from many threads at once. The future raises:
            RewardError: an answer has no score, and rewards.onError is fail (drop_group sets GroupScore.error instead);
                or a server does not serve its model.
            InfrastructureError: a server did not answer within lostAfter.
        """
        return self._run(self._score(task, responses))

    def close(self) -> None:
        """Cancel all requests; their futures fail."""
        self._run(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _score(self, task: Task, responses: Sequence[Response]) -> GroupScore:
        asked = [(client, index) for client in self._clients for index in range(len(responses))]
        calls = [asyncio.create_task(self._one(client, task, responses, index)) for client, index in asked]
        try:
            results = await asyncio.gather(*calls)
        except _WithoutScore as error:
            return error.score
        except asyncio.CancelledError:
            raise InfrastructureError("reward models were closed before the group was scored") from None
        finally:
            for call in calls:
                call.cancel()
        scores = np.array([score for score, _ in results]).reshape(len(self._clients), len(responses))
        weights = np.array([client.weight for client in self._clients])
        components: dict[str, Floats] = {
            client.component.name: values.astype(np.float32)
            for client, values in zip(self._clients, scores, strict=True)
        }
        retries = sum(again for _, again in results)
        return GroupScore(task.id, (weights @ scores).astype(np.float32), components, retries=retries)

    async def _one(
        self, client: ModelClient, task: Task, responses: Sequence[Response], index: int
    ) -> tuple[float, int]:
        try:
            return await client.score(task, responses[index].text)
        except Unscored as error:
            score = without_score(self._rewards, client.component, str(error), task, responses, index)
            raise _WithoutScore(score) from error

    async def _close(self) -> None:
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for client in self._clients:
            await client.close()
