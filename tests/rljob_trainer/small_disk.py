"""A disk that is soon full, or read-only."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_trainer.volume import Volume


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Volume]:
    """A volume of its own: a tmpfs with these mount options. Skips the test where that is not permitted."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"mount is not permitted here: {made.stderr.decode().strip()}")
    try:
        yield Volume(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
