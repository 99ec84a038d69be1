"""The journal's files on a volume."""

import re
from dataclasses import dataclass
from pathlib import Path

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.volume import Volume

_FOLDER = re.compile(r"a(\d+)")
_FILE = re.compile(r"step-(\d+)\.journal")


@dataclass(frozen=True, slots=True, order=True)
class JournalFile:
    """The groups that `attempt` finished for `step`."""

    attempt: int
    step: int
    path: Path


def list_files(volume: Volume) -> list[JournalFile]:
    """All files, those of the oldest attempt first, by step."""
    return sorted(
        JournalFile(attempt, int(name[1]), path)
        for attempt, folder in _folders(volume)
        for path in folder.iterdir()
        if (name := _FILE.fullmatch(path.name))
    )


def truncate(volume: Volume, upto_step: int, attempt: int) -> int:
    """Delete the files of all steps up to `upto_step`, which a durable checkpoint made needless. Returns how many.

    attempt: the one that has the volume. What later ones write is not its business: they may have begun anew. Older
    ones' folders that this empties go too.

    Raises:
        InfrastructureError: the volume refuses.
    """
    try:
        needless = [file.path for file in list_files(volume) if file.step <= upto_step and file.attempt <= attempt]
        for path in needless:
            path.unlink(missing_ok=True)
        for number, folder in _folders(volume):
            if number < attempt and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise InfrastructureError(f"cannot delete needless files in {volume.journals}: {error}") from error
    return len(needless)


def _folders(volume: Volume) -> list[tuple[int, Path]]:
    if not volume.journals.is_dir():
        return []
    return sorted((int(name[1]), path) for path in volume.journals.iterdir() if (name := _FOLDER.fullmatch(path.name)))
