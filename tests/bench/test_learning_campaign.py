"""The learning benchmark's campaign: it ends when it is asked to, with all that it started, and hides no failure."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.learning import __main__, campaign
from bench.learning.results import append, read
from bench.learning.stop import Stop
from bench.learning.training import RunFailed
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
    patch.setattr(__main__, "write_page", lambda *_: True)
    for name in ("draw", "load_runs", "save"):
        patch.setattr(campaign, name, lambda *_: None)
    __main__.main()


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


def test_results_of_other_settings_do_not_count(tmp_path, monkeypatch):
    tried = replace(RESULT, overrides=["training.steps=4"])
    append(tmp_path / "learning.jsonl", tried)
    monkeypatch.setattr("sys.argv", ["learning", *OPTIONS, str(tmp_path)])
    with pytest.raises(SystemExit, match=r"has results of other --set \(training.steps=4\): give another --output"):
        __main__.main()


def test_what_an_older_commit_measured_is_left_out_if_only_the_unmeasured_is_asked_for(tmp_path, monkeypatch):
    append(tmp_path / "learning.jsonl", replace(RESULT, seed=1, commit="c0"))
    append(tmp_path / "learning.jsonl", replace(RESULT, seed=2, commit="c0", job="another job"))
    monkeypatch.setattr("sys.argv", ["learning", "--unmeasured", *OPTIONS, str(tmp_path)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    play(lambda *_: pytest.fail("seed 1 ran"), monkeypatch)
    assert [(each.seed, each.commit) for each in read(tmp_path / "learning.jsonl")][2:] == [(0, "c1"), (2, "c1")]


@pytest.mark.parametrize(("parallel", "each"), [(1, 0), (4, 4), (11, 2), (16, 1), (40, 1)])
def test_runs_side_by_side_use_every_core(monkeypatch, parallel, each):
    """One run alone is not bound to any."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    places = [slot.cores for slot in campaign.slots(parallel, Stop())]
    assert {len(cores) for cores in places} == {each}
    assert parallel == 1 or {core for cores in places for core in cores} == set(range(16))
