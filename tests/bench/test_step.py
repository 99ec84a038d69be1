"""The step benchmark's own arithmetic, and its model that never ends a response."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.step import runs
from bench.step.__main__ import arguments, measure, measure_all
from bench.step.page import by_shape, interval, verdict, write_page
from bench.step.results import ALONE, TRL, Row, append, read
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


def test_what_is_measured_is_told_to_end_when_the_benchmark_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LOOK_SECONDS", 0.01)
    runs._run(["setpriv", "--dump"], tmp_path / "log", {})
    assert "Parent death signal: TERM" in (tmp_path / "log").read_text()


def rows(**runs):
    """name=[steps of each repetition]; TRL's are added."""
    trl = [Steps([0.1], 16.0, 50 << 20)] * max(map(len, runs.values()))
    return [
        Row("10M", name, number, 7, "c1", "2026-11-23", 2, "torch 2", each)
        for name, repetitions in (runs | {TRL: trl}).items()
        for number, each in enumerate(repetitions)
    ]


def page(folder, made):
    write_page(made, folder)
    return (folder / "cpu.md").read_text()


def test_overhead_is_all_but_rollout_and_a_workers_update(tmp_path):
    made = rows(hf=[STEPS])
    (measured,) = by_shape(made)
    assert abs(measured.overhead("hf") - 0.2) < 1e-9
    assert measured.ratios("hf") == [2.0]
    written = page(tmp_path, made)
    assert "| ours, hf | 0.200 | 0.200 | 0.200 | 2.00 | 100 | 0.5 |" in written
    assert "| ours, hf | 0.100 | 0.000 | 0.000 | 0.070 | 0.000 | 0.200 | 0.060 | 0.020 |" in written
    assert "no worker works, 10% of a step; everything except rollout and a worker's update 20%." in written
    assert "ours, hf: 2.00 of TRL's time in the median repetition, so it takes longer (in all repetitions)." in written
    assert "`make bench` of commit c1 on 2 CPU cores (" in written
    assert "## 10M: 7 parameters, 128 tokens per response\n\n1 repetitions of " in written
    assert " steps, which took 0 minutes in all, without starts and first steps; commit c1." in written
    assert "), 2026-11-23; torch 2. Written by" in written
    assert "Goal" not in written, "it is of vLLM"


def test_the_page_has_vllm_alone_beside_our_rollout(tmp_path):
    made = rows(vllm=[STEPS, STEPS], **{ALONE: [Steps([0.04], 16.0, 0), Steps([0.06, 0.06, 0.5], 16.0, 0)]})
    assert "vLLM alone takes 0.050 s for the responses, our rollout with vLLM 2.00 times that" in page(tmp_path, made)


def test_the_page_says_of_the_tiny_shape_what_vllm_and_an_update_take_without_us(tmp_path):
    made = rows(vllm=[STEPS], **{ALONE: [Steps([0.05], 16.0, 0)]})
    assert "Why vllm" not in page(tmp_path, made)
    written = " ".join(page(tmp_path, [replace(row, shape="tiny") for row in made]).split())
    assert "vLLM alone takes 0.050, TRL's rollout 0.000. Sync takes 0.000, rewards" in written
    assert "no worker works for 0.020" in written
    assert "A worker's update takes 0.060, TRL's 0.000." in written
    quick = rows(vllm=[replace(STEPS, seconds=[0.09])], **{ALONE: [Steps([0.05], 16.0, 0)]})
    for other in (rows(hf=[STEPS]), quick):
        assert "Why vllm" not in page(tmp_path, [replace(row, shape="tiny") for row in other])


@pytest.mark.parametrize(
    ("alone", "said"), [(0.122, "9.0% in the median repetition (9.0%): reached"), (0.1, "not reached")]
)
def test_the_page_judges_the_goal_by_what_vllm_alone_takes(tmp_path, alone, said):
    """Of a step of 0.2 s, 0.06 are the update."""
    assert said in page(tmp_path, rows(vllm=[STEPS], **{ALONE: [Steps([alone], 16.0, 0)]}))


def test_the_page_is_drawn_from_the_file_of_rows_alone(tmp_path):
    made = rows(hf=[STEPS, STEPS])
    for row in made:
        append(tmp_path / "cpu.jsonl", row)
    assert read(tmp_path / "cpu.jsonl") == made
    assert json.loads((tmp_path / "cpu.jsonl").read_text().splitlines()[0])["seconds"] == [0.2, 0.2]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ("", "has no rows: measure first"),
        ("first", "has not as many rows of each for 10M, TRL's among them: measure it anew"),
        ("unequal", "has not as many rows of each for 10M, TRL's among them: measure it anew"),
        ("cut", r"cpu.jsonl:4 is no row: .*; delete the line, or the file and measure anew"),
    ],
)
def test_rows_that_make_no_page_are_named(tmp_path, kept, said):
    file = tmp_path / "cpu.jsonl"
    for row in rows(hf=[STEPS, STEPS]):
        append(file, row)
    lines = file.read_text().splitlines()
    left = {"": [], "first": lines[:1], "unequal": lines[:3], "cut": [*lines[:3], lines[3][:50]]}[kept]
    file.write_text("\n".join(left))
    with pytest.raises(SystemExit, match=said):
        read(file)


def test_a_run_with_other_lengths_than_the_shape_says_ends_the_benchmark():
    check_length(SHAPES[0], "hf", STEPS)
    with pytest.raises(SystemExit, match=r"tiny, hf: responses have 15\.5 tokens in the mean, not 16"):
        check_length(SHAPES[0], "hf", replace(STEPS, tokens=15.5))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--repetitions", "0"], "--repetitions 0: give at least 1"),
        (["--engines", "hf", "--repetitions", "1"], "give an --output of its own"),
        (["--redraw", "--output", "missing"], "--redraw: there is no missing/cpu.jsonl"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        arguments(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--shapes", "tiny"], ["--engines", "hf", "--output", "x"]])
def test_the_whole_benchmark_one_shape_and_a_part_beside_the_page_are_right_calls(given):
    assert arguments(given).repetitions is None


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


def test_a_shape_that_is_measured_anew_keeps_the_rows_of_others(tmp_path, monkeypatch):
    old = [replace(row, shape=shape) for shape in ("tiny", "10M") for row in rows(hf=[STEPS])]
    for row in old:
        append(tmp_path / "cpu.jsonl", row)
    new = [replace(row, shape="tiny", commit="c2") for row in rows(hf=[STEPS, STEPS])]
    monkeypatch.setattr("bench.step.__main__.measure", lambda *_: iter(new))
    measure_all(arguments(["--shapes", "tiny", "--output", str(tmp_path)]), tmp_path / "cpu.jsonl")
    assert read(tmp_path / "cpu.jsonl") == [*new, *old[2:]]


def never(*_):
    pytest.fail("it was measured")


@pytest.mark.parametrize(
    ("old", "said"), [("cut", "cpu.jsonl:1 is no row"), ("10M", "not as many rows of each for 10M")]
)
def test_old_rows_that_cannot_be_kept_are_told_before_anything_is_measured(tmp_path, monkeypatch, old, said):
    file = tmp_path / "cpu.jsonl"
    append(file, rows(hf=[STEPS])[0])  # without TRL's
    if old == "cut":
        file.write_text(file.read_text()[:50])
    monkeypatch.setattr("bench.step.__main__.measure", never)
    with pytest.raises(SystemExit, match=said):
        measure_all(arguments(["--shapes", "tiny", "--output", str(tmp_path)]), file)


@pytest.mark.parametrize("old", [[], rows(hf=[STEPS])[:1]], ids=["none", "without TRL's"])
def test_rows_that_are_measured_anew_need_make_no_page(tmp_path, monkeypatch, old):
    file, new = tmp_path / "cpu.jsonl", rows(hf=[STEPS])
    file.touch()
    for row in old:
        append(file, row)
    monkeypatch.setattr("bench.step.__main__.measure", lambda *_: iter(new))
    measure_all(arguments(["--shapes", "10M", "--output", str(tmp_path)]), file)
    assert read(file) == new


@pytest.mark.parametrize("below", ["", "folder"])
def test_an_output_that_is_a_file_is_told_before_anything_is_measured(tmp_path, monkeypatch, below):
    (tmp_path / "page").touch()
    output = tmp_path / "page" / below
    monkeypatch.setattr("bench.step.__main__.measure", never)
    with pytest.raises(SystemExit, match=r"page.* is a file, or in one: give a folder"):
        measure_all(arguments(["--output", str(output)]), output / "cpu.jsonl")


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
