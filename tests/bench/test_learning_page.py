"""The learning benchmark's page: what it says of which runs, its verdicts, and its picture."""

from dataclasses import replace

import numpy as np
import pytest

from bench.learning import data
from bench.learning.arms import COUNTDOWN, REVERSE_TEXT, Arm, Role
from bench.learning.comparison import level
from bench.learning.data import digest
from bench.learning.page import write_page
from bench.learning.picture import figure
from rljob_api.validation import load_rljob
from tests.bench.learning_result import RESULT, result


def test_results_of_another_job_are_not_on_the_page(tmp_path):
    assert not write_page([replace(RESULT, job="otherone")], tmp_path)
    assert write_page([RESULT, replace(RESULT, job="otherone", seed=1, validation=[(0, 0.5), (10, 0.123)])], tmp_path)
    assert "0.123" not in (tmp_path / "learning.md").read_text()


def test_results_of_an_arm_with_other_settings_are_not_on_the_page(tmp_path):
    """They may have validated at other steps, and no picture has both."""
    before = replace(RESULT, arm="grpo, KL 0.2", seed=1, validation=[(0, 0.5), (5, 0.6), (10, 0.123)])
    assert before.job == digest(REVERSE_TEXT), "without the arm's overrides"
    assert write_page([result("grpo, KL 0.2"), before], tmp_path)
    page = (tmp_path / "learning.md").read_text()
    assert "0.123" not in page
    assert "| reverse-text | grpo, KL 0.2 | 0.500 | 0.900 |" in page


def test_the_page_says_what_was_reached_and_what_was_not(tmp_path):
    made = [RESULT, replace(RESULT, seed=1, validation=[(0, 0.5), (10, 0.8)]), result("learning rate 0")]
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
    assert "addition with `algorithm.kl.coefficient=0.5`, `actor.learningRate=" in page
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
    runs = [result(arm, seed=seed, validation=list(enumerate(validation))) for seed in (0, 1, 2)]
    assert write_page([RESULT, *runs], tmp_path)
    (row,) = [
        line for line in (tmp_path / "learning.md").read_text().splitlines() if f"| {arm} | {validation[0]:.3f}" in line
    ]
    assert f"| {reached} |" in row


def test_the_furthest_validations_of_a_control_are_said_over_all_seeds_and_each_from_its_own_start(tmp_path):
    moved = ([0.5, 0.59, 0.48], [0.4, 0.33, 0.45])
    runs = [
        result("shuffled rewards, KL 0.2", seed=seed, validation=list(enumerate(values)))
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
        return [result(arm, seed=seed, validation=[(0, 0.5), (10, end)]) for seed, end in enumerate(ends)]

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
    assert "no verdict" in page(0.5)


def test_the_page_says_of_how_many_commits_and_of_which_days_its_runs_are(tmp_path):
    assert write_page([RESULT], tmp_path)
    assert "1 runs of commit c1 ([list](#machines)), of 2026-11-21;" in (tmp_path / "learning.md").read_text()
    older = [replace(RESULT, seed=seed, commit="c0", date=f"2026-11-{20 - seed}") for seed in (1, 2)]
    assert write_page([RESULT, *older], tmp_path)
    said = "3 runs of 2 commits ([list](#machines)), from 2026-11-18 to 2026-11-21;"
    assert said in (tmp_path / "learning.md").read_text()


@pytest.mark.parametrize(("device", "silent"), [("NVIDIA H200", True), ("2 CPU cores", False)])
def test_the_page_says_what_a_gpu_run_gets_and_whether_there_are_figures_of_cpus(tmp_path, device, silent):
    assert write_page([replace(RESULT, device=device)], tmp_path)
    machines = " ".join((tmp_path / "learning.md").read_text().split("## Machines")[1].split())
    assert "`cluster.gpusPerNode=1`, `model.dtype=float32`, `rollout.maxNumSeqs=2048`" in machines
    assert ("No run used CPUs only" in machines) is silent


def test_words_are_counted_whose_reverse_is_trained_on(monkeypatch):
    spec = load_rljob(REVERSE_TEXT.example, []).spec
    rows = {spec.data.train[0]: ["abc", "aab", "xyz"], spec.data.validation[0]: ["cba", "aba", "zyx"]}
    monkeypatch.setattr(data, "_prompts", lambda sources: rows[sources[0]])
    assert data.seen_backwards(REVERSE_TEXT) == 2


def test_adding_all_numbers_of_a_countdown_is_paid_as_the_job_pays(monkeypatch):
    truths = [{"target": target, "numbers": [1, 2, 3]} for target in (6, 2, 4, 6)]
    monkeypatch.setattr(data, "_rows", lambda _: [{"reward_model": {"ground_truth": truth}} for truth in truths])
    assert data.reward_of_sums(COUNTDOWN) == pytest.approx((1 + 0.1 + 0.1 + 1) / 4)


def test_there_is_no_page_without_results(tmp_path):
    assert not write_page([], tmp_path)
    assert list(tmp_path.iterdir()) == []
