"""Finds groups that were finished before."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.journal.files import JournalFile, list_files
from rljob_trainer.journal.frames import read_frames
from rljob_trainer.journal.record import GroupKey, Match, decode, match_of, read_match
from rljob_trainer.journal.summary import summarise
from rljob_trainer.old_types import Group, GroupSummary, Prompt
from rljob_trainer.volume import Volume


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a record lies. A later place comes after an earlier one."""

    attempt: int
    offset: int
    path: Path


@dataclass(slots=True)
class _Read:
    """How far a file was read. rest: bytes after that. damaged: records before that."""

    end: int = 0
    rest: int = 0
    damaged: int = 0


class Journal:
    """The groups on a volume, by what they were made for. For one thread.

    Where a group is recorded twice, the last record counts, and a newer attempt's above an older one's: whoever made
    another had not used the first.
    """

    def __init__(self, volume: Volume, attempt: int, after_step: int) -> None:
        self._volume, self._attempt, self._after_step = volume, attempt, after_step
        self._files: dict[Path, _Read] = {}
        self._places: dict[Match, _Place] = {}

    @classmethod
    def read(cls, volume: Volume, attempt: int, after_step: int) -> Self:
        """Index what `attempt` and the attempts before it finished for the steps after `after_step`.

        Raises:
            InfrastructureError: the volume cannot be read.
        """
        journal = cls(volume, attempt, after_step)
        journal.refresh()
        return journal

    def refresh(self) -> None:
        """Index what was appended meanwhile, and forget what was truncated. Raises as read()."""
        try:
            files = [file for file in list_files(self._volume) if self._counts(file)]
            paths = {file.path for file in files}
            self._files = {path: read for path, read in self._files.items() if path in paths}
            self._places = {match: place for match, place in self._places.items() if place.path in paths}
            for file in files:
                self._index(file)
        except OSError as error:
            raise InfrastructureError(f"cannot read the rollout journal: {error}") from error

    def find(self, key: GroupKey, prompt: Prompt) -> tuple[Group, GroupSummary] | None:
        """The group that was made of `prompt` for this step by this policy and these settings, if one was finished.

        Raises:
            InfrastructureError: the volume cannot be read.
        """
        match = match_of(key, prompt)
        place = self._places.get(match)
        record = _read_record(place) if place else None
        if record is None or read_match(record) != match:  # truncated meanwhile, and perhaps begun anew
            return None
        group, score = decode(record, prompt)
        return group, summarise(group, score)

    def holds(self, step: int, policy_digest: str) -> bool:
        """Whether there are groups for this step by this policy."""
        return any((match.step, match.policy_digest) == (step, policy_digest) for match in self._places)

    @property
    def torn(self) -> int:
        """Files that end in a record that is unfinished, or from a damaged head on cannot be read."""
        return sum(read.rest > 0 for read in self._files.values())

    @property
    def damaged(self) -> int:
        """Records whose checksum is wrong; they are left out."""
        return sum(read.damaged for read in self._files.values())

    @property
    def incomplete(self) -> list[Path]:
        """The files of which something is torn or damaged; what they lack is generated anew."""
        return sorted(path for path, read in self._files.items() if read.rest or read.damaged)

    def __len__(self) -> int:
        """Groups that can be found."""
        return len(self._places)

    def _counts(self, file: JournalFile) -> bool:
        return file.attempt <= self._attempt and file.step > self._after_step

    def _index(self, file: JournalFile) -> None:
        state = self._files.setdefault(file.path, _Read())
        with file.path.open("rb") as opened:
            for frame in read_frames(opened, state.end):
                state.end = frame.end
                if frame.payload is None:
                    state.damaged += 1
                    continue
                match, place = read_match(frame.payload), _Place(file.attempt, frame.offset, file.path)
                self._places[match] = max(place, self._places.get(match, place))
            state.rest = os.fstat(opened.fileno()).st_size - state.end


def _read_record(place: _Place) -> bytes | None:
    """The record, or None where it is gone or was damaged meanwhile."""
    try:
        with place.path.open("rb") as file:
            found = next(read_frames(file, place.offset), None)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InfrastructureError(f"cannot read the rollout journal: {error}") from error
    return found.payload if found else None
