"""A run that is asked for a checkpoint, is stopped, goes on and finishes; and every command that looks at it."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_trainer.checkpoint.manifest import list_checkpoints
from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import (
    Ended,
    Machine,
    exit_record,
    finish,
    interrupt,
    machine,
    steps,
    trained,
    wait_for_step,
    wait_until,
    worker,
    write_job,
)

SFT_STEPS = 2


@dataclass
class Story:
    """What happened, in this order."""

    place: Machine
    job: Path
    run: Path
    second: Ended
    asked: int
    stopped: Ended
    stopped_at: int
    resumed: Ended
    again: Ended


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("resume")
    job = write_job(folder, sft={"steps": SFT_STEPS}, training={"steps": 10_000, "loggers": ["console", "tensorboard"]})
    run = folder / "run"
    agent_log = run / "logs/agent.log"
    with machine() as place:
        stale = Volume(run).request
        stale.parent.mkdir(parents=True)
        stale.write_text('{"id": "of a former attempt", "checkpoint": true, "stop": true}')
        first = place.start_run(job, "--dir", run)
        wait_for_step(run, SFT_STEPS + 1, first)
        second = place.rljob("run", job, "--dir", run)
        asked = _ask_for_checkpoint(run)
        wait_until(lambda: list_checkpoints(Volume(run)))
        worker(place, "rljob_trainer.cli agent").kill()
        wait_until(lambda: "http://" not in agent_log.read_text())  # another one has begun
        wait_until(lambda: "http://" in agent_log.read_text())
        interrupt(first)
        stopped = finish(first)
        at = steps(run)[-1]
        more = ("--set", f"training.steps={at - SFT_STEPS + 2}")
        resumed = place.rljob("run", job, "--dir", run, *more)
        again = place.rljob("run", job, "--dir", run, *more)
        yield Story(place, job, run, second, asked, stopped, at, resumed, again)


def _ask_for_checkpoint(run: Path) -> int:
    """Through the agent, without stopping. Returns the status of the answer."""
    url = (run / "logs/agent.log").read_text().split()[-1]
    token = (run / "control/agent-token").read_text()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/checkpoint?stop=false", headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)


def test_the_file_of_a_former_request_stops_nothing(story: Story):
    assert steps(story.run)[0] == 1


def test_a_second_run_in_the_same_folder_refuses_and_says_who_is_there(story: Story):
    assert story.second.code == 77
    assert story.second.out.startswith("error: process ")
    assert "trains in" in story.second.out


def test_the_agent_takes_a_request_for_a_checkpoint_and_the_training_goes_on(story: Story):
    assert story.asked == 202
    assert not Volume(story.run).request.exists()
    between = [ref.manifest.step for ref in list_checkpoints(Volume(story.run)) if ref.manifest.attempt == 1]
    assert len(between) == 2, "the one asked for and the one of Ctrl-C"


def test_ctrl_c_saves_a_checkpoint_after_the_step_that_runs(story: Story):
    assert story.stopped.code == 76
    assert exit_record(story.run, 1)["code"] == 76
    assert list_checkpoints(Volume(story.run))[-2].manifest.step == story.stopped_at
    assert "Traceback" not in story.stopped.out


def test_startup_is_shown_and_the_agent_is_announced(story: Story):
    for words in ("waiting for Ray", "agent listens on http://127.0.0.1:"):  # briefer phases may fall between two looks
        assert words in story.stopped.out


def test_an_agent_that_dies_is_started_again(story: Story):
    assert story.stopped.out.count("the agent exited; restarting it") == 1
    assert story.stopped.out.count("agent listens on") == 2


def test_the_same_command_goes_on_where_it_stopped(story: Story):
    assert story.resumed.code == 0
    total = story.stopped_at + 2
    assert steps(story.run) == list(range(1, total + 1)), "no gap and no repetition"
    assert [line["stage"] for line in trained(story.run)] == ["sft"] * SFT_STEPS + ["rl"] * (total - SFT_STEPS)
    claim = json.loads(Volume(story.run).claim(2).read_text())
    assert claim["resumedStep"] == story.stopped_at, story.resumed.out
    assert claim["owner"] == json.loads(Volume(story.run).job.read_text())["jobUid"]
    assert f"attempt 2 goes on from step {story.stopped_at}" in story.resumed.out


def test_a_finished_run_says_so_and_starts_nothing(story: Story):
    assert story.again.code == 0
    assert "nothing left to do" in story.again.out
    assert "training.steps" in story.again.out
    assert not Volume(story.run).claim(3).exists()


def test_its_commands_read_it(story: Story, tmp_path: Path):
    listed = story.place.rljob("checkpoints", story.run)
    assert (listed.code, listed.out.count("whole")) == (0, 3)
    status = story.place.rljob("status", story.run)
    assert (status.code, "done, attempt 2" in status.out) == (0, True)
    plotted = story.place.rljob("plot", story.run, "--output", tmp_path / "curves.png")
    assert plotted.code == 0, plotted.out
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_its_export_is_a_model_that_transformers_loads(story: Story, tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported = story.place.rljob("export", story.run, tmp_path / "model")
    assert exported.code == 0, exported.out
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not loading["missing_keys"]
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) == model.config.vocab_size


def test_trackers_get_every_step(story: Story):
    assert list((story.run / "tensorboard").rglob("events.*")) or list(story.run.rglob("events.out.*"))
