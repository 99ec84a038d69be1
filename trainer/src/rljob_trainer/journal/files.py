"""The journal's files on a volume."""

import re
from dataclasses import dataclass
from pathlib import Path

from rljob_trainer.errors import on_volume
from rljob_trainer.volume import Volume

_FOLDER = re.compile(r"a(\d+)")
_FILE = re.compile(r"version-(\d+)\.journal")


@dataclass(frozen=True, slots=True, order=True)
class JournalFile:
    """What `attempt` recorded while `version` was the newest policy."""

    attempt: int
    version: int
    path: Path


def list_files(volume: Volume) -> list[JournalFile]:
    """All files, those of the oldest attempt first, by version."""
    return sorted(
        JournalFile(attempt, int(name[1]), path)
        for attempt, folder in _folders(volume)
        for path in folder.iterdir()
        if (name := _FILE.fullmatch(path.name))
    )


def truncate(volume: Volume, before_version: int, attempt: int) -> int:
    """Delete the files of all versions below `before_version`, which a checkpoint made needless. Returns how many.

    attempt: the one that has the volume. Files of later attempts stay: those may have begun a new run. Folders of
    older attempts that this empties are deleted too.

    Raises:
        InfrastructureError: the volume refuses.
    """
    with on_volume(f"needless files in {volume.journals} cannot be deleted"):
        needless = [
            file.path for file in list_files(volume) if file.version < before_version and file.attempt <= attempt
        ]
        for path in needless:
            path.unlink(missing_ok=True)
        for number, folder in _folders(volume):
            if number < attempt and not any(folder.iterdir()):
                folder.rmdir()
    return len(needless)


def _folders(volume: Volume) -> list[tuple[int, Path]]:
    if not volume.journals.is_dir():
        return []
    return sorted((int(name[1]), path) for path in volume.journals.iterdir() if (name := _FOLDER.fullmatch(path.name)))
