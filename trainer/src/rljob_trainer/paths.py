"""Paths that an RLJob names. Imports nothing heavy, for reward processes load it."""

from pathlib import Path


def locate(name: str, base_dir: Path) -> Path:
    """Where `name` leads: ~ is the home folder, and a relative path starts at `base_dir`, where the RLJob's file is."""
    try:
        return base_dir / Path(name).expanduser()
    except RuntimeError:  # ~somebody whom this machine does not know
        return base_dir / name


def no_file(path: Path) -> str:
    """What to say of a file that the RLJob names and nobody finds."""
    return f"no file {path}; correct the path (a relative one starts at the RLJob's file)"
