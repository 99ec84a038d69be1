"""The client of one reward model's server. A failure never becomes a reward. Before the first request to a server that
the job started, or that --reward-model names, it asks which model that serves.
"""

import asyncio
import os
from pathlib import PurePath

from rljob_api.v1alpha1 import RewardModel
from rljob_trainer.errors import RewardError
from rljob_trainer.model_server import Access, ModelServer, NotServed, Rejected
from rljob_trainer.rewards.models.formats import Format, Unscored, format_of
from rljob_trainer.rewards.models.key import read_key
from rljob_trainer.rewards.policy import Component
from rljob_trainer.types import Task

CONCURRENCY = 64
"""Concurrent requests for each server, which vLLM batches."""


class ModelClient:
    """Scores of one model. url: of its server. field: its field in the spec. Use it in one event loop.

    Raises:
        RewardError: scorePattern is invalid.
        JobError: its key is missing.
    """

    def __init__(self, model: RewardModel, url: str, field: str) -> None:
        self.component, self.weight = Component(model.name, field), model.weight
        self._format: Format = format_of(model, field)
        self._model, self._known, self._checking = model, model.url is not None, asyncio.Lock()
        key = read_key(model, field, os.environ)
        most = CONCURRENCY * model.replicas
        access = Access(url, key, model.timeout, model.lost_after, most, model.rate_limit)
        self._server = ModelServer("reward_model", model.name, access)

    async def score(self, task: Task, response: str) -> float:
        """The score of one response.

        Raises:
            Unscored: the answer has no score.
            InfrastructureError: no answer within lostAfter.
            RewardError: the server does not serve this model.
        """
        body = self._format.request(task, response)
        try:
            async with self._server.room:
                await self._check()
                answer = await self._server.ask("POST", self._format.path, body)
        except Rejected as error:
            raise Unscored(str(error)) from error
        except NotServed as error:
            raise RewardError(str(error), field=self.component.field) from error
        return self._format.score(answer)

    async def close(self) -> None:
        await self._server.close()

    async def _check(self) -> None:
        """Once: whether the server serves the model. Requests to a server of rewards.models[].url name it anyway."""
        async with self._checking:
            if not self._known:
                await self._server.check_serves({self._model.name, self._model.path, PurePath(self._model.path).name})
                self._known = True
