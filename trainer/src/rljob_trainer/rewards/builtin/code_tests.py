"""code_tests: the share of a row's tests that a Python program passes in the sandbox."""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.protocol import Call
from rljob_trainer.sandbox import Limits, Outcome, run

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_CALL = """
def _call():
    import json, sys
    function = globals().get({name!r}) or getattr(globals()["Solution"](), {name!r})
    arguments = [json.loads(line) for line in sys.stdin.read().splitlines() if line.strip()]
    print("\\n" + json.dumps(function(*arguments)))
_call()
"""


@plain_dataclass(frozen=True)
class _Test:
    """A program's tail, what it reads, and what its output has to be."""

    tail: str
    stdin: str
    expected: str
    compare: Literal["lines", "value", "wrapped", "last_line"]


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """Runs the last fenced block of the response against the tests of the ground truth.

    The ground truth is an object, or JSON of one, in the layout of APPS and PRIME's data: `inputs` and `outputs` (what
    the program reads and prints), and `fn_name` if a function is called instead, with one JSON value a line as its
    arguments; or assertions: one text or a list of them, as in MBPP and HumanEval.
    score: `all` gives 1 if every test passes, `share` the share that does. A response without a fenced block gets 0.
    timeout: seconds a test. memory: MiB a test. max_tests: the first of them are run.
    """

    score: Literal["all", "share"] = "all"
    timeout: float = Field(default=5.0, gt=0, le=600)
    memory: int = Field(default=512, ge=64)
    max_tests: int = Field(default=20, ge=1)

    def __call__(self, call: Call) -> float:
        tests = list(_tests(call.ground_truth))[: self.max_tests]
        blocks = _FENCED.findall(call.solution_str)
        if not blocks:
            return 0.0
        limits = Limits(seconds=self.timeout, memory=self.memory * 2**20)
        passed = 0
        for test in tests:
            right = _passes(run(blocks[-1] + test.tail, test.stdin, limits), test)
            if not right and self.score == "all":
                return 0.0
            passed += right
        return passed / len(tests)


def _passes(outcome: Outcome, test: _Test) -> bool:
    if outcome.status != "finished":
        return False
    written = outcome.stdout.rstrip().rpartition("\n")[2]
    if test.compare == "last_line":
        return written == test.expected
    if test.compare == "value":
        return _value(written) == _value(test.expected)
    if test.compare == "wrapped":
        whole = json.loads(test.expected)
        inner = _value(whole[0]) if isinstance(whole[0], str) else whole[0]
        return _value(written) in (whole, whole[0], inner)
    return _lines(outcome.stdout) == _lines(test.expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _tests(truth: Any) -> Iterator[_Test]:
    """The tests of a ground truth. Raises ValueError: it has none, or its layout is another."""
    given = _value(truth) if isinstance(truth, str) else truth
    given = given if isinstance(given, dict | list) else truth
    if isinstance(given, dict) and {"inputs", "outputs"} <= given.keys():
        yield from _pairs(given)
    elif isinstance(given, str) and given.strip():
        yield _assertions(given)
    elif isinstance(given, list) and given and all(isinstance(each, str) for each in given):
        yield from map(_assertions, given)
    else:
        raise ValueError(
            "ground_truth has no tests: code_tests reads an object with `inputs` and `outputs`, or assertions"
        )


def _pairs(given: dict[str, Any]) -> Iterator[_Test]:
    inputs, outputs, name = given["inputs"], given["outputs"], given.get("fn_name")
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(
            f"ground_truth has {len(inputs)} inputs and {len(outputs)} outputs; code_tests needs a pair a test"
        )
    for before, after in zip(inputs, outputs, strict=True):
        if name:
            expected = after if isinstance(after, str) else json.dumps(after)
            wrapped = isinstance(after, list) and len(after) == 1  # the result, or PRIME's list of one around it
            yield _Test(_CALL.format(name=name), _arguments(before), expected, "wrapped" if wrapped else "value")
        else:
            yield _Test("", _lined(before), _lined(after), "lines")


def _arguments(given: Any) -> str:
    """One JSON value a line, from a list of arguments or from text that is so already."""
    return given if isinstance(given, str) else "\n".join(json.dumps(each) for each in given)


def _lined(given: Any) -> str:
    return "\n".join(map(str, given)) if isinstance(given, Sequence) and not isinstance(given, str) else str(given)


def _assertions(text: str) -> _Test:
    """The program prints a random word after the assertions, so that one that ends early does not pass."""
    word = secrets.token_hex(16)
    return _Test(f"\n{text}\nprint('\\n{word}')\n", "", word, "last_line")
