"""search: the passages of a corpus that BM25 (Robertson and Zaragoza 2009) ranks highest, through bm25s.

A corpus is JSON lines: {"text": ..., "title": ...}, or "contents" in place of "text", as Search-R1's corpora have it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_trainer.environments.builtin import ToolUnusable
from rljob_trainer.paths import locate


def make(settings: Mapping[str, Any], base_dir: Path) -> Callable[..., Any]:
    bm25s = _library()
    passages = list(read_corpus(locate(settings["corpus"], base_dir)))
    index = bm25s.BM25()
    index.index(bm25s.tokenize(passages, stopwords="en", show_progress=False), show_progress=False)
    most = min(int(settings["results"]), len(passages))

    def search(query: str) -> str:
        """Search a collection of texts and return the passages that fit best.

        Args:
            query: Words to look for.
        """
        words = bm25s.tokenize(query, stopwords="en", show_progress=False)
        numbers, scores = index.retrieve(words, k=most, show_progress=False)
        found = [passages[number] for number, score in zip(numbers[0], scores[0], strict=True) if score > 0]
        return "\n\n".join(f"[{place}] {text}" for place, text in enumerate(found, 1)) or "Nothing was found."

    return search


def read_corpus(path: Path) -> Iterator[str]:
    """The passages, with their titles. Raises ToolUnusable, naming the line."""
    empty = True
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    empty = False
                    yield _passage(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolUnusable(f"the corpus {path} cannot be read: {error}", "corpus") from error
    if empty:
        raise ToolUnusable(f"the corpus {path} is empty: write JSON lines with a field text", "corpus")


def _passage(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ToolUnusable(f"{where} is not JSON: {error}", "corpus") from error
    text = (row.get("text") or row.get("contents")) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise ToolUnusable(f"{where} has no field text, or contents, with text: add it", "corpus")
    return f"{row['title']}\n{text}" if row.get("title") else text


def _library() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise ToolUnusable(f"the tool search needs bm25s ({error}): pip install 'rljob-trainer[search]'") from error
    return bm25s
