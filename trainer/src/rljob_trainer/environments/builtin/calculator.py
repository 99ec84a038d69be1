"""calculator: arithmetic, checked node by node and never evaluated by Python. Needs only Python 3.11."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Number = int | float

_LONGEST = 1000
"""Characters of an expression."""

_MOST_BITS = 4096
"""Of a whole number: Python computes far larger ones for minutes, and refuses to print them."""

_MOST_DIGITS = 400
"""That round takes: Python computes a power of 10 with as many. A float has fewer on either side of its point."""

_TYPED = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MOST_BITS:
        raise ValueError("the power is too large")
    value: Number = base**exponent
    return value


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        raise ValueError(f"round takes at most {_MOST_DIGITS} digits")
    rounded: Number = round(value, digits) if digits else round(value)
    return rounded


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs, "ceil": math.ceil, "cos": math.cos, "exp": math.exp, "floor": math.floor, "log": math.log,
    "max": max, "min": min, "round": _round, "sin": math.sin, "sqrt": math.sqrt, "tan": math.tan,
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}


def make(_settings: Mapping[str, Any], _base_dir: Path) -> Callable[..., Any]:
    return calculator


def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: For example (3 + 4) * 5, or sqrt(2) ** 3.
    """
    return written(evaluate(expression))


def evaluate(expression: str) -> Number:
    """The value. Raises ValueError or ZeroDivisionError, with a message for the policy."""
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has more than {_LONGEST} characters")
    try:
        return _value(ast.parse(expression.translate(_TYPED).strip(), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{expression!r:.80} is no arithmetic expression") from None
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _bounded(_BINARY[type(sign)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    raise ValueError(f"{ast.unparse(node)!r:.80} is no arithmetic; write numbers and + - * / // % **")


def _bounded(value: Number) -> Number:
    if isinstance(value, complex) or not math.isfinite(value):
        raise ValueError("the result is no real number")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError("a number is too large")
    return value


def written(value: Number) -> str:
    """12 digits; a whole number without a point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.12g}"
