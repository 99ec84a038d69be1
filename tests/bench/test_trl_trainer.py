"""TRL's runs are validated as the job's are: greedily, by its rewards and their weights, at its steps."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BatchEncoding

from bench.learning.arms import REVERSE_TEXT
from bench.trl_job import rows
from rljob_api import resolve
from rljob_api.validation import load_rljob

OVERRIDES = (
    'data.validation=["synthetic://reverse-text?rows=2&letters=10&minLength=4&maxLength=4&split=validation"]',
    "data.maxResponseTokens=11",
)

MODEL = Path("its model")

PROMPT, END, PADDING = 0, 1, 2
FIRST = 3
"""The token that is the whole response to the first row; those of other rows follow."""


class Tokenizer:
    """Whole texts are its tokens. The first row's prompt is the shorter one."""

    def __init__(self, responses):
        self._texts = ["prompt", "</s>", "<pad>", *responses]

    def apply_chat_template(self, prompts, *, add_generation_prompt, padding, return_tensors, return_dict):
        assert (add_generation_prompt, padding, return_tensors, return_dict) == (True, True, "pt", True)
        self.prompts = prompts
        ids = [[PADDING, PROMPT], [PROMPT, PROMPT]]
        mask = [[0, 1], [1, 1]]
        return BatchEncoding({"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)})

    def batch_decode(self, ids, *, skip_special_tokens):
        kept = [[one for one in row if not (skip_special_tokens and one in (END, PADDING))] for row in ids.tolist()]
        return ["".join(self._texts[one] for one in row) for row in kept]


class Model:
    """Answers each row with that row's token."""

    device = "cpu"

    def __init__(self):
        self.asked = []

    def generate(self, input_ids, attention_mask, **settings):
        self.asked.append((attention_mask.tolist(), settings))
        return torch.cat([input_ids, torch.tensor([[FIRST, END], [FIRST + 1, END]])], dim=1)


class Run:
    """A recorder at work. The first response is right; of the second one letter of four is wrong."""

    def __init__(self, patch, *overrides):
        from bench.learning import trl_trainer  # imports much more than the collection of tests needs

        self.spec = resolve(load_rljob(REVERSE_TEXT.example, [*OVERRIDES, *overrides]).spec)
        self.rows = list(rows(self.spec.data.validation))
        first, second = (row["truth"] for row in self.rows)
        self.tokenizer, self.model, self._output = Tokenizer([first, second[:3] + "?"]), Model(), io.StringIO()
        patch.setattr(trl_trainer, "AutoTokenizer", SimpleNamespace(from_pretrained=self._load))
        self._recorder = trl_trainer.Recorder(self.spec, MODEL, self._output)

    def _load(self, folder, padding_side):
        assert (folder, padding_side) == (MODEL, "left")
        return self.tokenizer

    def begin(self):
        self._recorder.on_train_begin(None, None, None, model=self.model)
        return self

    def step(self, number):
        state = SimpleNamespace(global_step=number)
        self._recorder.on_log(None, state, None, logs={"reward": number / 10})
        self._recorder.on_step_end(None, state, None, model=self.model)

    def end(self):
        self._recorder.on_log(None, SimpleNamespace(global_step=self.spec.training.steps), None, logs={"runtime": 1.0})

    def written(self, name):
        """(step, value) of all lines that have it."""
        lines = [json.loads(line) for line in self._output.getvalue().splitlines()]
        return [(line["step"], line[name]) for line in lines if name in line]


def test_validation_is_greedy_and_as_long_as_the_job_lets_a_response_be(monkeypatch):
    run = Run(monkeypatch).begin()
    assert run.tokenizer.prompts == [row["prompt"] for row in run.rows]
    assert run.model.asked == [([[0, 1], [1, 1]], {"do_sample": False, "max_new_tokens": 11})]


@pytest.mark.parametrize(
    ("letters", "exact", "mean"),
    [(0.25, 0.75, (0.25 + 0.75 + 0.25 * 0.75) / 2), (3.0, 0.0, (3.0 + 3.0 * 0.75) / 2)],
)
def test_a_validation_is_the_mean_of_the_weighted_rewards(monkeypatch, letters, exact, mean):
    functions = [
        {"name": "letters", "builtin": "similarity", "arguments": {"method": "positions"}, "weight": letters},
        {"name": "exact", "builtin": "exact_match", "weight": exact},
    ]
    run = Run(monkeypatch, f"rewards.functions={json.dumps(functions)}").begin()
    assert run.written("validation/reward") == [(0, pytest.approx(mean))]


@pytest.mark.parametrize(("steps", "validated"), [(7, [0, 3, 6, 7]), (6, [0, 3, 6]), (2, [0, 2])])
def test_it_validates_at_first_as_often_as_the_job_does_and_at_last(monkeypatch, steps, validated):
    run = Run(monkeypatch, f"training.steps={steps}", "training.validateEvery=3").begin()
    for number in range(1, steps + 1):
        run.step(number)
    run.end()
    assert [step for step, _ in run.written("validation/reward")] == validated
    assert run.written("reward/mean") == [(number, number / 10) for number in range(1, steps + 1)]


def test_a_step_of_four_updates_is_four_steps_of_trl(monkeypatch):
    run = Run(monkeypatch, "training.steps=2", "training.validateEvery=1", "actor.miniBatchSize=32").begin()
    for number in range(1, 9):
        run.step(number)
    assert [step for step, _ in run.written("validation/reward")] == [0, 1, 2]
    assert [step for step, _ in run.written("reward/mean")] == [1, 1, 1, 1, 2, 2, 2, 2]
