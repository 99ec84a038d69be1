"""Settings of a launch script, read without running it.

The script is split into words as a shell does. NAME=value assigns a variable, and a.b=value is a setting. Branches,
loops and commands are not evaluated: a later assignment replaces an earlier one.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import takewhile

from simpleeval import InvalidExpression, simple_eval

from rljob_trainer.errors import JobError

SETTING = re.compile(r"[+~]{0,2}[A-Za-z_]\w*(\.[\w/@-]+)+=.*|~[A-Za-z_]\w*(\.\w+)*", re.DOTALL)
"""A setting as Hydra takes it on the command line: a.b=value, +a.b=value, ++a.b=value, ~a.b."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\((.*)", re.DOTALL)
_FLAT = re.compile(r"--([a-z_][\w-]*)(?:=(.*))?", re.DOTALL)
_NO_VALUE = re.compile(r"--?[A-Za-z].*|.*\.py|\d*[<>].*|[;&|\n]+|\$@", re.DOTALL)
"""What ends the values of an option: another one, a program, a redirection, the end of a command."""

_CONTINUED = re.compile(r"""('[^']*'|\\[^\n])|("(?:\\.|[^"\\])*")|(?<![^\s;&|])\#[^\n]*|\\\n""", re.DOTALL)
"""What a shell keeps, double quotes, whose lines it joins, and what it removes: a comment, the end of a joined line."""

_VARIABLE = re.compile(r"\$(?:(\w+|@)|\{(\w+)(?::?-([^{}]*))?\})")
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)(?!\))")


def script_settings(text: str, source: str) -> list[str]:
    """The settings of a script in its order, variables replaced by what the script assigns to them.

    In a script without such settings, `--name value` is one: name=value, as TRL's commands take them.
    Raises JobError if the text cannot be split as a shell does.
    """
    lexer = shlex.shlex(_joined(_continued(text)), posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    try:
        words = list(_elements(lexer))
    except ValueError as error:
        message = f"cannot be read as a shell script ({error}): pass its key=value words to `rljob convert` instead"
        raise JobError(message, field=source) from error
    found = list(_settings(words))
    settings = [word for word in found if SETTING.fullmatch(word)]
    return settings or found


def _elements(words: Iterable[str]) -> Iterator[str]:
    """The words; NAME=(a b) and NAME+=(a b) give the words of the array."""
    inside = False
    for word in words:
        opened = _ARRAY.fullmatch(word)
        inside = inside or opened is not None
        rest = opened[1] if opened else word
        closed = inside and rest.endswith(")") and "(" not in rest
        inside = inside and not closed
        yield rest.removesuffix(")") if closed else rest


def _settings(words: list[str]) -> Iterator[str]:
    """Settings and options in their order, variables replaced."""
    variables = {"HOME": "~", "PWD": ".", "@": ""}
    for place, word in enumerate(words):
        if SETTING.fullmatch(word):
            yield _expanded(word, variables)
        elif assigned := _ASSIGNMENT.fullmatch(word):
            name, more, value = assigned.groups()
            variables[name] = (variables.get(name, "") if more else "") + _expanded(value, variables)
        elif word.startswith("$") and " " in (words_of := _expanded(word, variables)):
            yield from (each for each in shlex.split(words_of) if SETTING.fullmatch(each))
        elif flag := _FLAT.fullmatch(word):
            values = takewhile(lambda each: not _NO_VALUE.fullmatch(each), words[place + 1 :])
            given = [flag[2]] if flag[2] is not None else list(values) or ["true"]
            texts = [_expanded(each, variables) for each in given]
            text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
            yield f"{flag[1].replace('-', '_')}={text}"


def _continued(text: str) -> str:
    """The text without comments, and with lines that end with a backslash joined to the next one."""
    return _CONTINUED.sub(lambda found: found[1] or (found[2] or "").replace("\\\n", ""), text)


def _joined(text: str) -> str:
    """The text without the spaces in $(...), which would split its words."""
    parts, depth, index = [], 0, 0
    while index < len(text):
        opened = text.startswith("$(", index) or (depth > 0 and text[index] == "(")
        depth += opened - (depth > 0 and text[index] == ")")
        width = 2 if text.startswith("$(", index) else 1
        part = text[index : index + width]
        parts.append("" if depth > 0 and part.isspace() else part)
        index += width
    return "".join(parts)


def _expanded(word: str, variables: dict[str, str]) -> str:
    """`word` with its variables and sums; what the script does not define stays as it is written."""
    word = word.replace("$(pwd)", ".")
    for _ in range(10):  # a default may hold variables: ${DATA:-${HOME}/data}
        before = word
        word = _ARITHMETIC.sub(lambda found: _sum(found[1], variables) or found[0], word)
        word = _VARIABLE.sub(lambda found: _value(found, variables), word)
        if word == before:
            break
    return word


def _value(found: re.Match[str], variables: dict[str, str]) -> str:
    name = found[1] or found[2]
    return variables.get(name, found[0] if found[3] is None else found[3])


def _sum(expression: str, variables: dict[str, str]) -> str | None:
    names = {name: int(value) for name, value in variables.items() if re.fullmatch(r"-?\d+", value)}
    try:
        return str(int(simple_eval(re.sub(r"\$\{?(\w+)\}?", r"\1", expression).replace("/", "//"), names=names)))
    except (InvalidExpression, SyntaxError, TypeError, ValueError, ArithmeticError):
        return None
