"""Paths in an RLJob. Light: reward processes import it."""

import shutil
from collections.abc import Sequence
from pathlib import Path


def locate(name: str, base_dir: Path) -> Path:
    """Expand ~, and resolve a relative `name` against `base_dir`, the folder of the RLJob's file."""
    try:
        return base_dir / Path(name).expanduser()
    except RuntimeError:  # ~name of an unknown user
        return base_dir / name


def is_here(path: Path) -> bool:
    """Whether it is a file of this machine."""
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder without permission
        return False


def no_program(command: Sequence[str], base_dir: Path) -> str | None:
    """The message for a program that is not on this machine; None if it is. command: with its arguments."""
    program = command[0]
    if shutil.which(locate(program, base_dir) if "/" in program else program) is not None:
        return None
    return f"{program} is no program here: install it, or correct the name"


def no_file(path: Path) -> str:
    """The message for a missing file."""
    return f"{path} does not exist; correct the path (a relative path starts at the folder of the RLJob's file)"
