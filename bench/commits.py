"""The commit that a benchmark's results are of."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

CHANGED = "+"
"""Ends the commit of results whose files differed from it."""


def last_change(paths: Iterable[str]) -> str:
    """The last commit that changed one of the paths, with CHANGED after it where files differ from it.

    "" where there is no git, no repository or no such commit.
    """
    commit = _git("log", "-1", "--format=%h", "--", *paths)
    return commit and commit + (CHANGED if _git("status", "--porcelain", "--", *paths) else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).parents[1]
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ran.stdout.strip()
