"""Reward code that cannot be loaded is refused at the start, with its field; and what code may do."""

import textwrap

import pytest

from rljob_trainer.errors import RewardError
from rljob_trainer.rewards import process as reward_process
from tests.rljob_trainer.journal_support import task
from tests.rljob_trainer.rewards_support import BEHAVE, children, load, responses, reward_pools, rewards, scored


@pytest.fixture
def pool_of(tmp_path):
    with reward_pools(tmp_path) as make:
        yield make


@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        ("x = 1\ndef compute_score(:\n", "source", "line 2: invalid syntax: 'def compute_score.*'; correct it"),
        (
            "\nimport nothing_of_that_name\n",
            "source",
            "No module named 'nothing_of_that_name' \\(line 2 of .*\\); install it, or correct the name",
        ),
        ("\n\n1 / 0\n", "source", "ZeroDivisionError: division by zero \\(line 3 of .*\\); correct the code"),
        (
            "def other(): pass",
            "function",
            "no function 'compute_score'; it defines other: define it, or set function to another",
        ),
        ("compute_score = 3", "function", "no function 'compute_score'; it defines none: define it"),
        (f"x = {'-' * 60_000}1\n", "source", "nested too deeply for Python; write it flatter"),
        (
            "def compute_score(a, b): return 1",
            "function",
            r"compute_score\(a, b\) cannot be called as f\(data_source=...,",
        ),
        ("def compute_score(ground_truth): return 1", "function", "it takes no response"),
        ("def compute_score(completions, **kwargs): return [1]", "function", "missing a required argument"),
        ("import sys; sys.exit(2)", "source", "SystemExit: 2"),
    ],
)
def test_wrong_code_is_refused_at_the_start(tmp_path, source, field, message):
    with pytest.raises(RewardError, match=message) as error:
        load(rewards({"name": "own", "source": source}), tmp_path)
    assert error.value.field == f"spec.rewards.functions[0].{field}"
    (tmp_path / "r.py").write_text(source)
    with pytest.raises(RewardError, match=message) as error:
        load(rewards({"name": "own", "path": "r.py"}), tmp_path)
    assert error.value.field == f"spec.rewards.functions[0].{'path' if field == 'source' else field}"
    assert not children()


def test_code_that_kills_its_process_while_loading_is_refused(tmp_path):
    functions = [{"name": "sound", "builtin": "exact_match"}, {"name": "own", "source": "import os; os._exit(5)"}]
    with pytest.raises(
        RewardError, match=r"loading 'own' ended its process with exit code 5; .* correct the code"
    ) as no:
        load(rewards(*functions), tmp_path)
    assert no.value.field == "spec.rewards.functions[1]"


def test_what_code_raises_is_cut_to_a_line(tmp_path):
    with pytest.raises(RewardError, match=r"ValueError: boo x+\.\.\.") as no:
        load(rewards({"name": "own", "source": "raise ValueError('boo\\n' + 5000 * 'x')"}), tmp_path)
    assert len(str(no.value)) < 500


def test_code_that_hangs_while_loading_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reward_process, "LOAD_SECONDS", 0.7)
    with pytest.raises(RewardError, match=r"did not return within 0\.7 s"):
        load(rewards({"name": "own", "source": "import time; time.sleep(60)"}), tmp_path)
    assert not children()


def test_a_wrong_argument_blames_the_arguments(tmp_path):
    with pytest.raises(RewardError) as error:
        load(rewards({"name": "own", "source": BEHAVE, "arguments": {"second": 1}}), tmp_path)
    assert error.value.field == "spec.rewards.functions[0].arguments"
    assert "unexpected keyword argument 'second'" in error.value.message


def test_a_missing_file_and_a_missing_module_are_named(tmp_path):
    with pytest.raises(RewardError, match=r"functions\[0\].path: .*none.py does not exist; correct the path"):
        load(rewards({"name": "own", "path": "none.py"}), tmp_path)
    with pytest.raises(RewardError, match=r"functions\[0\].path: .* is a folder; name a Python file"):
        load(rewards({"name": "own", "path": "."}), tmp_path)
    with pytest.raises(RewardError, match=r"functions\[0\].module: no_such_module: .*No module named"):
        load(rewards({"name": "own", "module": "no_such_module"}), tmp_path)


def test_a_neighbours_syntax_error_is_its_own(tmp_path):
    (tmp_path / "neighbour.py").write_text("x = \n")
    (tmp_path / "mine.py").write_text("\n\nimport neighbour\n")
    with pytest.raises(RewardError, match=rf"line 1: invalid syntax: 'x =' \(in {tmp_path}/neighbour.py\)"):
        load(rewards({"name": "own", "path": "mine.py"}), tmp_path)


@pytest.mark.parametrize("head", [b"# -*- coding: latin-1 -*-\n", b"\xef\xbb\xbf"], ids=["latin-1", "byte order mark"])
def test_a_file_is_read_in_the_encoding_that_it_names(tmp_path, pool_of, monkeypatch, head):
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None): return len('é')\n"
    (tmp_path / "mine.py").write_bytes(head + text.encode("latin-1" if b"latin-1" in head else "utf-8"))
    pool = pool_of(rewards({"name": "own", "path": "~/mine.py"}), tmp_path / "elsewhere")
    assert scored(pool, task(7), responses("x")).rewards.tolist() == [1]


def test_the_failing_functions_place_is_named(tmp_path):
    with pytest.raises(RewardError, match=r"^spec.rewards.functions\[1\].arguments: pattern: Field required"):
        load(rewards({"name": "a", "builtin": "exact_match"}, {"name": "b", "builtin": "regex"}), tmp_path)


def test_a_file_may_import_its_neighbours_and_a_module_lies_beside_the_job(tmp_path, pool_of):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "neighbour.py").write_text("VALUE = 5")
    function = "def grade(data_source, solution_str, ground_truth, extra_info=None): return VALUE"
    (tmp_path / "sub" / "mine.py").write_text(f"from neighbour import VALUE\n{function}")
    (tmp_path / "beside.py").write_text(f"VALUE = 7\n{function}")
    pool = pool_of(
        rewards(
            {"name": "file", "path": "sub/mine.py", "function": "grade"},
            {"name": "module", "module": "beside", "function": "grade"},
        )
    )
    assert scored(pool, task(7), responses("x")).rewards.tolist() == [12]


def test_code_may_define_dataclasses(pool_of):
    source = """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Parsed:
            value: float

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            return Parsed(2.0).value
    """
    pool = pool_of(rewards({"name": "my-own", "source": textwrap.dedent(source)}))
    assert scored(pool, task(7), responses("x")).rewards.tolist() == [2]
