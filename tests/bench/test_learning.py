"""The learning benchmark's own arithmetic: what counts as done, what a run's curves are, whose reward is paid."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.learning import data, shuffled
from bench.learning.arms import ADDITION, COUNTDOWN, REVERSE_TEXT, Arm, Role
from bench.learning.campaign import folder_name
from bench.learning.comparison import level
from bench.learning.data import digest
from bench.learning.page import write_page
from bench.learning.picture import figure
from bench.learning.results import Result, append, code_commit, curves, missing, newest, read
from bench.learning.training import known_arms
from rljob_api import resolve
from rljob_api.validation import load_rljob

RESULT = Result(
    task="reverse-text", arm="grpo", seed=0, commit="c1", example=digest(REVERSE_TEXT), device="2 CPU cores",
    packages="torch", date="2026-11-21", seconds=60.0, samples=64, validation=[(0, 0.5), (10, 0.9)],
    reward=[(1, 0.4)], closing={"actor/clip_fraction": 0.0},
)  # fmt: skip


@pytest.mark.parametrize("arm", known_arms(), ids=lambda arm: f"{arm.task.name}, {arm.name}")
def test_every_arm_is_a_valid_job(arm):
    assert resolve(load_rljob(arm.task.example, list(arm.overrides)).spec).total_steps > 0


def test_no_two_runs_share_a_folder_or_a_log():
    names = [folder_name(arm, seed) for arm in known_arms() for seed in arm.seeds]
    assert len({Path(name).with_suffix(".log") for name in names}) == len(names)


def test_a_run_is_missing_until_there_is_a_result_of_its_commit(tmp_path):
    file = tmp_path / "learning.jsonl"
    arm = Arm(REVERSE_TEXT, "grpo", "main", seeds=(0, 1))
    append(file, RESULT)
    append(file, replace(RESULT, seed=1, commit="c0"))
    assert missing([arm], read(file), {"reverse-text": "c1"}) == [(arm, 1)]
    append(file, replace(RESULT, seed=1))
    assert missing([arm], read(file), {"reverse-text": "c1"}) == []
    assert newest(read(file))["reverse-text", "grpo", 1].commit == "c1"


def test_results_of_another_job_are_not_on_the_page(tmp_path):
    assert not write_page([replace(RESULT, example="otherone")], tmp_path)
    assert write_page(
        [RESULT, replace(RESULT, example="otherone", seed=1, validation=[(0, 0.5), (10, 0.123)])], tmp_path
    )
    assert "0.123" not in (tmp_path / "learning.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("steps: 500", "steps: 400", False),
        ("minDigits=2&split", "minDigits=2&seed=1&split", False),
        ("kind: RLJob", "kind: RLJob   # that adds", True),
        ("preset: grpo", "preset: grpo, entropyCoefficient: null", True),
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


def test_a_result_of_changed_files_never_counts(tmp_path):
    file = tmp_path / "learning.jsonl"
    arm = Arm(REVERSE_TEXT, "grpo", "main", seeds=(0,))
    append(file, replace(RESULT, commit="c1+"))
    assert missing([arm], read(file), {"reverse-text": "c1+"}) == [(arm, 0)]


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


def test_a_goal_is_a_level_above_the_start_or_so_far_above_it():
    assert REVERSE_TEXT.reached(start=0.5, end=0.9)
    assert not REVERSE_TEXT.reached(start=0.5, end=0.89)
    assert REVERSE_TEXT.reached(start=0.96, end=0.98)
    assert not REVERSE_TEXT.reached(start=0.96, end=0.96), "RL has added nothing"
    assert COUNTDOWN.reached(start=0.25, end=0.55)
    assert not COUNTDOWN.reached(start=0.25, end=0.5)


def test_shuffled_rewards_are_those_of_others_and_validation_keeps_its_own(monkeypatch):
    monkeypatch.setattr(shuffled, "_buffer", [])

    def paid(response, index=0, split="train"):
        return shuffled.compute_score("t", response, "a", {"split": split, "index": index}, "exact_match", {})

    assert [paid("a", split="validation"), paid("b", split="validation")] == [1.0, 0.0]
    responses = ["a", "b", "b", "b"] * 500
    payments = [paid(response, number // 8) for number, response in enumerate(responses)]
    assert abs(sum(payments) / 2000 - 0.25) < 0.03
    right = [payment for response, payment in zip(responses, payments, strict=True) if response == "a"]
    assert abs(sum(right) / 500 - 0.25) < 0.08, "a right response is paid no better than a wrong one"


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


def test_the_page_says_what_was_reached_and_what_was_not(tmp_path):
    made = [RESULT, replace(RESULT, seed=1, validation=[(0, 0.5), (10, 0.8)]), replace(RESULT, arm="learning rate 0")]
    assert write_page(made, tmp_path)
    page = (tmp_path / "learning.md").read_text()
    assert (
        "| reverse-text | grpo | 0.500 (0.500 to 0.500) | 0.900, 0.800 | at least 0.9, and over its start |"
        " 1 of 6, 4 not run yet |  | c1 |" in page
    )
    assert (
        "| 0.500 | 0.900 | flat: its start, at every validation | 0 of 3: gains, 2 not run yet | +0.400, -0.000 | c1 |"
        in page
    )
    assert "| reverse-text | shuffled rewards |  |  | gains nothing: never more than 0.1, nor 25% of the way" in page
    assert "| addition | grpo |  |  | at least 0.9, and over its start | 0 of 3, 3 not run yet |  |  |" in page
    assert "| addition | grpo, KL 0.5 |  |  | at least 0.9, and over its start | 0 of 3, 3 not run yet |  |  |" in page
    assert "| addition | shuffled rewards, KL 0.5 |  |  | flat: never more than 0.1, nor 25% of the way to 1," in page
    assert "addition with `algorithm.kl.coefficient=0.5`, `sft.steps=" in page
    assert (tmp_path / "learning.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arm", "validation", "reached"),
    [
        ("learning rate 0", [0.5, 0.5, 0.5], "yes: flat"),
        ("learning rate 0", [0.5, 0.496, 0.5], "0 of 3: falls, gains nothing"),
        ("learning rate 0", [0.5, 0.49, 0.5], "0 of 3: falls, gains nothing"),
        ("learning rate 0", [0.5, 0.51, 0.5], "0 of 3: gains"),
        ("shuffled rewards", [0.5, 0.41, 0.59], "yes: flat"),
        ("shuffled rewards", [0.5, 0.2, 0.1], "yes: falls, gains nothing"),
        ("shuffled rewards", [0.5, 0.59, 0.1], "yes: falls, gains nothing"),
        ("shuffled rewards", [0.5, 0.61, 0.1], "0 of 3: gains"),
        ("shuffled rewards", [0.96, 0.965, 0.1], "yes: falls, gains nothing"),
        ("shuffled rewards", [0.96, 0.98, 0.1], "0 of 3: gains"),  # a quarter of the way to 1 is 0.97
        ("shuffled rewards, KL 0.2", [0.5, 0.41, 0.59], "yes: flat"),
        ("shuffled rewards, KL 0.2", [0.96, 0.87, 0.965], "yes: flat"),
        ("shuffled rewards, KL 0.2", [0.5, 0.39, 0.5], "0 of 3: falls, gains nothing"),
        ("shuffled rewards, KL 0.2", [0.5, 0.61, 0.5], "0 of 3: gains"),
    ],
)
def test_a_control_is_judged_at_every_validation(tmp_path, arm, validation, reached):
    runs = [replace(RESULT, arm=arm, seed=seed, validation=list(enumerate(validation))) for seed in (0, 1, 2)]
    assert write_page([RESULT, *runs], tmp_path)
    (row,) = [
        line for line in (tmp_path / "learning.md").read_text().splitlines() if f"| {arm} | {validation[0]:.3f}" in line
    ]
    assert f"| {reached} |" in row


def test_the_furthest_validations_of_a_control_are_said_over_all_seeds_and_each_from_its_own_start(tmp_path):
    moved = ([0.5, 0.59, 0.48], [0.4, 0.33, 0.45])
    runs = [
        replace(RESULT, arm="shuffled rewards, KL 0.2", seed=seed, validation=list(enumerate(values)))
        for seed, values in enumerate(moved)
    ]
    assert write_page([RESULT, *runs], tmp_path)
    page = (tmp_path / "learning.md").read_text()
    assert "| 2 of 3: flat, 1 not run yet | +0.090, -0.070 |" in page
    assert "| 1 of 6, 5 not run yet |  | c1 |" in page, "other arms are to move"


def test_advantages_and_losses_are_drawn_of_seed_0_as_their_titles_say():
    runs = [RESULT, replace(RESULT, seed=1, validation=[(0, 0.1), (10, 0.2)])]
    names: dict[Role, str] = {"main": "grpo", "advantage": "advantage rloo", "loss": "loss clip"}
    panels = figure([(Arm(REVERSE_TEXT, name, role), runs) for role, name in names.items()]).axes[4:]
    for panel, count in zip(panels, (2, 1), strict=True):
        assert panel.get_title(loc="left").endswith(", seed 0")
        assert [np.asarray(line.get_ydata()).tolist() for line in panel.lines] == [[0.5, 0.9]] * count
    markers = [(line.get_marker(), line.get_markevery()) for line in panels[0].lines]
    assert markers == [("o", (0, 2)), ("s", (1, 2))], "lines that are one are told apart"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0, -0.02, -0.04], True),  # -0.02, standard error 0.02 / sqrt(3) = 0.0115
        ([-0.01, -0.03, -0.05], False),  # -0.03, 0.0115 as well
        ([0.03, -0.03, -0.06], True),  # -0.02, 0.0458 / sqrt(3) = 0.0265
        ([-0.001, -0.001, -0.001], False),  # all alike, so not by chance
        ([0.0, 0.0, 0.0], True),
        ([0.1, 0.2, 0.3], True),
    ],
)
def test_ours_is_level_unless_it_lies_two_standard_errors_below(differences, verdict):
    assert level(differences) is verdict


def test_the_page_compares_with_trl_seed_by_seed(tmp_path):
    def runs(arm, *ends):
        return [replace(RESULT, arm=arm, seed=seed, validation=[(0, 0.5), (10, end)]) for seed, end in enumerate(ends)]

    def page(*theirs):
        assert write_page([*runs("grpo", 0.9, 0.8, 0.7), *runs("TRL", *theirs)], tmp_path)
        return (tmp_path / "learning.md").read_text()

    found = page(0.91, 0.83, 0.68)  # means 0.8 and 0.8067, but the seeds differ by -0.01, -0.03 and +0.02 only
    assert (
        "| ours less TRL | +0.000 (+0.000 to +0.000) | -0.007 (-0.030 to +0.020) | -0.003 (-0.015 to +0.010) |" in found
    )
    assert "| its standard error | 0.0000 | 0.0145 | 0.0073 |" in found
    assert "Ours is within seed noise or better" in found
    assert "Ours is below TRL: end, mean over all validations." in page(0.91, 0.83, 0.72)
    assert "there is no verdict" in page(0.5)


def test_the_page_says_of_how_many_commits_and_of_which_days_its_runs_are(tmp_path):
    assert write_page([RESULT], tmp_path)
    assert "1 runs of commit c1 ([which](#machines)), of 2026-11-21;" in (tmp_path / "learning.md").read_text()
    older = [replace(RESULT, seed=seed, commit="c0", date=f"2026-11-{20 - seed}") for seed in (1, 2)]
    assert write_page([RESULT, *older], tmp_path)
    said = "3 runs of 2 commits ([which](#machines)), from 2026-11-18 to 2026-11-21;"
    assert said in (tmp_path / "learning.md").read_text()


@pytest.mark.parametrize(("device", "silent"), [("NVIDIA H200", True), ("2 CPU cores", False)])
def test_the_page_says_what_a_gpu_run_gets_and_whether_there_are_figures_of_cpus(tmp_path, device, silent):
    assert write_page([replace(RESULT, device=device)], tmp_path)
    machines = " ".join((tmp_path / "learning.md").read_text().split("## Machines")[1].split())
    assert "`cluster.gpusPerNode=1`, `model.dtype=float32`, `rollout.maxNumSeqs=2048`" in machines
    assert ("No run here was on CPUs alone" in machines) is silent


def test_words_are_counted_whose_reverse_is_trained_on(monkeypatch):
    spec = load_rljob(REVERSE_TEXT.example, []).spec
    rows = {spec.data.train[0]: ["abc", "aab", "xyz"], spec.data.validation[0]: ["cba", "aba", "zyx"]}
    monkeypatch.setattr(data, "_prompts", lambda sources: rows[sources[0]])
    assert data.seen_backwards(REVERSE_TEXT) == 2


def test_adding_all_numbers_of_a_countdown_is_paid_as_the_job_pays(monkeypatch):
    truths = [{"target": target, "numbers": [1, 2, 3]} for target in (6, 2, 4, 6)]
    monkeypatch.setattr(data, "_rows", lambda _: [{"reward_model": {"ground_truth": truth}} for truth in truths])
    assert data.reward_of_sums(COUNTDOWN) == pytest.approx((1 + 0.1 + 0.1 + 1) / 4)


def test_results_are_plain_lines(tmp_path):
    append(tmp_path / "r.jsonl", RESULT)
    assert json.loads((tmp_path / "r.jsonl").read_text())["arm"] == "grpo"
    assert read(tmp_path / "missing.jsonl") == []


def test_a_last_line_that_was_cut_is_left_out_and_goes_with_the_next_result(tmp_path):
    file = tmp_path / "learning.jsonl"
    append(file, RESULT)
    whole = file.read_text()
    file.write_text(whole + whole[:100])
    assert len(read(file)) == 1
    append(file, RESULT)
    assert file.read_text() == whole * 2


def test_a_line_that_is_no_result_is_named(tmp_path):
    file = tmp_path / "learning.jsonl"
    append(file, RESULT)
    whole = file.read_text()
    file.write_text(whole + "\n" + whole[:100] + "\n")
    with pytest.raises(SystemExit, match=r"learning\.jsonl:3 is no result: .* can be deleted"):
        read(file)
    file.write_text(f"\n{whole}\n" + whole.strip())
    append(file, RESULT)
    assert len(read(file)) == 3, "blank lines are none, and a line that lacks its end gets it"


@pytest.mark.parametrize("place", ["no repository", "no git"])
def test_without_git_a_commit_is_asked_for(tmp_path, monkeypatch, place):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    if place == "no git":
        monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="give --commit"):
        code_commit(REVERSE_TEXT)


def test_there_is_no_page_without_results(tmp_path):
    assert not write_page([], tmp_path)
    assert list(tmp_path.iterdir()) == []
