"""A driver frozen at any file operation of a save, superseded, and thawed: what it still does is harmless.
And one that is killed there."""

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from rljob_trainer.checkpoint.manifest import list_checkpoints, survey, verify
from rljob_trainer.errors import FencedError
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import FileRanks, begin_attempt, checkpoints_of, names, save

SECONDS = 100.0
EVENTS = ("open", "os.", "shutil.")


def freeze_at(operation: int, root: Path) -> None:
    """Stop this process before its operation number `operation` (from 0) on the files of `root`."""
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if not event.startswith(EVENTS) or not arguments:
            return
        path = arguments[0]
        # rmtree names files relative to an open folder.
        if isinstance(path, str | Path) and (str(path).startswith(str(root)) or not str(path).startswith("/")):
            seen += 1
            if seen == operation + 1:
                os.kill(os.getpid(), signal.SIGSTOP)

    sys.addaudithook(count)


def _save_and_freeze(root: Path, operation: int, pipe: Connection) -> None:
    """Attempt 1 saves step 40."""
    checkpoints = checkpoints_of(Volume(root), 1, keepLast=2)
    freeze_at(operation, root)
    try:
        save(checkpoints, 40, {"step": 40}, 0.5, FileRanks())
        pipe.send("saved")
    except FencedError:
        pipe.send("fenced")
    except BaseException as error:  # noqa: BLE001  the test shows it
        pipe.send(repr(error))


def wait_until_stopped(process: psutil.Process, pipe: Connection) -> bool:
    """Whether it stopped; False where it came to its end instead."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if process.status() == psutil.STATUS_STOPPED:
            return True
        if pipe.poll(0.001):
            return False
    raise AssertionError("it neither stopped nor ended")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Attempt 1 with two checkpoints, and something to prune at the next."""
    volume = Volume(tmp_path_factory.mktemp("template"))
    first = begin_attempt(volume, 1, keepLast=2)
    for step in (20, 30):
        first.save(step)
    return volume.root


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_save_that_is_frozen_anywhere_and_superseded_does_no_harm(template, tmp_path, every):
    outcomes = []
    for driver, pipe, volume in frozen_drivers(template, tmp_path, every):
        expected = supersede(volume)
        driver.resume()
        assert pipe.poll(SECONDS), "it did not go on"
        outcomes.append(pipe.recv())
        driver.wait(SECONDS)
        assert_sound(volume, expected)
    assert set(outcomes) == {"fenced", "saved"}, "it never did anything else"
    assert outcomes.index("saved") * every > 20, "frozen before its last look at the attempts, it says it was fenced"
    assert len(outcomes) * every > 40, "the hook sees the operations of a save"


def test_a_save_that_is_killed_anywhere_leaves_a_sound_run(template, tmp_path):
    found = []
    for driver, _, volume in frozen_drivers(template, tmp_path, every=3):
        driver.kill()
        driver.wait(SECONDS)
        expected = supersede(volume)
        assert_sound(volume, expected)
        found.append(expected[0])
    assert set(found) == {"step-40-a2", "step-50-a2"}
    assert (found[0], found[-1]) == ("step-40-a2", "step-50-a2"), "step 40 counts in the end, and not before"


def frozen_drivers(template: Path, folder: Path, every: int = 1) -> Iterator[tuple[psutil.Process, Connection, Volume]]:
    """Attempts 1 that were stopped in a save, one at each of its file operations; each on a volume of its own."""
    context = multiprocessing.get_context("forkserver")
    for operation in itertools.count(step=every):
        volume = Volume(Path(shutil.copytree(template, folder / f"frozen-at-{operation}")))
        ours, theirs = context.Pipe()
        driver = context.Process(target=_save_and_freeze, args=(volume.root, operation, theirs))
        driver.start()
        try:
            if not wait_until_stopped(psutil.Process(driver.pid), ours):
                assert ours.recv() == "saved", "undisturbed, in the end"
                return
            yield psutil.Process(driver.pid), ours, volume
        finally:
            driver.kill()
            driver.join(SECONDS)


def supersede(volume: Volume) -> list[str]:
    """Attempt 2 goes on from what it finds, and saves twice. Returns the names of what counts then."""
    second = begin_attempt(volume, 2, keepLast=2)
    assert second.found.path.name in ("step-30-a1", "step-40-a1")
    second.save(40 if second.found.manifest.step == 30 else 50)
    assert second.save(60).manifest.attempt == 2
    return names(volume)


def assert_sound(volume: Volume, expected: list[str]) -> None:
    assert names(volume) == expected
    for ref in list_checkpoints(volume):
        verify(ref)
    third = begin_attempt(volume, 3, keepLast=2)
    assert third.found.path.name == "step-60-a2"
    left = [path.name for path in volume.checkpoints.iterdir()]
    assert sorted(left) == expected, "the next attempt clears away what the thawed one left"
    assert {each.standing for each in survey(volume)} == {"counts"}
