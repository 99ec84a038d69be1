"""How a reward function wants its calls, recognised by the names of its parameters.

compute_score(data_source, solution_str, ground_truth, extra_info)   one response a call
compute_score(solution_str, ground_truth)                            the same, with what it names
compute_score(response, **kwargs)                                    the same, with all four
compute_score(responses, ground_truths)                              the responses of a group, a list of scores
async def compute_score(...)                                         each of them, awaited
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljob_trainer.rewards.protocol import Call

_FIELDS = ("data_source", "solution_str", "ground_truth", "extra_info")
_ONE = {**{field: field for field in _FIELDS}, "response": "solution_str"}
_MANY = {**{f"{field}s": field for field in _FIELDS}, "responses": "solution_str"}


class SignatureError(Exception):
    """The function cannot be called. argument: one of its `arguments` is at fault."""

    def __init__(self, message: str, *, argument: bool) -> None:
        super().__init__(message)
        self.argument = argument


class ComputeScore:
    """A loaded reward function. batch: it takes all responses of a group in a call.

    Raises:
        SignatureError: it cannot be called.
    """

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        self._function, self._arguments = function, dict(arguments)
        names = _parameters(function)
        self.batch = bool(names.keys() & _MANY.keys()) and not names.keys() & _ONE.keys()
        self._fields = _passed(names, _MANY if self.batch else _ONE)
        self._check()

    def __call__(self, call: Call) -> Any:
        """What it returns for one response: a number, a mapping or an awaitable of one; not checked yet."""
        return self._function(**{name: _own(getattr(call, field)) for name, field in self._fields} | self._arguments)

    def many(self, calls: Sequence[Call]) -> Any:
        """What it returns for a group: a list of the same, or an awaitable of one."""
        lists = {name: [_own(getattr(call, field)) for call in calls] for name, field in self._fields}
        return self._function(**lists | self._arguments)

    def _check(self) -> None:
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # some functions written in C have none
            return
        try:
            signature.bind(**dict(self._fields) | self._arguments)
            if "solution_str" not in dict(self._fields).values():
                raise TypeError("it takes no response")
        except TypeError as error:
            call = ", ".join(f"{name}=..." for name in {**dict.fromkeys(_FIELDS), **self._arguments})
            name = getattr(self._function, "__name__", "the function")
            message = f"{name}{signature} cannot be called as f({call}): {error}"
            argument = any(repr(name) in str(error) for name in self._arguments)
            raise SignatureError(message, argument=argument) from error


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {"call": inspect.Parameter("call", inspect.Parameter.VAR_KEYWORD)}


def _passed(names: Mapping[str, inspect.Parameter], known: Mapping[str, str]) -> list[tuple[str, str]]:
    """(parameter, field of a Call) of what the function gets: what it names, and all if it has **kwargs."""
    passed = {name: known[name] for name in names if name in known}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in names.values()):
        for name, field in known.items():
            if field not in passed.values():
                passed[name] = field
    return list(passed.items())


def _own(value: Any) -> Any:
    """A copy, so that a change reaches neither the next call nor the next function."""
    return value if isinstance(value, str | int | float | None) else copy.deepcopy(value)
