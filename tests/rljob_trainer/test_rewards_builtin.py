"""The rewards that ship, against values worked out by hand."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from rljob_api.v1alpha1.rewards import Builtin
from rljob_trainer.rewards.child import to_score
from rljob_trainer.rewards.load import LoadError, load
from rljob_trainer.rewards.protocol import Call, Failure, FunctionSetup, Score


def reward(builtin, **arguments):
    setup = FunctionSetup("r", builtin, None, None, None, "compute_score", arguments)
    return load(setup, base_dir=Path(), field="spec.rewards.functions[0]")


def score(builtin, response, truth, tokens=0, **arguments):
    return reward(builtin, **arguments)(Call("test", response, truth, {"response_tokens": tokens}))


@pytest.mark.parametrize(
    ("response", "truth", "arguments", "expected"),
    [
        ("abc", "abc", {}, 1),
        (" abc\n", "abc", {}, 1),
        (" abc\n", "abc", {"strip": False}, 0),
        ("ABC", "abc", {}, 0),
        ("ABC", "abc", {"ignore_case": True}, 1),
        ("abcd", "abc", {}, 0),
        ("", "abc", {}, 0),
        ("5", 5, {}, 1),
        ("b", ["a", "b"], {}, 1),
        ("c", ["a", "b"], {}, 0),
        ("4", 4.0, {}, 1),
        ("4.0", 4, {}, 1),
        ("4.0", "4", {}, 0),
        ("1e999999999", 4, {}, 0),
        ("true", True, {}, 1),
        ("1", True, {}, 0),
        ("five", [5, "five"], {}, 1),
    ],
)
def test_exact_match(response, truth, arguments, expected):
    assert score("exact_match", response, truth, **arguments) == expected


@pytest.mark.parametrize(
    ("response", "truth", "method", "expected"),
    [
        ("cba", "cba", "ratio", 1),
        ("cbx", "cba", "ratio", 2 / 3),  # M = 2 ("cb"), 2 x 2 / 6
        ("xcba", "cba", "ratio", 6 / 7),  # M = 3, 2 x 3 / 7
        ("", "cba", "ratio", 0),
        ("cbx", "cba", "positions", 2 / 3),
        ("xcba", "cba", "positions", 0),
        ("cbaxx", "cba", "positions", 3 / 5),
        ("c", "cba", "positions", 1 / 3),
        ("", "", "positions", 1),
        ("ab", ["xy", "ab"], "ratio", 1),
        ("4", 4.0, "ratio", 1),
    ],
)
def test_similarity(response, truth, method, expected):
    assert score("similarity", response, truth, method=method) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("3*5+9", 1),
        (" 9 + 5*3\n", 1),
        ("3*5+9 = 24", 1),
        ("(3*5)+9", 1),
        ("9/(5-5)+3", 0),  # 5 twice
        ("3*5+9-0", 0),  # a number that was not given
        ("3*5", 0),
        ("3*9-5", 0.1),  # 22
        ("3*5+9)", 0),
        ("35+9", 0),
        ("3**5+9", 0),
        ("3//5+9", 0),
        ("24", 0),
        ("", 0),
        ("__import__('os')", 0),
        ("(" * 100 + "3*5+9" + ")" * 100, 0),  # too long to be worth parsing
    ],
)
def test_countdown(response, expected):
    assert score("countdown", response, {"target": 24, "numbers": [3, 5, 9]}, format_score=0.1) == expected


def test_countdown_refuses_several_lines():
    """An evaluator that takes them all has the value of one."""
    assert score("countdown", "4\n8\n10", {"target": 4, "numbers": [4, 8, 10]}, format_score=0.1) == 0


def test_countdown_divides_exactly_where_the_target_says_so():
    assert score("countdown", "8/(3-8/3)", {"target": 24, "numbers": [3, 3, 8, 8]}) == 1


def test_countdown_divides_by_zero_for_nothing():
    assert score("countdown", "9/(5-5)", {"target": 9, "numbers": [5, 5, 9]}, format_score=0.1) == 0


def test_countdown_pays_for_a_target_that_is_not_whole():
    assert score("countdown", "3/2", {"target": 1.5, "numbers": [3, 2]}) == 1
    assert score("countdown", "3-2", {"target": "1", "numbers": ["3", "2"]}) == 1


def test_countdown_refuses_numbers_that_are_not_whole():
    with pytest.raises(ValueError, match=r"numbers that are not whole: \[3\.5, 2\]"):
        score("countdown", "3-2", {"target": 1, "numbers": [3.5, 2]})


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        ({"target": "abc", "numbers": [1]}, "is not"),
        ({"target": 1, "numbers": None}, "is not"),
        ({"target": 359, "numbers": "359"}, "is not"),
        ({"target": 1}, "is not"),
        ([1, 2], "is not"),
        ({"target": float("nan"), "numbers": [1]}, "not finite"),
    ],
)
def test_countdown_says_what_a_ground_truth_is(truth, says):
    with pytest.raises(ValueError, match=f"ground_truth .*{says}"):
        score("countdown", "1", truth)


def test_countdown_takes_large_numbers():
    assert score("countdown", f"{2**53 + 1}", {"target": 2**53 + 1, "numbers": [2**53 + 1]}) == 1


def test_countdown_refuses_another_ground_truth():
    with pytest.raises(ValueError, match="ground_truth '24' is not"):
        score("countdown", "24", "24")


@pytest.mark.parametrize(
    ("response", "truth", "arguments", "expected"),
    [
        ("<think>a</think>b", None, {"pattern": "^<think>.*</think>"}, 1),
        ("b", None, {"pattern": "^<think>.*</think>"}, 0),
        ("<a>4</a>", 4, {"pattern": "<a>(.*?)</a>", "compare": True}, 1),
        ("<a>5</a> no <a> 4 </a>", 4, {"pattern": "<a>(.*?)</a>", "compare": True}, 1),
        ("<a>5</a>", 4, {"pattern": "<a>(.*?)</a>", "compare": True}, 0),
        ("4", 4, {"pattern": "<a>(.*?)</a>", "compare": True}, 0),
        ("<a>4</a>", ["5", 4.0], {"pattern": "<a>(.*?)</a>", "compare": True}, 1),
    ],
)
def test_regex(response, truth, arguments, expected):
    assert score("regex", response, truth, **arguments) == expected


@pytest.mark.parametrize("truth", [None, [], [None], {"a": 1}])
@pytest.mark.parametrize("builtin", ["exact_match", "boxed_math", "gsm8k", "similarity"])
def test_a_row_without_an_answer_is_an_error_and_no_reward(builtin, truth):
    with pytest.raises((ValueError, TypeError), match="ground_truth"):
        score(builtin, r"\boxed{1} #### 1", truth)


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (80, 0), (81, -0.05), (90, -0.5), (100, -1), (1000, -1)])
def test_length_penalty(tokens, expected):
    assert score("length_penalty", "", "", tokens, max_tokens=100, buffer_tokens=20) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("builtin", "arguments", "message"),
    [
        ("exact_match", {"strips": True}, "unknown argument 'strips', did you mean 'strip'"),
        ("similarity", {"method": "levenshtein"}, "method: Input should be 'ratio' or 'positions'"),
        ("regex", {}, "pattern: Field required"),
        ("regex", {"pattern": "("}, "pattern '\\(': missing \\), unterminated"),
        ("regex", {"pattern": "a", "compare": True}, "has no group"),
        ("length_penalty", {"max_tokens": 10}, "buffer_tokens: Field required"),
        ("length_penalty", {"max_tokens": 10, "buffer_tokens": 11}, "buffer_tokens 11 is above max_tokens 10"),
        ("length_penalty", {"max_tokens": 10, "buffer_tokens": 0}, "buffer_tokens: Input should be greater"),
        ("gsm8k", {"format_score": "much"}, "format_score: Input should be a valid number"),
    ],
)
def test_a_wrong_argument_is_refused_at_the_start(builtin, arguments, message):
    with pytest.raises(LoadError, match=message) as caught:
        reward(builtin, **arguments)
    assert caught.value.failure.field == "spec.rewards.functions[0].arguments"
    assert "Value error" not in caught.value.failure.message, "pydantic's own words"


def test_every_builtin_of_the_api_exists():
    needed: dict[str, dict[str, Any]] = {
        "regex": {"pattern": "a"},
        "length_penalty": {"max_tokens": 2, "buffer_tokens": 1},
    }
    for builtin in set(get_args(Builtin)) - {"reasoning_gym"}:  # it scores rows of its own: test_gym.py
        truth = {"target": 1, "numbers": [1]} if builtin == "countdown" else "1"
        result = to_score(score(builtin, "1", truth, **needed.get(builtin, {})))
        assert isinstance(result, Score)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (1, Score(1.0)),
        (True, Score(1.0)),
        ({"score": 0.5, "acc": True, "pred": "x"}, Score(0.5, {"acc": 1.0})),
        ({"score": 1, "spans": [(3, 0.5), [np.int64(7), -1]]}, Score(1.0, {}, ((3, 0.5), (7, -1.0)))),
        ({"score": 1, "spans": []}, Score(1.0)),
        ({"score": 1, "spans": 2}, Score(1.0, {"spans": 2.0})),  # a number of its own
        ({"score": 1, "spans": [3]}, Failure("returned the span 3, not a pair (end character, value)")),
        ({"score": 1, "spans": [(1.5, 2)]}, Failure("returned the span (1.5, 2), not a pair (end character, value)")),
        ({"score": 1, "spans": [(1, float("inf"))]}, Failure("returned the span (1, inf), whose value is not finite")),
        (float("nan"), Failure("returned nan")),
        (float("-inf"), Failure("returned -inf")),
        (1e31, Failure("returned 1e+31")),
        ({"score": 1, "acc": float("nan"), "n": 10**400, "m": 2}, Score(1.0, {"m": 2.0})),
        ({"score": float("inf")}, Failure("returned inf")),
        (None, Failure("returned None, not a number")),
        ("1.0", Failure("returned '1.0', not a number")),
        ([1.0], Failure("returned [1.0], not a number")),
        ({"reward": 1}, Failure("returned {'reward': 1}, a mapping without a number `score`")),
        ({"score": "1"}, Failure("returned {'score': '1'}, a mapping without a number `score`")),
        (10**400, Failure("returned 1" + "0" * 76 + "..., not a number")),
    ],
)
def test_what_counts_as_a_score(returned, expected):
    assert to_score(returned) == expected


def test_numpy_numbers_count_and_arrays_do_not():
    assert to_score(np.float32(0.5)) == Score(0.5)
    assert isinstance(to_score(np.array([1.0, 2.0])), Failure)


SQUARE = "Here it is:\n```python\nprint(int(input()) ** 2)\n```\n"
FUNCTION = "```python\ndef f(a, b):\n    return [a, b]\n```"
PAIRS = {"inputs": ["2\n", "3\n", "4\n"], "outputs": ["4\n", "9", "-16"]}


@pytest.mark.parametrize(
    ("response", "truth", "arguments", "expected"),
    [
        (SQUARE, {"inputs": ["2\n", "3"], "outputs": ["4\n", "9"]}, {}, 1),
        (SQUARE, json.dumps(PAIRS), {}, 0),
        (SQUARE, PAIRS, {"score": "share"}, 2 / 3),
        (SQUARE, PAIRS, {"max_tests": 2}, 1),
        ("print(int(input()) ** 2)", PAIRS, {"score": "share"}, 0),  # no fenced block
        (f"{SQUARE}\n{FUNCTION}", PAIRS, {"score": "share"}, 0),  # the last block counts
        (FUNCTION, {"fn_name": "f", "inputs": [[1, "x"], '1\n"y"'], "outputs": [[[1, "x"]], '[1, "y"]']}, {}, 1),
        (FUNCTION, {"fn_name": "f", "inputs": [[5, 5]], "outputs": [[5]]}, {}, 0),
        (FUNCTION, {"fn_name": "g", "inputs": [[1, 2]], "outputs": [[[1, 2]]]}, {}, 0),
        ("```python\ndef f(a): return [a]\n```", {"fn_name": "f", "inputs": [[5]], "outputs": [[5]]}, {}, 1),
        (
            "```\nclass Solution:\n    def f(self, a): return a\n```",
            {"fn_name": "f", "inputs": [[7]], "outputs": [7]},
            {},
            1,
        ),
        (FUNCTION, "assert f(1, 2) == [1, 2]", {}, 1),
        (FUNCTION, ["assert f(1, 2) == [1, 2]", "assert f(1, 2) == 3"], {"score": "share"}, 1 / 2),
        ("```python\nimport os; os._exit(0)\n```", "assert False", {}, 0),
        ("```python\nwhile True: pass\n```", PAIRS, {"timeout": 0.5}, 0),
    ],
)
def test_code_tests(response, truth, arguments, expected):
    assert score("code_tests", response, truth, **arguments) == pytest.approx(expected)


@pytest.mark.parametrize("truth", [None, 4, [], {"inputs": ["1"]}, {"inputs": ["1"], "outputs": []}])
def test_code_tests_refuses_a_row_without_tests(truth):
    with pytest.raises(ValueError, match="ground_truth has"):
        score("code_tests", SQUARE, truth)
