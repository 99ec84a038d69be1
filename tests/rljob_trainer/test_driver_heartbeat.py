"""A driver hangs if it writes nothing between polls; clocks do not matter."""

import os
import time

import pytest

from rljob_trainer.local.driver_heartbeat import LONGEST_LOOK, DriverHeartbeat
from rljob_trainer.progress.reporter import HEARTBEAT
from rljob_trainer.volume import Volume

ALLOWED = 3.0
DAY = 86_400.0


class Clock:
    """Of the supervisor."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def volume(tmp_path):
    volume = Volume(tmp_path)
    volume.progress.parent.mkdir(parents=True, exist_ok=True)
    volume.progress.touch()
    return volume


@pytest.fixture
def driver(volume, clock):
    """Watched, after one heartbeat."""
    watched = DriverHeartbeat(volume, ALLOWED, clock)
    beat(volume, time.time() + 1)
    assert not watched.is_overdue()
    return watched


def beat(volume: Volume, wall_clock: float) -> None:
    os.utime(volume.progress, (wall_clock, wall_clock))


def looks(driver: DriverHeartbeat, clock: Clock, seconds: float) -> bool:
    """Whether it was overdue at a poll within so many seconds."""
    found = []
    for _ in range(round(seconds / LONGEST_LOOK)):
        clock.now += LONGEST_LOOK
        found.append(driver.is_overdue())
    return any(found)


def test_a_driver_that_writes_nothing_is_overdue(driver, clock):
    assert not looks(driver, clock, ALLOWED + HEARTBEAT)
    assert looks(driver, clock, LONGEST_LOOK)


@pytest.mark.parametrize("jump", [-50 * 365 * DAY, -60.0, 60.0, 50 * 365 * DAY])
def test_a_heartbeat_counts_whatever_the_drivers_clock_says(driver, clock, volume, jump):
    for number in range(10):
        assert not looks(driver, clock, ALLOWED)
        beat(volume, time.time() + jump * (number % 2) + number)
        assert not looks(driver, clock, LONGEST_LOOK)


def test_a_supervisor_that_was_stopped_kills_no_driver(driver, clock):
    for _ in range(5):
        clock.now += DAY
        assert not driver.is_overdue()
