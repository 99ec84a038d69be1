"""A driver that is asked to stop before it has begun says so, whatever it is doing then."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from ray.exceptions import RaySystemError

from rljob_api import resolve
from rljob_api.contract import DriverJob
from rljob_api.validation import load_rljob
from rljob_trainer.attempt import driver
from rljob_trainer.attempt.claim import read_exit
from rljob_trainer.attempt.job_file import write_job as write_driver_job
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.local.machine import RLJOB
from rljob_trainer.progress.state import read_object
from rljob_trainer.volume import Volume
from tests.rljob_trainer.ray_support import own_ray
from tests.rljob_trainer.run_support import finish, machine, wait_until, write_job

DELAYS = (0.1, 1.0)
"""Seconds into the connection with Ray, whose own handlers abort a process."""


@pytest.mark.slow
def test_a_driver_that_connects_to_ray_stops_with_a_record(tmp_path: Path):
    volume = Volume(tmp_path / "run")
    spec = resolve(load_rljob(write_job(tmp_path), []).spec)
    volume.control.mkdir(parents=True)
    job = volume.control / "job.json"
    write_driver_job(DriverJob(name="tiny", uid="u1", base_dir=str(tmp_path), spec=spec, reward_models={}), job)

    def waits_for_ray() -> bool:
        return (read_object(volume.progress) or {}).get("phase") == "waiting for Ray"

    with own_ray("elsewhere"), machine() as place:
        address = ray.get_runtime_context().gcs_address
        for attempt, delay in enumerate(DELAYS, start=1):
            volume.progress.unlink(missing_ok=True)
            options = ["--job", job, "--dir", volume.root, "--attempt", str(attempt), "--ray-address", address]
            started = place.start([*RLJOB, "driver", *options])
            wait_until(waits_for_ray)
            time.sleep(delay)
            started.send_signal(signal.SIGTERM)
            ended = finish(started)
            record = read_exit(volume, attempt)
            assert record is not None, ended.out
            assert (record.code, record.reason, ended.code) == (76, "StoppedOnRequest", 76)
            assert "attempt_stopped" in ended.out
            assert "attempt_failed" not in ended.out, "to stop is no error"


AFTER_THE_START = """
import os, signal
from rljob_trainer.attempt.interrupt import Interrupt

interrupt = Interrupt()
interrupt.listen()
print(interrupt.end_start())
os.kill(os.getpid(), signal.SIGTERM)
print(interrupt.asked.is_set(), "and nothing was raised")
"""


def test_a_signal_while_an_attempt_writes_its_record_raises_nothing():
    ended = subprocess.run([sys.executable, "-c", AFTER_THE_START], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n") == ["False", "True and nothing was raised", ""]


CONNECTING = """
import ray, time
from rljob_trainer.attempt import driver

driver.RAY_SECONDS = 0.2
ray.init = lambda **_: time.sleep(1e6)
driver._connect("10.0.0.1:6379", "a-job", lambda error: print(error.message, flush=True))
"""


def test_a_connection_has_a_deadline():
    ended = subprocess.run([sys.executable, "-c", CONNECTING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (75, "waited 0 s for Ray at 10.0.0.1:6379 to answer")


def test_ray_that_does_not_let_a_driver_in_is_no_bug(monkeypatch: pytest.MonkeyPatch):
    def init(**_: object) -> None:
        raise RaySystemError("Failed to connect to GCS")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(InfrastructureError, match=r"Ray at 10\.0\.0\.1:6379 failed: .*connect to GCS"):
        driver._connect("10.0.0.1:6379", "a-job", lambda _: None)
