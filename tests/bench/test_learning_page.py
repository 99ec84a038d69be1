"""The learning benchmark's page: what it says of which runs, its verdicts, and its picture."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest

from bench.learning import page, results
from bench.learning.arms import REVERSE_TEXT
from bench.learning.comparison import level
from bench.learning.data import digest
from bench.learning.page import write_page
from tests.bench.learning_result import RESULT, result

DIGEST = cache(digest)
"""It reads all rows."""


@pytest.fixture(autouse=True)
def verdicts_alone(monkeypatch):
    """The picture and the counts of the data take seconds."""
    monkeypatch.setattr(page, "figure", lambda _: SimpleNamespace(savefig=lambda *_, **__: None))
    monkeypatch.setattr(results, "digest", DIGEST)
    for name, value in (("seen_backwards", 0), ("reward_of_sums", 0.0), ("validation_prompts", [])):
        monkeypatch.setattr(page, name, lambda _, value=value: value)


def test_results_of_another_job_are_not_on_the_page(tmp_path):
    assert not write_page([replace(RESULT, job="otherone")], tmp_path)
    assert write_page([RESULT, replace(RESULT, job="otherone", seed=1, validation=[(0, 0.5), (10, 0.123)])], tmp_path)
    assert "0.123" not in (tmp_path / "learning.md").read_text()


def test_results_of_an_arm_with_other_settings_are_not_on_the_page(tmp_path):
    """They may have validated at other steps, and no picture has both."""
    before = replace(RESULT, arm="grpo, KL 0.2", seed=1, validation=[(0, 0.5), (5, 0.6), (10, 0.123)])
    assert before.job == digest(REVERSE_TEXT), "without the arm's overrides"
    assert write_page([result("grpo, KL 0.2"), before], tmp_path)
    written = (tmp_path / "learning.md").read_text()
    assert "0.123" not in written
    assert "| reverse-text | grpo, KL 0.2 | 0.500 | 0.900 |" in written


@pytest.mark.parametrize(
    ("arm", "validation", "reached"),
    [
        ("learning rate 0", [0.5, 0.5, 0.5], "yes: flat"),
        ("learning rate 0", [0.5, 0.49, 0.5], "0 of 3: falls, gains nothing"),
        ("learning rate 0", [0.5, 0.51, 0.5], "0 of 3: gains"),
        ("shuffled rewards", [0.5, 0.41, 0.59], "yes: flat"),
        ("shuffled rewards", [0.5, 0.59, 0.1], "yes: falls, gains nothing"),
        ("shuffled rewards", [0.5, 0.61, 0.1], "0 of 3: gains"),
        ("shuffled rewards", [0.96, 0.965, 0.1], "yes: falls, gains nothing"),
        ("shuffled rewards", [0.96, 0.98, 0.1], "0 of 3: gains"),  # a quarter of the way to 1 is 0.97
        ("shuffled rewards, KL 0.2", [0.5, 0.41, 0.59], "yes: flat"),
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

    def compared(*theirs):
        assert write_page([*runs("grpo", 0.9, 0.8, 0.7), *runs("TRL", *theirs)], tmp_path)
        return (tmp_path / "learning.md").read_text()

    found = compared(0.91, 0.83, 0.68)  # means 0.8 and 0.8067, but the seeds differ by -0.01, -0.03 and +0.02 only
    assert (
        "| ours less TRL | +0.000 (+0.000 to +0.000) | -0.007 (-0.030 to +0.020) | -0.003 (-0.015 to +0.010) |" in found
    )
    assert "| its standard error | 0.0000 | 0.0145 | 0.0073 |" in found
    assert "Ours is within seed noise or better" in found
    assert "Ours is below TRL: end, mean over all validations." in compared(0.91, 0.83, 0.72)
    assert "no verdict" in compared(0.5)
