"""The agent itself and the played agent pass the same tests; what real drivers leave, the trainer's own code writes."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
from rljob_trainer.volume import Volume, read_json
from tests.rljob_operator.head_support import agent, asynchronous
from tests.rljob_operator.played_driver import Driver, Head
from tests.rljob_operator.played_head import PlayedHeads


class Run(Protocol):
    """A run's agent, and what its drivers do."""

    url: str

    def start(self, attempt: int, owner: str | None = None) -> None: ...
    def report(self, step: int, total_steps: int) -> None: ...
    def checkpoint(self, step: int) -> None: ...
    def end(self, error: RLJobError) -> None: ...
    def asked(self) -> Any:
        """What waits for the driver."""


@dataclass
class PlayedRun:
    url: str
    head: Head

    def start(self, attempt: int, owner: str | None = None) -> None:
        variables = {"env_vars": {OWNER_VARIABLE: owner}}
        self.driver = Driver(self.head, f"uid-a{attempt}", "rljob driver", variables)
        self.driver.start()

    def report(self, step: int, total_steps: int) -> None:
        self.driver.step(step, total_steps)

    def checkpoint(self, step: int) -> None:
        self.driver.checkpoint(step)

    def end(self, error: RLJobError) -> None:
        reason = type(error).__name__.removesuffix("Error")
        self.driver.end(error.exit_code, reason, error.message, error.field)

    def asked(self) -> Any:
        return self.head.volume.request


@dataclass
class RealRun:
    url: str
    volume: Volume

    def start(self, attempt: int, owner: str | None = None) -> None:
        self.attempt = attempt
        record_resume(self.volume, attempt, claim(self.volume, attempt, owner), None)

    def report(self, step: int, total_steps: int) -> None:
        with ProgressReporter(self.volume) as progress:
            progress.begin(step=step, total_steps=total_steps)
            progress.phase("rollout")

    def checkpoint(self, step: int) -> None:
        staged = self.volume.checkpoints / "staged"
        staged.mkdir(parents=True)
        commit(staged, self.volume.checkpoint(step, self.attempt), step=step, attempt=self.attempt, reward=0.5)

    def end(self, error: RLJobError) -> None:
        record_exit(self.volume, self.attempt, error)

    def asked(self) -> Any:
        return read_json(self.volume.request)


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
def real(tmp_path: Path) -> Iterator[Run]:
    with real_agent(Volume(tmp_path)) as url:
        yield RealRun(url, Volume(tmp_path))


@pytest.fixture
def played() -> Iterator[Run]:
    with PlayedHeads() as heads:
        head = heads.add("team", "job", agent_token="a")
        yield PlayedRun(HeadAddress(heads.template).agent("team", "job"), head)


@pytest.fixture(params=["real", "played"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


@asynchronous
async def test_before_the_first_attempt_there_is_nothing(run: Run) -> None:
    async with agent(run.url) as client:
        assert await client.progress() is None
        assert await client.newest_checkpoint() is None
        assert await client.last_exit() == LastExit(attempt=0, exit=None)


@asynchronous
async def test_progress_is_what_the_driver_reported_last(run: Run) -> None:
    run.start(1)
    run.report(3, 12)
    async with agent(run.url) as client:
        progress = await client.progress()
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.percent) == (3, 12, 25.0)
    assert (progress.phase, progress.stage, progress.reward) == ("rollout", "rl", None)


@asynchronous
async def test_the_newest_checkpoint_is_that_of_the_highest_step(run: Run) -> None:
    run.start(1)
    run.checkpoint(9)
    run.checkpoint(20)
    async with agent(run.url) as client:
        newest = await client.newest_checkpoint()
    assert newest is not None
    assert newest.step == 20
    assert newest.path.endswith("/checkpoints/step-20-a1")
    assert newest.time.tzinfo is not None


@asynchronous
async def test_an_exit_is_that_of_the_last_attempt(run: Run) -> None:
    ends = (
        (9, DataError("no such file", field="data.train[0]"), (65, "Data", "no such file", "data.train[0]")),
        (10, StoppedOnRequest("stopped after step 3"), (76, "StoppedOnRequest", "stopped after step 3", None)),
    )
    async with agent(run.url) as client:
        for attempt, error, expected in ends:
            run.start(attempt)
            last = await client.last_exit()
            assert (last.attempt, last.exit) == (attempt, None)
            run.end(error)
            record = (await client.last_exit()).exit
            assert record is not None
            assert (record.code, record.reason, record.message, record.field) == expected


@asynchronous
async def test_an_attempt_says_whose_it_is_where_that_is_known(run: Run) -> None:
    async with agent(run.url) as client:
        for attempt, owner in ((1, "uid"), (2, None)):
            run.start(attempt, owner)
            assert (await client.last_exit()).owner == owner


@pytest.mark.parametrize("stop", [True, False])
@asynchronous
async def test_a_request_waits_for_the_driver(run: Run, stop: bool) -> None:
    run.start(1)
    async with agent(run.url) as client:
        await client.request_checkpoint(stop=stop)
        first = run.asked()
        await client.request_checkpoint(stop=stop)
    assert (first["checkpoint"], first["stop"]) == (True, stop)
    assert run.asked()["id"] != first["id"]


@asynchronous
async def test_a_wrong_token_is_refused(run: Run) -> None:
    async with agent(run.url, "wrong") as client:
        for call in (client.progress(), client.last_exit(), client.request_checkpoint(stop=True)):
            with pytest.raises(HeadRefused, match="answered 401: this needs the run's token"):
                await call
    assert run.asked() is None


REQUESTS = [
    ("GET", "/v1/progress"),
    ("GET", "/v1/checkpoints"),
    ("GET", "/v1/exit"),
    ("POST", "/v1/checkpoint"),
    ("POST", "/v1/checkpoint?stop=maybe"),
]


@pytest.mark.parametrize("token", ["a", "wrong", None])
@pytest.mark.parametrize("begun", [False, True])
@asynchronous
async def test_both_answer_alike(real: Run, played: Run, begun: bool, token: str | None) -> None:
    for run in (real, played):
        if begun:
            run.start(1)
            run.report(3, 12)
            run.checkpoint(2)
            run.end(DataError("no such file", field="data.train[0]"))
    for method, path in REQUESTS:
        assert await answer(played, method, path, token) == await answer(real, method, path, token)


async def answer(run: Run, method: str, path: str, token: str | None) -> tuple[int, str, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, run.url + path) as response,
    ):
        return response.status, response.content_type, _shape(json.loads(await response.text()))


def _shape(value: Any) -> Any:
    """Names and types; a claim is the driver's own business."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items() if key != "claim"}
    return [_shape(item) for item in value] if isinstance(value, list) else type(value).__name__
