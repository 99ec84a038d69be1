"""The local Ray: nothing is left of it, however its head ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rljob_trainer.attempt.driver import RAY_SECONDS
from rljob_trainer.local.machine import last_line
from rljob_trainer.local.ray_cluster import local_ray, ray_environment
from rljob_trainer.local.ray_head import START_SECONDS
from tests.rljob_trainer.run_support import GONE_SECONDS, has_ended, machine, wait_until


def session_of(process: psutil.Process) -> int:
    """0 for one that has just ended."""
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return 0


HOLDER = """
import os, sys, time
from pathlib import Path
from rljob_trainer.local.ray_cluster import local_ray, ray_environment

with local_ray(0, "hf", Path(sys.argv[1]), {**os.environ, **ray_environment()}) as ray:
    while "at once" not in sys.argv and not ray.address_file.exists():
        time.sleep(0.05)
    print(ray.head.pid, flush=True)
    time.sleep(1e6)
"""
"""What the supervisor does with Ray."""


@pytest.mark.slow
def test_nothing_is_left_of_a_frozen_head_whose_supervisor_is_killed(tmp_path: Path):
    with machine() as place:
        supervisor = place.start([sys.executable, "-c", HOLDER, tmp_path / "ray.log"])
        assert supervisor.stdout is not None
        psutil.Process(int(supervisor.stdout.readline())).suspend()
        supervisor.kill()
        supervisor.wait()


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.6])
def test_nothing_is_left_of_a_head_that_starts_while_its_supervisor_is_killed(tmp_path: Path, seconds: float):
    with machine() as place:
        supervisor = place.start([sys.executable, "-c", HOLDER, tmp_path / "ray.log", "at once"])
        assert supervisor.stdout is not None
        head = psutil.Process(int(supervisor.stdout.readline()))
        time.sleep(seconds)
        supervisor.kill()
        supervisor.wait()
        wait_until(lambda: has_ended(head), GONE_SECONDS)


TOLD = """
import os, signal, sys, time
from rljob_trainer.local import process_guard, ray_head

class Destroyed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

def tell(*_):
    Destroyed()

def start(*_):
    tell()
    return "127.0.0.1:6379"

ray_head._start = start
ray_head.wake_when_orphaned = lambda: None
process_guard.wake_when_orphaned = tell
{"ray_head": ray_head, "process_guard": process_guard}[sys.argv.pop(1)].main()
"""
"""Told to end where Python drops what a signal's handler raises: in a destructor."""


@pytest.mark.parametrize("command", [["ray_head", "FOLDER", "0", "hf"], ["process_guard", "FOLDER", "sleep", "1000"]])
def test_it_ends_whenever_it_is_told_to(tmp_path: Path, command: list[str]):
    with machine() as place:
        (place.temporary / "rljob-ray").mkdir()
        given = [str(place.temporary / "rljob-ray") if each == "FOLDER" else each for each in command]
        told = place.start([sys.executable, "-c", TOLD, *given])
        assert told.wait(GONE_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["was killed", "was frozen"])
def test_nothing_is_left_of_a_ray_whose_head(sign: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with machine() as place:
        monkeypatch.setenv("TMPDIR", str(place.temporary))
        monkeypatch.setattr("tempfile.tempdir", None)  # it is read again
        environment = {**os.environ, **place.environment, **ray_environment(), "RLJOB_TEST": place.marker}
        with local_ray(0, "hf", tmp_path / "ray.log", environment) as ray:
            wait_until(ray.address_file.exists)
            agents = [each for each in psutil.process_iter() if session_of(each) == ray.head.pid]
            assert len(agents) > 3, "with those that Ray's own processes started"
            psutil.Process(ray.head.pid).send_signal(sign)
        assert all(map(has_ended, agents))


CONNECT = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"


@pytest.mark.slow
def test_a_driver_is_connected_before_there_is_a_worker(tmp_path: Path):
    """Ray's call holds the GIL: a driver that waits in it sends no heartbeats and looks hung."""
    with machine() as place:
        environment = {**os.environ, **place.environment, **ray_environment(), "RLJOB_TEST": place.marker}
        with local_ray(0, "hf", tmp_path / "ray.log", environment) as ray:
            wait_until(ray.address_file.exists)
            children = psutil.Process(ray.head.pid).children()
            (preloaded,) = [each for each in children if "rljob_trainer.local.preloaded" in each.cmdline()]
            preloaded.suspend()
            subprocess.run([sys.executable, "-c", CONNECT, ray.address_file.read_text()], env=environment, check=True)
            assert preloaded.is_running(), "no worker starts before the head has ended it"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
@pytest.mark.parametrize(
    ("sign", "how"),
    [(signal.SIGKILL, "ended while it started"), (signal.SIGSTOP, "has been stopped for 10 s")],
    ids=["was killed", "was frozen"],
)
def test_a_ray_that_loses_a_process_while_it_starts(sign: signal.Signals, how: str, name: str, tmp_path: Path):
    """Ray itself would wait for it, for 30 s or for ever."""
    log = tmp_path / "ray.log"

    def child(name: str) -> psutil.Process | None:
        children = psutil.Process(ray.head.pid).children()
        return next((each for each in children if each.name() == name), None)

    with machine() as place:
        environment = {**os.environ, **place.environment, **ray_environment(), "RLJOB_TEST": place.marker}
        with local_ray(0, "hf", log, environment) as ray:
            wait_until(lambda: child("raylet"))
            struck = child(name)
            assert struck is not None
            struck.send_signal(sign)
            assert ray.head.wait(GONE_SECONDS) == 1
            assert not ray.address_file.exists()
    assert last_line(log) == f"Ray's process {name} {how}"


def test_the_head_gives_ray_up_before_the_driver_does():
    assert START_SECONDS < RAY_SECONDS - 20, "seconds in which the head imports what it needs"
