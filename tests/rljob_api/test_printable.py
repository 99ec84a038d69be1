"""What a terminal would carry out does not reach it."""

import pytest

from rljob_api.printable import printable

TEXTS = {
    "colours": ("\x1b[31mred\x1b[0m", "red"),
    "cleared screen": ("a\x1b[2J\x1b[Hb", "ab"),
    "an 8-bit sequence": ("a\x9b2Jb", "ab"),
    "a title": ("\x1b]0;title\x07text", "text"),
    "a link": ("\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\", "text"),
    "the clipboard, never closed": ("a\x1b]52;c;cm0=\nb", "a\nb"),
    "a device control string": ("a\x1bPq#0\x1b\\b", "ab"),
    "reset": ("a\x1bcb", "ab"),
    "a sequence within another": ("\x1b\x1b[0m[2J", "\ufffd[2J"),
    "a line written over": ("failed\rdone\r\n", "failed\ufffddone\n"),
    "backspace, bell, NUL, DEL": ("\x08\x07\x00\x7f", "\ufffd" * 4),
    "direction": ("a\u202eb\u2066c\u200fd", "a\ufffdb\ufffdc\ufffdd"),
    "surrogates": ("\ud800", "\ufffd"),
    "other text": ("tab\tnew\nline é 漢字 👩\u200d🔬", "tab\tnew\nline é 漢字 👩\u200d🔬"),
}


@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=TEXTS)
def test_only_text_is_left(text: str, shown: str) -> None:
    assert printable(text) == shown
