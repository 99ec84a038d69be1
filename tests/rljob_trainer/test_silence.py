"""A driver is silent when it writes nothing while somebody looks; what clocks say does not matter."""

import os
import time

import pytest

from rljob_trainer.local import silence
from rljob_trainer.local.silence import LONGEST_LOOK, Silence
from rljob_trainer.progress.reporter import HEARTBEAT
from rljob_trainer.volume import Volume

ALLOWED = 3.0
DAY = 86_400.0


class Clock:
    """time.monotonic of the supervisor."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(silence, "time", made)
    return made


@pytest.fixture
def volume(tmp_path):
    volume = Volume(tmp_path)
    volume.progress.parent.mkdir(parents=True, exist_ok=True)
    volume.progress.touch()
    return volume


@pytest.fixture
def driver(volume, clock):
    """Watched, and heard of once."""
    watched = Silence(volume, ALLOWED)
    beat(volume, time.time() + 1)
    assert not watched.too_long()
    return watched


def beat(volume: Volume, wall_clock: float) -> None:
    os.utime(volume.progress, (wall_clock, wall_clock))


def looks(driver: Silence, clock: Clock, seconds: float) -> bool:
    """Whether it was silent for too long at a look within so many seconds."""
    found = []
    for _ in range(round(seconds / LONGEST_LOOK)):
        clock.now += LONGEST_LOOK
        found.append(driver.too_long())
    return any(found)


def test_a_driver_that_writes_nothing_is_silent(driver, clock):
    assert not looks(driver, clock, ALLOWED + HEARTBEAT)
    assert looks(driver, clock, LONGEST_LOOK)


@pytest.mark.parametrize("jump", [-50 * 365 * DAY, -60.0, 60.0, 50 * 365 * DAY])
def test_a_sign_of_life_is_one_whatever_the_drivers_clock_says(driver, clock, volume, jump):
    for number in range(10):
        assert not looks(driver, clock, ALLOWED)
        beat(volume, time.time() + jump * (number % 2) + number)
        assert not looks(driver, clock, LONGEST_LOOK)


def test_a_supervisor_that_was_stopped_takes_nobody_for_dead(driver, clock):
    for _ in range(5):
        clock.now += DAY
        assert not driver.too_long()
