"""Text of pods, models and users' code, for a terminal: it must not carry out what they write."""

import re

_ESCAPE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, clearing
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"  # OSC and others: titles
    "|\x1b[ -/]*[0-~]"
)
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 but tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of text
    "\u2028\u2029\ud800-\udfff]"  # ends of lines, and what no encoding writes
)


def printable(text: str) -> str:
    """The text without escape sequences; each other control character is shown as U+FFFD."""
    return _CONTROL.sub("\ufffd", _ESCAPE.sub("", text.replace("\r\n", "\n")))
