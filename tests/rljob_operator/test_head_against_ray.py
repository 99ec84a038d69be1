"""Ray itself and the played Ray pass the same tests, so a test with played heads says something about real ones.

One real head serves the module, started as KubeRay starts it.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_operator.head.address import HeadAddress
from rljob_operator.head.errors import HeadError, HeadRefused, HeadUnreachable
from rljob_operator.head.ray_jobs import RayJob, RayJobState
from rljob_trainer.local.machine import end_child, last_line, start_child
from rljob_trainer.local.ray_cluster import ray_environment
from tests.rljob_operator.head_support import asynchronous, finished, poll, ray_jobs
from tests.rljob_operator.played_driver import Driver, until
from tests.rljob_operator.played_head import PlayedHeads

pytestmark = pytest.mark.slow

METHOD_NOT_ALLOWED = 405

FIRST = "first-a1"
SUCCEEDS = "true"
FAILS = "echo last words; exit 65"
KILLED = "kill -KILL $$"
SLEEPS = "exec sleep 600"
FINISHES = 'cd "$FOLDER"; trap "sleep 4; touch finished; exit 76" TERM; touch ready; sleep 600 & wait'
"""After SIGTERM it needs longer than Ray's own 3 s."""


@dataclass(frozen=True)
class Server:
    url: str
    token: str


async def shell(driver: Driver) -> None:
    """What a shell does with these commands. No attempt begins: there is no volume."""
    driver.state = "RUNNING"
    match driver.entrypoint:
        case entrypoint if entrypoint == SUCCEEDS:
            driver.end(0)
        case entrypoint if entrypoint == FAILS:
            driver.end(65)
        case entrypoint if entrypoint == KILLED:
            driver.crash(-signal.SIGKILL)
        case entrypoint if entrypoint == SLEEPS:
            await until(lambda: driver.stopping)
            driver.crash(-signal.SIGTERM)
        case entrypoint if entrypoint == FINISHES:
            _touch(driver, "ready")
            await until(lambda: driver.stopping)
            if driver.stop_wait >= 4:
                _touch(driver, "finished")
                driver.end(76)


def _touch(driver: Driver, name: str) -> None:
    assert driver.runtime_env is not None
    (Path(driver.runtime_env["env_vars"]["FOLDER"]) / name).touch()


@pytest.fixture(scope="module")
def played() -> Iterator[Server]:
    with PlayedHeads() as heads:
        heads.add("team", "job", script=shell, ray_token="r")
        server = Server(HeadAddress(heads.template).ray("team", "job"), "r")
        submit_first(server)
        yield server


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    with ray_head() as server:
        yield server


@pytest.fixture(params=["real", "played"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@contextmanager
def ray_head() -> Iterator[Server]:
    """Nothing is left of it at the end, neither processes nor files."""
    folder = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp"))  # short: Ray's sockets are in it
    shared = ray_environment()
    port, token = _free_port(), shared["RAY_AUTH_TOKEN"]
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=1", "--port=0"),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
        *("--include-dashboard=true", "--dashboard-agent-listen-port=0", "--include-log-monitor=false"),
        *("--object-store-memory=80000000", f"--temp-dir={folder}", "--disable-usage-stats"),
    ]
    environment = {**os.environ, **shared, "TMPDIR": str(folder)}
    head = start_child(command, folder / "ray.log", environment, orphaned=signal.SIGTERM)
    try:
        server = Server(f"http://127.0.0.1:{port}", token)
        submit_first(server)
        yield server
    except TimeoutError as error:
        error.add_note(f"Ray said last: {last_line(folder / 'ray.log')}")
        raise
    finally:
        _kill_all(head.pid, token)
        end_child(head)
        shutil.rmtree(folder, ignore_errors=True)


@asynchronous
async def submit_first(server: Server) -> None:
    """Ray's dashboard answers before it knows of jobs (405), and knows of them before it can start a driver."""

    async def submits() -> bool:
        try:
            await jobs.submit(FIRST, SUCCEEDS, stop_wait=1)
        except HeadError as error:
            if error.status != METHOD_NOT_ALLOWED and not isinstance(error, HeadUnreachable):
                raise
            return False
        return True

    async with ray_jobs(server.url, server.token) as jobs:
        await poll(submits, bool)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _kill_all(session: int, token: str) -> None:
    """Drivers lead sessions of their own, but have the token in their environment; Ray's processes overwrite theirs."""
    while left := [process for process in psutil.process_iter() if _belongs(process, session, token)]:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _belongs(process: psutil.Process, session: int, token: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) == session or process.environ().get("RAY_AUTH_TOKEN") == token
    except (psutil.Error, ProcessLookupError):
        return False


@asynchronous
async def test_an_unknown_submission_a_wrong_token_and_a_request_that_is_no_request(server: Server) -> None:
    wrong: Any = {"attempt": 1}
    async with ray_jobs(server.url, "wrong") as jobs:
        for call in (jobs.status(FIRST), jobs.stop(FIRST), jobs.submit("mine", SUCCEEDS, stop_wait=1)):
            with pytest.raises(HeadRefused, match="answered 403: Forbidden: Invalid authentication token"):
                await call
    async with ray_jobs(server.url, server.token) as jobs:
        with pytest.raises(HeadRefused, match=r"answered 400: .*metadata values must be strings"):
            await jobs.submit("mine", SUCCEEDS, stop_wait=1, metadata=wrong)
        for submission in ("mine", "unknown-a1"):
            assert await jobs.status(submission) is None
            assert await jobs.stop(submission) is False
        job = await finished(jobs, FIRST)
        assert (job.state, job.driver_exit_code) == (RayJobState.SUCCEEDED, 0)


@pytest.mark.parametrize(("entrypoint", "code"), [(FAILS, 65), (KILLED, -9)], ids=["code", "signal"])
@asynchronous
async def test_failure(server: Server, entrypoint: str, code: int) -> None:
    async with ray_jobs(server.url, server.token) as jobs:
        await jobs.submit(f"failure-a{abs(code)}", entrypoint, stop_wait=1)
        job = await finished(jobs, f"failure-a{abs(code)}")
    assert (job.state, job.driver_exit_code) == (RayJobState.FAILED, code)
    assert f"failed with exit code {code}" in job.message


@asynchronous
async def test_a_submission_that_runs_is_started_once_and_stopped(server: Server) -> None:
    async with ray_jobs(server.url, server.token) as jobs:
        for _ in range(3):
            await jobs.submit("running-a1", SLEEPS, stop_wait=600)
        await poll(lambda: jobs.status("running-a1"), lambda job: job and job.state is RayJobState.RUNNING)
        await jobs.submit("running-a1", FAILS, stop_wait=600)
        assert await jobs.stop("running-a1") is True
        job = await finished(jobs, "running-a1")
        assert (job.state, job.driver_exit_code) == (RayJobState.STOPPED, None)
        await poll(lambda: jobs.stop("running-a1"), lambda stopped: stopped is False)  # Ray ends its supervisor later
        await jobs.submit("running-a1", SLEEPS, stop_wait=600)
        assert await finished(jobs, "running-a1") == job


@asynchronous
async def test_a_driver_has_its_time_to_stop(server: Server, tmp_path: Path) -> None:
    waits = {tmp_path / "enough": 600, tmp_path / "too little": 1}
    async with ray_jobs(server.url, server.token) as jobs:

        async def submit_and_stop(folder: Path, stop_wait: int) -> RayJob:
            submission_id = f"finishing-a{stop_wait}"
            await jobs.submit(submission_id, FINISHES, stop_wait=stop_wait, env_vars={"FOLDER": str(folder)})
            await poll(lambda: asyncio.to_thread((folder / "ready").exists), bool)
            await jobs.stop(submission_id)
            return await finished(jobs, submission_id)

        for folder in waits:
            folder.mkdir()
        ended = await asyncio.gather(*(submit_and_stop(folder, wait) for folder, wait in waits.items()))
    assert [(job.state, job.driver_exit_code) for job in ended] == [(RayJobState.STOPPED, None)] * 2
    assert [(folder / "finished").exists() for folder in waits] == [True, False]
