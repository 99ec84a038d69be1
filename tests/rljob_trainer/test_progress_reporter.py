from datetime import UTC, datetime
from pathlib import Path

import pytest

from rljob_api.v1alpha1 import Progress
from rljob_trainer.progress import names, reporter
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume, read_json
from tests.rljob_trainer.run_support import wait_until


def read(volume: Volume) -> Progress:
    return Progress.model_validate(read_json(volume.progress) or {})


def test_the_file_tells_step_share_rewards_and_end(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with ProgressReporter(volume) as progress:
        progress.begin(step=0, total_steps=60, supervised_steps=20)
        progress.phase("rollout")
        line = {
            "step": 30, "stage": "rl", "time": 0.0, names.TIME_STEP: 2.0, names.REWARD_MEAN: 0.5,
            names.RESPONSE_LENGTH_MEAN: 7.5, names.TOKENS_PER_SECOND: 3000.0, names.POLICY_VERSION: 10.0,
        }  # fmt: skip
        progress.step_done(line)
        progress.step_done(line | {"step": 31, names.VALIDATION_REWARD: 0.6})
        progress.step_done(line | {"step": 32, names.REWARD_MEAN: 0.7})

    found = read(volume)
    assert (found.step, found.total_steps, found.percent, found.stage, found.phase) == (32, 60, 53.3, "rl", "rollout")
    assert (found.reward, found.validation_reward, found.response_tokens) == (0.7, 0.6, 7.5)
    assert (found.tokens_per_second, found.policy_version) == (3000.0, 10)
    assert found.eta is not None
    assert (found.eta - datetime.now(UTC)).total_seconds() == pytest.approx(28 * 2.0, abs=2)


def test_the_validation_before_the_first_rl_step_counts_too(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with ProgressReporter(volume) as progress:
        progress.begin(step=0, total_steps=60)
        progress.validated(0.125)

    assert (read(volume).step, read(volume).validation_reward) == (0, 0.125)


def test_the_end_is_unknown_while_no_rl_step_has_been_measured(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with ProgressReporter(volume) as progress:
        progress.begin(step=0, total_steps=60, supervised_steps=20)
        progress.step_done({"step": 1, "stage": "sft", names.TIME_STEP: 0.1})

    assert read(volume).stage == "sft"
    assert read(volume).eta is None


def test_a_resumed_attempt_keeps_the_last_rewards_until_it_has_its_own(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with ProgressReporter(volume) as first:
        first.begin(step=0, total_steps=10)
        first.step_done({"step": 4, "stage": "rl", names.TIME_STEP: 1.0, names.REWARD_MEAN: 0.25})
    with ProgressReporter(volume) as second:
        second.begin(step=3, total_steps=10)

    assert (read(volume).step, read(volume).reward, read(volume).eta) == (3, 0.25, None)


def test_an_unchanged_file_is_written_again_as_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT", 0.05)
    volume = Volume(tmp_path)
    with ProgressReporter(volume):
        wait_until(volume.progress.exists)
        first = volume.progress.stat().st_mtime_ns
        wait_until(lambda: volume.progress.stat().st_mtime_ns > first)


def test_a_volume_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("a file where a folder should be")
    with ProgressReporter(Volume(tmp_path)) as progress:
        progress.begin(step=0, total_steps=10)
        progress.phase("rollout")

    assert (tmp_path / "control").is_file()


def test_a_damaged_progress_file_is_replaced(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.control.mkdir()
    volume.progress.write_text('{"step": 3, "tot')
    with ProgressReporter(volume) as progress:
        progress.begin(step=1, total_steps=2)

    assert read(volume).percent == 50.0
