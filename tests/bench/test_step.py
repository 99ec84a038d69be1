"""The step benchmark's own arithmetic, and its model that never ends a response."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.step.__main__ import measure
from bench.step.page import by_shape, interval, verdict, write_page
from bench.step.results import ALONE, TRL, Row
from bench.step.runs import Steps, check_length, covered, trl_phases, work
from bench.step.shapes import SHAPES, write_model

PARTS = {"time/rollout": 0.1, "time/update": 0.07, "work/update": 0.06, "work/none": 0.02}
STEPS = Steps([0.2, 0.2], 16.0, 100 << 20, 0.5, PARTS)


def test_seconds_that_intervals_cover_are_counted_once_and_only_in_the_window():
    assert covered((0.0, 10.0), [(1.0, 3.0), (2.0, 4.0), (3.5, 3.6), (9.0, 12.0), (-1.0, 0.5)]) == 0.5 + 3.0 + 1.0
    assert covered((0.0, 10.0), []) == 0.0


def test_work_is_what_workers_do_and_none_is_when_nobody_does_anything():
    calls = [
        {"call": "generate", "start": 0.0, "end": 4.0},
        {"call": "update", "start": 5.0, "end": 8.0},
        {"call": "complete_update", "start": 8.5, "end": 9.5},
    ]
    assert work(calls, [(0.0, 10.0)]) == {"work/update": 3.0, "work/sync": 1.0, "work/none": 2.0}


def rows(**runs):
    """name=[steps of each repetition]; TRL's are added."""
    trl = [Steps([0.1], 16.0, 50 << 20)] * max(map(len, runs.values()))
    return [
        Row("10M", name, number, 7, "c1", "2026-11-23", 2, "torch 2", each)
        for name, repetitions in (runs | {TRL: trl}).items()
        for number, each in enumerate(repetitions)
    ]


def test_overhead_is_all_but_rollout_and_a_workers_update():
    (measured,) = by_shape(rows(hf=[STEPS]))
    assert abs(measured.overhead("hf") - 0.2) < 1e-9
    assert measured.ratios("hf") == [2.0]


@pytest.mark.parametrize(
    ("alone", "said"), [(0.122, "9.0% in the median repetition (9.0%): reached"), (0.1, "not reached")]
)
def test_the_page_judges_the_goal_by_what_vllm_alone_takes(tmp_path, alone, said):
    """Of a step of 0.2 s, 0.06 are the update."""
    write_page(rows(vllm=[STEPS], **{ALONE: [Steps([alone], 16.0, 0)]}), tmp_path)
    assert said in (tmp_path / "cpu.md").read_text()


def test_a_run_with_other_lengths_than_the_shape_says_ends_the_benchmark():
    check_length(SHAPES[0], "hf", STEPS)
    with pytest.raises(SystemExit, match=r"tiny, hf: responses have 15\.5 tokens in the mean, not 16"):
        check_length(SHAPES[0], "hf", replace(STEPS, tokens=15.5))


@pytest.mark.parametrize(
    ("count", "k"),
    [(1, 1), (3, 1), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6)],  # Conover, table A3, p = 0.5
)
def test_the_interval_of_a_median_is_that_of_the_sign_test(count, k):
    values = [float(value) for value in range(count, 0, -1)]
    assert interval(values) == (k, count + 1 - k)


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([0.9] * 8 + [1.2], "takes no longer (between 0.90 and 0.90 at 95%)"),
        ([0.9] * 7 + [1.1, 1.2], "may take longer or not (0.90 to 1.10)"),
        ([0.9, 1.1, 0.9], "may take longer or not (0.90 to 1.10)"),
        ([1.1] * 8 + [0.9], "takes longer (between 1.10 and 1.10 at 95%)"),
    ],
)
def test_the_verdict_is_that_of_the_interval(ratios, said):
    assert verdict(ratios) == said


@pytest.mark.parametrize(
    ("engines", "repetitions"),
    [
        (
            ["hf", "vllm"],
            [["hf", "vllm", TRL, ALONE], ["vllm", TRL, "hf", ALONE], [TRL, "hf", "vllm", ALONE]],
        ),
        (["hf"], [["hf", TRL], [TRL, "hf"], ["hf", TRL]]),
    ],
)
def test_ours_and_trl_take_turns_another_one_first_each_time(tmp_path, monkeypatch, engines, repetitions):
    folders = []

    def take(folder, name):
        folders.append(folder)
        return replace(STEPS, parts={name: 1.0})

    monkeypatch.setattr("bench.step.results.PACKAGES", ("torch",))
    monkeypatch.setattr("bench.step.__main__.ours", lambda _shape, job, folder: take(folder, job.stem))
    monkeypatch.setattr("bench.step.__main__.trl", lambda _shape, _spec, _model, folder: take(folder, TRL))
    monkeypatch.setattr("bench.step.__main__.vllm_alone", lambda _spec, _model, folder: take(folder, ALONE))
    measured = list(measure(SHAPES[0], engines, len(repetitions), tmp_path))
    expected = [(number, name) for number, turns in enumerate(repetitions) for name in turns]
    assert [(row.repetition, row.name) for row in measured] == expected
    assert [list(row.steps.parts) for row in measured] == [[name] for _, name in expected], "each row is its own run's"
    assert len(set(folders)) == len(expected)


def test_the_phases_of_trl_add_up_to_its_step():
    lines = [{"prepare": 0.4, "rollout": 0.25, "rewards": 0.05}, {"prepare": 0.6, "rollout": 0.35, "rewards": 0.15}]
    phases = trl_phases(lines, [0.9, 1.1])
    expected = {"time/rollout": 0.3, "time/rewards": 0.1, "time/advantage": 0.1, "time/update": 0.5}
    assert phases == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_models_of_the_benchmark_never_end_a_response(tmp_path, shape):
    write_model(shape, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(6, len(tokenizer), (8, 64), generator=torch.Generator().manual_seed(0))
    probabilities = model(ids).logits.softmax(-1)[..., tokenizer.eos_token_id]
    assert probabilities.max() < 1e-12
