"""The trainer's own tools: what they compute, what they refuse, and that the policy calls them by name."""

import json
from typing import Any

import pytest

from rljob_api.v1alpha1 import BuiltinTool, Environment
from rljob_trainer.environments.builtin import ToolUnusable, make_builtin
from rljob_trainer.environments.builtin.calculator import calculator
from rljob_trainer.environments.check import environment_errors
from rljob_trainer.environments.pool import builtin_settings
from rljob_trainer.errors import EnvironmentFailed
from tests.rljob_trainer.chat_templates import CHATML
from tests.rljob_trainer.environments_support import playing

CORPUS = [
    {"title": "Paris", "text": "Paris is the capital of France."},
    {"contents": "Rome is the capital of Italy, on the Tiber."},
    {"text": "A badger digs setts."},
]


def made(folder, **fields):
    return make_builtin(builtin_settings(BuiltinTool(**fields)), folder)


def corpus(folder, rows=CORPUS) -> str:
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return "corpus.jsonl"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47*83", "3901"), ("(3 + 4) * -5", "-35"), ("7/2", "3.5"), ("6/2", "3"), ("2^10", "1024"), ("7 // 2 % 2", "1"),
        ("sqrt(16) + round(2.6)", "7"), ("1/3", "0.333333333333"), ("12×3÷4", "9"), ("2**100", str(2**100)),
        ("max(1, 2.5)", "2.5"), ("round(2.567, 2)", "2.57"), ("round(1234, -2)", "1200"),
    ],
)  # fmt: skip
def test_the_calculator_computes(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('id')", "9**9**9**9", "(lambda: 1)()", "'a' * 99", "1e308 * 10", "(-8) ** 0.5",
        "[1][0]", "abs.__class__", "True + 1", "round(*[1])", "x", "1 +", "", "(" * 900 + ")" * 900,
        "2**4000 * 2**4000", "1" * 1001, "max(1, key=abs)", "f'{1}'", "1 if 1 else 2",
        "round(5, -10**9)", "round(5, 0.5)",
    ],
)  # fmt: skip
def test_the_calculator_refuses_what_is_no_arithmetic(expression):
    with pytest.raises(ValueError, match=r".+"):
        calculator(expression)


def test_a_program_is_run_in_the_sandbox_and_its_output_is_what_the_policy_reads(tmp_path):
    python = made(tmp_path, name="python", timeout="2s")
    assert python("print(6 * 7)") == "42"
    assert python("x = 1") == "The program printed nothing."
    first, *_, last = python("print(1)\n1 / 0").splitlines()
    assert (first, last) == ("1", "ZeroDivisionError: division by zero")
    assert "PermissionError" in python("import socket; socket.socket()")
    assert python("while True: pass") == "Error: the program ran longer than 2 s"
    assert len(python("print('a' * 60000)")) < 4100


def test_search_returns_the_passages_that_fit_best(tmp_path):
    pytest.importorskip("bm25s")
    search = made(tmp_path, name="search", corpus=corpus(tmp_path), results=2)
    assert search("capital of France") == (
        "[1] Paris\nParis is the capital of France.\n\n[2] Rome is the capital of Italy, on the Tiber."
    )
    assert search("badgers, or a badger") == "[1] A badger digs setts."
    assert search("zebra") == search("") == "Nothing was found."


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("{", "line 1 is not JSON"), ('{"text": "a"}\n{"title": "b"}', "line 2 has no field text")],
)
def test_a_wrong_corpus_is_named_with_its_line(tmp_path, text, message):
    (tmp_path / "corpus.jsonl").write_text(text)
    environment = Environment(builtin_tools=[BuiltinTool(name="search", corpus="corpus.jsonl")])
    (error,) = environment_errors(environment, tmp_path)
    assert message in str(error)
    assert error.field == "spec.environment.builtinTools[0].corpus"
    with pytest.raises(ToolUnusable, match=message):
        made(tmp_path, name="search", corpus="corpus.jsonl")


def test_the_policy_calls_them_beside_its_own_tools(tmp_path):
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "47*83"}}</tool_call><|im_end|>'
    own = '<tool_call>{"name": "twice", "arguments": {"text": "ab"}}</tool_call><|im_end|>'
    fields: dict[str, Any] = {"builtinTools": [{"name": "calculator"}], "maxTurns": 3}
    with playing(tmp_path, template=CHATML, **fields) as play:
        episode = play(call, "3901<|im_end|>")
        text = play.tokenized.text(episode.trajectories[0].token_ids.tolist())
        assert "<|im_start|>tool\n3901<|im_end|>" in text
        assert episode.counts == {"turns": 2, "splits": 0, "tool_calls": 1, "tool_errors": 0}
    source = 'def twice(text: str) -> str:\n    """Say it twice."""\n    return text * 2\n'
    with playing(tmp_path, template=CHATML, source=source, tools=["twice"], **fields) as play:
        episode = play(call, own, "done<|im_end|>")
        text = play.tokenized.text(episode.trajectories[0].token_ids.tolist())
        assert "3901" in text
        assert "abab" in text


def test_what_cannot_be_used_is_named_before_an_episode(tmp_path):
    with (
        pytest.raises(EnvironmentFailed, match="cannot be read") as raised,
        playing(tmp_path, builtinTools=[{"name": "search", "corpus": "none.jsonl"}]),
    ):
        pass
    assert raised.value.field == "spec.environment.builtinTools[0].corpus"
    source = 'def calculator(a: int) -> int:\n    """Compute."""\n'
    same = Environment(source=source, tools=["calculator"], builtin_tools=[BuiltinTool(name="calculator")])
    (error,) = environment_errors(same, tmp_path)
    assert "rename one" in str(error)


@pytest.mark.parametrize("fields", [{"builtinTools": [{"name": "calculator"}]}, {"command": ["agent"]}])
def test_arguments_that_nothing_would_read_are_refused(tmp_path, fields):
    (error,) = environment_errors(Environment(arguments={"a": 1}, **fields), tmp_path)
    assert error.field == "spec.environment.arguments"
