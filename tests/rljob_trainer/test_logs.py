"""`rljob logs` of a run's folder, as a person or a pipe reads it."""

import json
import subprocess
import sys

import pytest

from rljob_trainer.attempt.claim import claim
from rljob_trainer.volume import Volume
from tests.rljob_trainer.cli_support import rljob

LOGS = [sys.executable, "-m", "rljob_trainer.cli", "logs"]


def rljob_logs(volume, *options):
    return rljob("logs", volume.root, *options)


def event(name, **values):
    return json.dumps({"event": name, "level": "info", "timestamp": "2026-11-22T12:00:00Z", **values})


def say(volume, attempt, text):
    volume.logs.mkdir(exist_ok=True)
    with volume.log(attempt).open("a") as file:
        file.write(text)


@pytest.fixture
def volume(tmp_path):
    volume = Volume(tmp_path)
    claim(volume, 1)
    say(volume, 1, event("model_loaded") + "\n")
    claim(volume, 2)
    say(volume, 2, event("checkpoint_saved", step=20) + "\nno JSON\n")
    return volume


def test_the_newest_attempt_speaks_for_people_or_as_it_did(volume):
    shown = rljob_logs(volume).stdout.splitlines()
    assert shown[0].split() == ["2026-11-22T12:00:00Z", "[info", "]", "checkpoint_saved", "step=20"]
    assert shown[1:] == ["no JSON"]
    assert rljob_logs(volume, "--json").stdout == volume.log(2).read_text()
    assert "model_loaded" in rljob_logs(volume, "--attempt=1").stdout


@pytest.mark.parametrize(("attempts", "words"), [(0, "no attempt has begun in"), (1, "attempt 1 has no log in")])
def test_what_is_not_there_is_an_error(tmp_path, attempts, words):
    volume = Volume(tmp_path)
    for attempt in range(1, attempts + 1):
        claim(volume, attempt)
    failed = rljob_logs(volume)
    assert failed.returncode == 65
    assert failed.stderr.startswith(f"error: {words}")


def test_who_follows_gets_whole_lines_of_this_attempt_and_of_the_next_ones(volume):
    command = [*LOGS, str(volume.root), "--follow", "--json", "--attempt=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["event"] == "checkpoint_saved"
        assert follower.stdout.readline() == "no JSON\n"
        whole = event("worker_lost") + "\n"
        say(volume, 2, whole[:10])
        say(volume, 2, whole[10:])
        assert follower.stdout.readline() == whole
        claim(volume, 3)
        claim(volume, 4)
        say(volume, 4, "of attempt 4\n")
        assert follower.stdout.readline() == "of attempt 4\n", "the third attempt left no log"
        follower.terminate()


def test_what_users_code_logs_does_not_steer_the_terminal(volume):
    say(volume, 2, event("reward_failed", reason="\x1b[2Jno", **{"a\x1b[1m": 1}) + "\nplain\x1b]0;title\x07\n")
    shown = rljob_logs(volume).stdout
    assert "reason=no" in shown
    assert shown.endswith("plain\n")
    assert "\x1b" not in shown
