"""The commit that results are of, and the state of the files that decided them."""

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

CHANGED = "+"
"""Ends the commit of results whose files differed from it."""


def last_change(paths: Iterable[str]) -> str:
    """The last commit that changed one of the paths, with CHANGED after it where files differ from it.

    "" where there is no git, no repository or no such commit.
    """
    commit = _git(ROOT, "log", "-1", "--format=%h", "--", *paths)
    return commit and commit + (CHANGED if _git(ROOT, "status", "--porcelain", "--", *paths) else "")


def content(paths: Iterable[str], root: Path = ROOT) -> str:
    """A digest of the paths' files as they are now, committed or not, without those that git ignores.

    "" where there is no git, no repository or no such file.
    """
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths).split("\0")
    files = [name for name in sorted(set(listed)) if (root / name).is_file()]  # git lists those that were deleted, too
    lines = [f"{hashlib.sha256((root / name).read_bytes()).hexdigest()} {name}\n" for name in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12] if lines else ""


def _git(root: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ran.stdout.strip()
