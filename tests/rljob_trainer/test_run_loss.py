"""Processes that die, hang or are told to end in the middle of a training."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_trainer.checkpoint.manifest import list_checkpoints
from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import (
    GONE_SECONDS,
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

LONG: dict[str, Any] = {"steps": 100_000}

RAISES_NOW_AND_THEN = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if sum(ground_truth.encode()) % 3 == 0:
        raise ValueError("this one")
    return len(set(solution_str)) / 10
"""


@pytest.fixture
def place() -> Iterator[Machine]:
    with machine() as made:
        yield made


@pytest.mark.slow
def test_dynamic_sampling_and_dropped_groups_go_on_when_the_reward_host_dies(place: Machine, tmp_path: Path):
    rewards = {"functions": [{"name": "mine", "source": RAISES_NOW_AND_THEN}], "onError": "drop_group"}
    job = write_job(tmp_path, algorithm={"preset": "dapo"}, rewards=rewards, training=LONG)
    run = tmp_path / "run"
    process = place.start_run(job, "--dir", run)
    wait_for_step(run, 6, process)
    worker(place, "ray::RolloutHost").kill()
    wait_for_step(run, steps(run)[-1] + 3, process)
    interrupt(process)
    ended = finish(process)
    attempts = len(list((run / "attempts").glob("*.exit.json")))  # 2 if the host took groups that no rank had yet
    assert ended.code == 76 == exit_record(run, attempts)["code"], ended.out
    assert "Traceback" not in ended.out
    assert "warning: worker_lost" in ended.out
    lines = trained(run)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert sum(line["groups/dropped"] for line in lines) > 0
    assert sum(line["groups/uninformative"] for line in lines) > 0
    assert "warning: group_dropped" in ended.out


def libraries(process: psutil.Process) -> set[str]:
    return {Path(each.path).name for each in process.memory_maps()}


@pytest.mark.slow
def test_a_driver_never_loads_torch_and_nothing_outlives_a_supervisor_that_is_killed(place: Machine, tmp_path: Path):
    run = tmp_path / "run"
    process = place.start_run(write_job(tmp_path, training=LONG), "--dir", run)
    wait_for_step(run, 1, process)
    assert len(place.processes()) > 8
    assert "libtorch_cpu.so" in libraries(worker(place, "ray::RankHost"))
    assert "libtorch_cpu.so" not in libraries(worker(place, "rljob_trainer.cli driver"))
    process.kill()
    process.wait()
    wait_until(lambda: not place.processes(), GONE_SECONDS)
    assert not Volume(run).exit_record(1).exists(), "no record: infrastructure"


def rests(run: Path) -> bool:
    before = steps(run)
    time.sleep(1.0)
    return steps(run) == before


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_step_that_hangs(place: Machine, tmp_path: Path):
    run = tmp_path / "run"
    process = place.start_run(write_job(tmp_path, training=LONG), "--dir", run)
    wait_for_step(run, 1, process)
    worker(place, "ray::EngineHost").suspend()
    wait_until(lambda: rests(run))  # it may have been about to end a step, which then needs no engine
    interrupt(process)
    with pytest.raises(TimeoutError):  # it waits for the step
        wait_until(lambda: process.poll() is not None, 2.0)
    interrupt(process)
    ended = finish(process)
    assert ended.code == 128 + signal.SIGINT
    assert "Ctrl-C again stops at once" in ended.out
    assert "Traceback" not in ended.out
    assert list_checkpoints(Volume(run)) == []


@pytest.mark.slow
def test_a_run_that_oversamples_trains_on_whole_steps_without_its_slowest_groups(place: Machine, tmp_path: Path):
    """The engine makes one group at a time, so most of those beyond the first four are aborted."""
    sampling = {"dynamicSampling": {"oversample": 1.0}}
    rollout = {"maxNumSeqs": 2}
    job = write_job(tmp_path, algorithm=sampling, rollout=rollout, training={"steps": 3})
    ended = finish(place.start_run(job, "--dir", tmp_path / "run"))
    assert ended.code == 0, ended.out
    lines = trained(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(1 <= line["groups/aborted"] <= 4 for line in lines), [line["groups/aborted"] for line in lines]


@pytest.mark.slow
def test_validations_of_an_average_leave_the_training_as_it_is(place: Machine, tmp_path: Path):
    found = {}
    for name, actor in (("plain", {}), ("averaged", {"emaDecay": 0.5})):
        blocks: dict[str, Any] = {
            "actor": {"learningRate": 3e-2} | actor,
            "data": {"validation": ["synthetic://reverse-text?rows=8&maxLength=6"]},
            "rollout": {"deterministic": True, "validation": {"samplesPerPrompt": 4, "temperature": 1.0}},
            "training": {"steps": 4, "validateEvery": 2},
        }
        job = write_job(tmp_path, name, **blocks)
        ended = finish(place.start_run(job, "--dir", tmp_path / "runs" / name))
        assert ended.code == 0, ended.out
        found[name] = trained(tmp_path / "runs" / name)
    losses = [[line["actor/loss"] for line in found[name]] for name in found]
    assert losses[0] == losses[1]
    rewards = [[line["validation/reward"] for line in found[name] if "validation/reward" in line] for name in found]
    assert len(rewards[0]) == len(rewards[1]) == 2
    assert rewards[0] != rewards[1], "the average answers"
