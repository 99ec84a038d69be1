"""Pages that a program writes again, with a part that a person wrote."""

from pathlib import Path
from typing import Final

MARK: Final = "<!-- by hand -->"


def write_keeping_what_is_by_hand(page: Path, text: str) -> None:
    """Replace what the page has above MARK; what is below stays."""
    _, mark, by_hand = page.read_text().partition(MARK) if page.exists() else ("", "", "")
    page.write_text(f"{text.rstrip()}\n\n{MARK}{by_hand if mark else chr(10)}")
