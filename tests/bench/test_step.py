"""The step benchmark's own arithmetic, and its model that never ends a response."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.step.page import Measured, write_page
from bench.step.runs import Steps, covered, trl_phases, work
from bench.step.shapes import SHAPES, write_model

STEPS = Steps([0.2, 0.2], 16.0, 100 << 20, 0.5, {"time/rollout": 0.1, "work/update": 0.06, "work/none": 0.02})


def test_seconds_that_intervals_cover_are_counted_once_and_only_in_the_window():
    assert covered((0.0, 10.0), [(1.0, 3.0), (2.0, 4.0), (3.5, 3.6), (9.0, 12.0), (-1.0, 0.5)]) == 0.5 + 3.0 + 1.0
    assert covered((0.0, 10.0), []) == 0.0


def test_work_is_what_workers_do_and_none_is_when_nobody_does_anything():
    calls = [
        {"call": "generate", "start": 0.0, "end": 4.0},
        {"call": "update", "start": 5.0, "end": 8.0},
        {"call": "probe", "start": 8.5, "end": 9.5},
    ]
    assert work(calls, [(0.0, 10.0)]) == {"work/update": 3.0, "work/sync": 1.0, "work/none": 2.0}


def test_overhead_is_all_but_generation_and_update(tmp_path):
    measured = Measured(SHAPES[0], 7, {"hf": [STEPS], "TRL": [Steps([0.1], 16.0, 50 << 20)]})
    assert abs(measured.overhead("hf") - 0.2) < 1e-9
    assert measured.ratios("hf") == [2.0]
    write_page([measured], tmp_path)
    assert "| ours, hf | 0.200 | 0.200 | 0.200 | 2.00 | 100 | 0.5 |" in (tmp_path / "cpu.md").read_text()
    assert (
        "ours, hf: 2.00 of TRL's time in the median repetition, so it takes longer."
        in (tmp_path / "cpu.md").read_text()
    )


def test_the_page_has_vllm_alone_beside_our_rollout(tmp_path):
    trl = Steps([0.1], 16.0, 50 << 20)
    write_page([Measured(SHAPES[0], 7, {"vllm": [STEPS, STEPS], "TRL": [trl, trl]}, [0.04, 0.06])], tmp_path)
    assert "takes 0.050 s, our rollout with it 2.00 times that" in (tmp_path / "cpu.md").read_text()


def test_the_phases_of_trl_add_up_to_its_step():
    lines = [{"prepare": 0.4, "rollout": 0.25, "rewards": 0.05}, {"prepare": 0.6, "rollout": 0.35, "rewards": 0.15}]
    phases = trl_phases(lines, [0.9, 1.1])
    expected = {"time/rollout": 0.3, "time/rewards": 0.1, "time/advantage": 0.1, "time/update": 0.5}
    assert phases == pytest.approx(expected)


def test_the_model_of_the_benchmark_never_ends_a_response(tmp_path):
    write_model(SHAPES[0], tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(6, len(tokenizer), (8, 64), generator=torch.Generator().manual_seed(0))
    probabilities = model(ids).logits.softmax(-1)[..., tokenizer.eos_token_id]
    assert probabilities.max() < 1e-6
