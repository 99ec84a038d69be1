"""The learning benchmark's campaign: it ends when it is asked to, with all that it started, and hides no failure."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.learning import __main__, campaign
from bench.learning.results import alone_with, append, read
from bench.learning.stop import Stop
from bench.learning.training import RunFailed, Slot
from tests.bench.learning_result import RESULT

ROOT = Path(__file__).parents[2]
OPTIONS = ["--tasks", "reverse-text", "--arms", "grpo", "--seeds", "0", "1", "2", "--commit", "c1", "--output"]


def play(run, patch):
    """A campaign of three seeds that trains nothing; `run` is what the second does, given its slot and folder."""

    def train(_arm, seed, slot, folder, _extra, commit):
        if seed == 1:
            run(slot, folder)
        folder.mkdir()
        return replace(RESULT, seed=seed, commit=commit)

    patch.setattr(campaign, "train", train)
    for name in ("draw", "load_runs", "save"):
        patch.setattr(campaign, name, lambda *_: None)
    __main__.main()


def play_command(command):
    play(lambda slot, folder: slot.run(["sh", "-c", command], folder.with_suffix(".log")), pytest.MonkeyPatch())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_campaign_that_is_told_to_stop_ends_what_runs_and_keeps_what_is_finished(tmp_path, number):
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    orderly = f"trap 'sleep 0.5; touch {ended}; exit 76' TERM; echo $$ > {begun}; while :; do sleep 0.05; done"
    played = f"from tests.bench.test_learning_campaign import play_command; play_command({orderly!r})"
    running = subprocess.Popen(
        [sys.executable, "-c", played, *OPTIONS, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    wait_for(begun)
    run = psutil.Process(int(begun.read_text()))
    os.killpg(running.pid, number)  # as a terminal does
    said, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number, said
    assert "the same command goes on with the rest" in said
    assert ended.exists(), "the campaign decides about its runs, and waits for them"
    assert not run.is_running()
    assert [result.seed for result in read(tmp_path / "learning.jsonl")] == [0]
    assert not list(tmp_path.glob("rljob-learning-*"))


def test_a_run_is_told_as_often_as_the_campaign_is(tmp_path):
    stop, begun = Stop(), tmp_path / "begun"
    command = f"n=0; trap 'n=$((n+1)); [ $n = 2 ] && exit 3' TERM; echo > {begun}; while :; do sleep 0.05; done"

    def ask_twice():
        wait_for(begun)
        stop.asked = 1
        time.sleep(0.5)
        stop.asked = 2

    asking = threading.Thread(target=ask_twice)
    asking.start()
    with pytest.raises(RunFailed, match="ended with 3"):
        Slot(None, stop=stop).run(["sh", "-c", command], tmp_path / "log")
    asking.join()


def test_nothing_begins_after_a_stop(tmp_path):
    with pytest.raises(RunFailed, match="before it began"):
        Slot(None, stop=Stop(asked=1)).run(["touch", str(tmp_path / "begun")], tmp_path / "log")
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("error", [RunFailed("ended with 70"), KeyError("a bug")], ids=repr)
def test_whatever_ends_a_run_costs_that_run_alone_and_the_exit_code(tmp_path, monkeypatch, error):
    def fail(_slot, _folder):
        raise error

    monkeypatch.setattr("sys.argv", ["learning", *OPTIONS, str(tmp_path)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        play(fail, monkeypatch)
    assert ended.value.code == f"reverse-text, grpo, seed 1: {type(error).__name__}: {error}"
    assert {result.seed for result in read(tmp_path / "learning.jsonl")} == {0, 2}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--arms", "grpoo"], "invalid choice: 'grpoo' (choose from 'grpo', 'vllm', 'TRL', "),
        (["--seeds", "7"], "invalid choice: 7 (choose from 0, 1, 2, 3, 4, 5)"),
        (["--parallel", "0"], "argument --parallel: must be 1 or more"),
        (["--limit-minutes", "-3"], "argument --limit-minutes: must be 0 or more"),
        (["--limit-minutes", "nan"], "argument --limit-minutes: must be 0 or more"),
        (["--limit-minutes", "soon"], "argument --limit-minutes: must be 0 or more"),
        (
            ["--tasks", "addition", "--arms", "TRL"],
            "there are: addition, grpo, seeds 0 1 2; addition, learning rate 0, ",
        ),
        (["--arms", "advantage rloo", "--seeds", "3"], "reverse-text, advantage rloo, seeds 0; "),
        (["--output", "docs/benchmarks", "--set", "training.steps=4"], "--set changes what is measured: give an"),
        (["--output", "/dev/null/page"], "Not a directory: '/dev/null/page'"),
        (["--output", "OUTPUT", "--set", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_call_is_told_what_would_be_right(monkeypatch, capsys, tmp_path, wrong, said):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(__main__, "Campaign", None)  # nothing may run
    monkeypatch.setattr("sys.argv", ["learning", *(str(tmp_path) if each == "OUTPUT" else each for each in wrong)])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_tells_arms_apart_whose_names_have_commas(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["learning", "--help"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert "'grpo, KL 0.2', 'shuffled rewards, KL 0.2', " in " ".join(capsys.readouterr().out.split())


def test_results_of_other_settings_do_not_count(tmp_path, monkeypatch):
    tried = replace(RESULT, overrides=["training.steps=4"])
    append(tmp_path / "learning.jsonl", tried)
    monkeypatch.setattr("sys.argv", ["learning", *OPTIONS, str(tmp_path)])
    with pytest.raises(SystemExit, match=r"has results of other --set \(training.steps=4\): give another --output"):
        __main__.main()


def test_two_campaigns_do_not_share_an_output(tmp_path, monkeypatch):
    file = tmp_path / "learning.jsonl"
    monkeypatch.setattr("sys.argv", ["learning", *OPTIONS, str(tmp_path)])
    with (
        alone_with(file),
        pytest.raises(SystemExit, match=r"another campaign adds to .*learning.jsonl: wait for it, or give another"),
    ):
        __main__.main()


def wait_for(file):
    deadline = time.monotonic() + 60
    while not file.exists() or not file.stat().st_size:
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.05)
