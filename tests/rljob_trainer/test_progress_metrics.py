import json
import math
from pathlib import Path

import pytest

from rljob_trainer.errors import JobError, StorageFullError
from rljob_trainer.progress import names
from rljob_trainer.progress.eta import StepTimes
from rljob_trainer.progress.history import last_line, read_metrics
from rljob_trainer.progress.metrics import MetricsWriter
from rljob_trainer.volume import Volume, write_json


def write_attempt(volume: Volume, attempt: int, parent: int | None, resumed_step: int, steps: range) -> None:
    write_json(volume.claim(attempt), {"attempt": attempt, "parent": parent, "resumedStep": resumed_step})
    with MetricsWriter(volume, attempt) as writer:
        for step in steps:
            writer.write(step, "rl", {names.REWARD_MEAN: attempt + step / 100})


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    write_attempt(volume, 1, None, 0, range(1, 3))
    with volume.metrics(1).open("a") as file:
        file.write('{"step": 3, "stage": "rl", "rew')

    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert last_line(volume, 1)["step"] == 2


def test_a_directory_without_metrics_has_no_history(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    assert last_line(Volume(tmp_path), 1) == {}


def test_a_line_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with MetricsWriter(volume, 1) as writer:
        line = writer.write(7, "sft", {names.ACTOR_LOSS: 0.5})
        assert json.loads(volume.metrics(1).read_text()) == line
    assert (line["step"], line["stage"], line[names.ACTOR_LOSS]) == (7, "sft", 0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_no_number_stops_the_run_by_name(tmp_path: Path, value: float) -> None:
    with MetricsWriter(Volume(tmp_path), 1) as writer, pytest.raises(JobError, match=r"actor/loss is .* at step 4"):
        writer.write(4, "rl", {names.ACTOR_LOSS: value})
    assert read_metrics(tmp_path) == []


def test_a_full_volume_is_an_error_of_the_volume(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.metrics(1).parent.mkdir()
    volume.metrics(1).symlink_to("/dev/full")
    with pytest.raises(StorageFullError, match="no space left"):
        MetricsWriter(volume, 1).write(1, "rl", {})


def test_every_name_is_described_once() -> None:
    constants = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    assert constants == {name for name in names.METRICS if not name.startswith("rollout_corr/")}
    assert all(metric.description for metric in names.METRICS.values())


def test_the_remaining_time_is_the_median_of_usual_steps_plus_each_validation_once() -> None:
    times = StepTimes()
    assert times.remaining(5) is None
    times.add({names.TIME_STEP: 30.0})  # compiles
    for step in range(2, 11):
        validation = {names.TIME_VALIDATION: 4.0} if step % 5 == 0 else {}
        times.add({names.TIME_STEP: 2.0 + sum(validation.values()), **validation})

    # Ten more steps: 2 s each, and two validations of 4 s.
    assert times.remaining(10) == pytest.approx(10 * 2.0 + 2 * 4.0)


def test_the_remaining_time_follows_steps_that_became_longer() -> None:
    times = StepTimes()
    for seconds in [1.0] * 100 + [3.0] * 15:
        times.add({names.TIME_STEP: seconds})

    assert times.remaining(10) == pytest.approx(30.0)
