"""The learning benchmark's own arithmetic: what counts as done, what a run's curves are, whose reward is paid."""

from dataclasses import replace

import pytest

from bench.learning import shuffled
from bench.learning.__main__ import OUTPUT
from bench.learning.arms import ADDITION, REVERSE_TEXT, Arm
from bench.learning.data import digest
from bench.learning.results import append, curves, missing, newest, read
from bench.learning.training import known_arms
from rljob_api import resolve
from rljob_api.validation import load_rljob
from tests.bench.learning_result import RESULT


@pytest.mark.parametrize("arm", known_arms(), ids=lambda arm: f"{arm.task.name}, {arm.name}")
def test_every_arm_is_a_valid_job(arm):
    assert resolve(load_rljob(arm.task.example, list(arm.overrides)).spec).total_steps > 0


def test_a_run_is_missing_until_there_is_a_result_of_its_commit(tmp_path):
    file = tmp_path / "learning.jsonl"
    arm = Arm(REVERSE_TEXT, "grpo", "main", seeds=(0, 1))
    append(file, RESULT)
    append(file, replace(RESULT, seed=1, commit="c0"))
    assert missing([arm], read(file), {"reverse-text": "c1"}) == [(arm, 1)]
    append(file, replace(RESULT, seed=1))
    assert missing([arm], read(file), {"reverse-text": "c1"}) == []
    assert newest(read(file))["reverse-text", "grpo", 1].commit == "c1"
    append(file, replace(RESULT, commit="c2+"))
    assert (arm, 0) in missing([arm], read(file), {"reverse-text": "c2+"}), "of files that were changed"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("steps: 250", "steps: 200", False),
        ("minDigits=2&split", "minDigits=2&seed=1&split", False),
        ("kind: RLJob", "kind: RLJob   # that adds", True),
        ("preset: grpo", "preset: grpo, entropyCoefficient: null", True),
        ("recompute: none", "recompute: layer", False),
        ("{gpusPerNode: 0}", "{gpusPerNode: 0, nodes: 1}", True),  # its default
    ],
)
def test_a_digest_is_of_the_job_however_it_is_written(tmp_path, monkeypatch, old, new, same):
    text, before = ADDITION.example.read_text(), digest(ADDITION)
    assert old in text
    monkeypatch.setattr("bench.learning.arms.ROOT", tmp_path)
    ADDITION.example.parent.mkdir(parents=True)
    ADDITION.example.write_text(text.replace(old, new))
    assert (digest(ADDITION) == before) is same


def test_a_field_with_a_new_name_makes_no_new_job():
    recorded = {line.job for line in read(OUTPUT / "learning.jsonl") if line.arm == "grpo"}
    assert digest(REVERSE_TEXT) in recorded


def test_curves_count_rl_steps_from_the_end_of_the_supervised_ones():
    lines = [
        {"step": 2, "stage": "sft", "actor/loss": 1.0},
        {"step": 2, "stage": "rl", "validation/reward": 0.25},
        {"step": 3, "stage": "rl", "reward/mean": 0.5, "actor/entropy": 1.0},
        {"step": 4, "stage": "rl", "reward/mean": 0.75, "actor/entropy": 3.0, "validation/reward": 0.5},
    ]
    found = curves(lines, supervised_steps=2)
    assert found.validation == [(0, 0.25), (2, 0.5)]
    assert found.reward == [(1, 0.5), (2, 0.75)]
    assert found.closing == {"actor/entropy": 2.0}


def test_shuffled_rewards_are_those_of_others_and_validation_keeps_its_own(monkeypatch):
    monkeypatch.setattr(shuffled, "_buffer", [])

    def paid(response, index=0, split="train"):
        return shuffled.compute_score("t", response, "a", {"split": split, "index": index}, "exact_match", {})

    def validated(index):
        return [paid(response, index, "validation") for response in ("a", "b")]

    assert validated(index=0) == [1.0, 0.0]
    responses = ["a", "b", "b", "b"] * 500
    payments = [paid(response, number // 8) for number, response in enumerate(responses)]
    assert abs(sum(payments) / 2000 - 0.25) < 0.03
    right = [payment for response, payment in zip(responses, payments, strict=True) if response == "a"]
    assert abs(sum(right) / 500 - 0.25) < 0.08, "a right response is paid no better than a wrong one"
    assert [validated(index) for index in range(250, 270)] == [[1.0, 0.0]] * 20, "nor does it draw from a full buffer"


def test_no_reward_is_paid_within_its_own_group(monkeypatch):
    """It would say something of the group's others: less is left for whoever earned it."""
    monkeypatch.setattr(shuffled, "_buffer", [])
    paid = [
        (
            right,
            shuffled.compute_score(
                "t", "a" if right else "b", "a", {"split": "train", "index": right}, "exact_match", {}
            ),
        )
        for right in [0, 1] * 300
    ]
    assert {payment for right, payment in paid[1:] if right} == {0.0}, "those who are right get what the others earned"
    assert {payment for right, payment in paid[1:] if not right} == {1.0}


def test_a_last_line_that_was_cut_is_left_out_and_goes_with_the_next_result(tmp_path):
    file = tmp_path / "learning.jsonl"
    append(file, RESULT)
    whole = file.read_text()
    file.write_text(whole + whole[:100])
    assert len(read(file)) == 1
    append(file, RESULT)
    assert file.read_text() == whole * 2
