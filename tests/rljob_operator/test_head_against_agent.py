"""The agent itself answers as the played one does; what drivers leave there, the trainer's own code writes."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from rljob_api.contract import OWNER_VARIABLE
from rljob_operator.head.address import HeadAddress
from rljob_operator.head.agent import LastExit
from rljob_operator.head.errors import HeadRefused
from rljob_trainer.agent.app import create_app
from rljob_trainer.attempt.claim import claim, record_exit, record_resume
from rljob_trainer.checkpoint.manifest import commit
from rljob_trainer.errors import DataError, RLJobError, StoppedOnRequest
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume, read_json, write_json
from tests.rljob_operator import fabrics
from tests.rljob_operator.head_support import agent, asynchronous
from tests.rljob_operator.played_driver import Driver, Head
from tests.rljob_operator.played_head import PlayedHeads


@dataclass
class RealRun:
    """A run's agent, and what its drivers do."""

    url: str
    volume: Volume

    def start(self, attempt: int, owner: str | None = None) -> None:
        self.attempt = attempt
        record_resume(self.volume, attempt, claim(self.volume, attempt, owner), None)

    def train(self, step: int, total_steps: int) -> None:
        with ProgressReporter(self.volume) as progress:
            progress.begin(step=step, total_steps=total_steps)
            progress.phase("rollout")
        staged = self.volume.checkpoints / "staged"
        staged.mkdir(parents=True)
        commit(staged, self.volume.checkpoint(step, self.attempt), step=step, attempt=self.attempt, reward=0.5)

    def end(self, error: RLJobError) -> None:
        record_exit(self.volume, self.attempt, error)


@dataclass
class PlayedRun:
    url: str
    head: Head

    def start(self, attempt: int, owner: str | None = None) -> None:
        variables = {"env_vars": {OWNER_VARIABLE: owner}}
        self.driver = Driver(self.head, f"uid-a{attempt}", "rljob driver", variables)
        self.driver.start()

    def train(self, step: int, total_steps: int) -> None:
        self.driver.step(step, total_steps)
        self.driver.checkpoint(step)

    def end(self, error: RLJobError) -> None:
        reason = type(error).__name__.removesuffix("Error")
        self.driver.end(error.exit_code, reason, error.message, error.field)


Run = RealRun | PlayedRun


@contextmanager
def real_agent(volume: Volume) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(create_app(volume, "a"), log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealRun]:
    with real_agent(Volume(tmp_path)) as url:
        yield RealRun(url, Volume(tmp_path))


@pytest.fixture
def played() -> Iterator[PlayedRun]:
    with PlayedHeads() as heads:
        head = heads.add("team", "job", agent_token="a")
        yield PlayedRun(HeadAddress(heads.template).agent("team", "job"), head)


@asynchronous
async def test_the_operator_s_client_reads_what_the_trainer_wrote(real: RealRun) -> None:
    async with agent(real.url) as client:
        assert (await client.progress(), await client.newest_checkpoint()) == (None, None)
        assert await client.last_exit() == LastExit(attempt=0, exit=None)
        real.start(9, "uid")
        last = await client.last_exit()
        assert (last.attempt, last.exit, last.owner) == (9, None, "uid")
        for step in (9, 20):
            real.train(step, 80)
        progress, newest = await client.progress(), await client.newest_checkpoint()
        assert progress is not None
        assert (progress.step, progress.total_steps, progress.percent) == (20, 80, 25.0)
        assert (progress.phase, progress.stage, progress.reward) == ("rollout", "rl", None)
        assert newest is not None
        assert (newest.step, newest.path.endswith("/checkpoints/step-20-a9")) == (20, True)
        assert newest.time.tzinfo is not None
        real.end(DataError("no such file", field="data.train[0]"))
        measured = fabrics.measured("worker-1")
        write_json(real.volume.preflight_record(9), measured.model_dump(mode="json", by_alias=True))
        last = await client.last_exit()
        record = last.exit
        assert record is not None
        assert last.preflight == measured
        assert (record.code, record.reason, record.message, record.field) == (
            65, "Data", "no such file", "data.train[0]",
        )  # fmt: skip
        real.start(10)
        last = await client.last_exit()
        assert (last.attempt, last.exit, last.owner) == (10, None, None)


@asynchronous
async def test_a_request_waits_for_the_driver_and_a_wrong_token_asks_for_nothing(real: RealRun) -> None:
    real.start(1)
    async with agent(real.url, "wrong") as client:
        for call in (client.progress(), client.last_exit(), client.request_checkpoint(stop=True)):
            with pytest.raises(HeadRefused, match="answered 401: this needs the run's token"):
                await call
    assert read_json(real.volume.request) is None
    async with agent(real.url) as client:
        asked = list[Any]()
        for stop in (True, True, False):
            await client.request_checkpoint(stop=stop)
            asked.append(read_json(real.volume.request))
    assert [(each["checkpoint"], each["stop"]) for each in asked] == [(True, True), (True, True), (True, False)]
    assert len({each["id"] for each in asked}) == 3


REQUESTS = [
    *(("GET", f"/v1/{each}") for each in ("progress", "checkpoints", "exit")),
    *(("POST", f"/v1/checkpoint{query}") for query in ("", "?stop=true", "?stop=maybe")),
]


@pytest.mark.parametrize("begun", [False, True])
@asynchronous
async def test_both_answer_alike(real: RealRun, played: PlayedRun, begun: bool) -> None:
    for run in (real, played) if begun else ():
        run.start(1)
        run.train(3, 12)
        run.end(StoppedOnRequest("stopped after step 3"))
    for token in ("a", "wrong", None):
        for method, path in REQUESTS:
            assert await answer(played, method, path, token) == await answer(real, method, path, token)


async def answer(run: Run, method: str, path: str, token: str | None) -> tuple[int, str, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, run.url + path) as response,
    ):
        return response.status, response.content_type, _comparable(json.loads(await response.text()))


_OF_ITS_OWN = {"id", "time", "heartbeat", "bytes", "policyVersion", "eta", "tokensPerSecond"}


def _comparable(value: Any) -> Any:
    """Without what differs from run to run, and without the claim, which is the driver's own business."""
    if isinstance(value, dict):
        return {
            key: type(item).__name__ if key in _OF_ITS_OWN else _comparable(item)
            for key, item in value.items() if key != "claim"
        }  # fmt: skip
    if isinstance(value, str):
        return re.sub(r"^/.*(?=/checkpoints/)", "", value)
    return [_comparable(item) for item in value] if isinstance(value, list) else value
