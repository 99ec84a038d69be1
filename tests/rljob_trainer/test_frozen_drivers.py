"""Which processes a driver ends when it begins: those of its frozen predecessors, and no others."""

import sys
from pathlib import Path

import psutil
import pytest

from rljob_trainer.attempt.frozen_drivers import end_frozen
from tests.rljob_trainer.run_support import has_ended, machine, wait_until

WAITS = [sys.executable, "-c", "print(flush=True); import time; time.sleep(1e6)"]


@pytest.mark.parametrize(
    ("words", "frozen", "goes"),
    [
        ("driver --job j --dir HERE --attempt 1 --ray-address a", True, True),
        ("driver --attempt 2 --dir HERE/../HERE/.", True, True),
        ("driver --job j --dir HERE --attempt 1", False, False),
        ("driver --job j --dir HERE --attempt 3", True, False),
        ("driver --job j --dir HERE --attempt 4", True, False),
        ("driver --job j --dir /elsewhere --attempt 1", True, False),
        ("agent --dir HERE --attempt 1", True, False),
        ("driver --dir HERE --attempt x", True, False),
        ("driver", True, False),
    ],
)
def test_frozen_drivers_of_earlier_attempts_on_this_volume_are_killed(
    tmp_path: Path, words: str, frozen: bool, goes: bool
):
    root = tmp_path / "run"
    root.mkdir()
    given = words.replace("/../HERE", "/../run").replace("HERE", str(root)).split()
    with machine() as place:
        started = place.start([*WAITS, *given])
        assert started.stdout is not None
        started.stdout.readline()
        process = psutil.Process(started.pid)
        if frozen:
            process.suspend()
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        end_frozen(root, 3)
        if goes:
            wait_until(lambda: has_ended(process))
        else:
            process.resume()
            assert not has_ended(process)
            process.kill()
        started.wait()
