"""The API server's and KubeRay's words, as a condition shows them: on one line, and each finding once."""

import re
from collections.abc import Callable

_FINDINGS = re.compile(r"(?<= is invalid: )\[(.*)\]$", re.DOTALL)
_NEXT = re.compile(r", (?=(?:spec|metadata|status|<nil>)[^\s:]*: )")
_NOT_ALL = "some validation rules were not checked"
"""The API server says so beside what it found, of no field, and nobody can do anything about it."""


def one_line(words: str) -> str:
    """Lines of which the first says what the others are about."""
    lines = list(dict.fromkeys(filter(None, map(str.strip, words.splitlines()))))
    return ": ".join(filter(None, (lines[0].removesuffix(":"), "; ".join(lines[1:])))) if lines else ""


def told_once(words: str, field: Callable[[str], str]) -> str:
    """field: rewrites the paths in one finding, after which two of them may be alike."""
    many = _FINDINGS.search(words)
    if many is None:
        return one_line(field(words))
    found = [field(each) for each in _NEXT.split(many[1]) if _NOT_ALL not in each]
    once = list(dict.fromkeys(found))
    said = once[0] if len(once) == 1 else f"[{', '.join(once)}]"
    return one_line(field(words[: many.start()]) + said)
