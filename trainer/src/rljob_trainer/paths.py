"""Paths in an RLJob. Light: reward processes import it."""

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


def no_file(path: Path) -> str:
    """The message for a missing file."""
    return f"{path} does not exist; correct the path (a relative path starts at the folder of the RLJob's file)"
