"""Attempts and finished groups, seen while a job trains: what a checkpoint makes needless is deleted."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rljob_trainer.checkpoint.lineage import CHECKPOINT_NAME, Claim, read_claim
from rljob_trainer.checkpoint.manifest import MANIFEST
from rljob_trainer.journal.files import list_files
from rljob_trainer.journal.frames import read_frames
from rljob_trainer.journal.record import key_of, read_header
from rljob_trainer.progress.state import last_attempt
from rljob_trainer.volume import Volume

Checkpoint = tuple[int, int]
"""Step and attempt."""


class Match(NamedTuple):
    """What a group was made for. step: the update of the policy that made it. prompt: hash of its token ids."""

    step: int
    policy_digest: str
    fingerprint: str
    task_id: str
    prompt: str


Made = tuple[int, Match]
"""A finished group: the attempt that journaled it, and what it was made for."""


@dataclass(slots=True)
class Attempts:
    """By attempt.

    begun: Unix time of the first look that found its claim. before: the checkpoints that looks before that had found.
    claims: what it went on from. made: every finished group, in the order of attempts.
    """

    begun: dict[int, float] = field(default_factory=dict)
    before: dict[int, frozenset[Checkpoint]] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)

    def at(self, time: float) -> int:
        """The newest attempt then; 0 for none."""
        begun = list(self.begun.items())  # a look may add to it meanwhile
        return max((attempt for attempt, since in begun if since <= time), default=0)


class VolumeWatch:
    """Looks at a volume again and again. What of the journal is there at a look can be read at the end.

    For that, each of its files gets a second name beside the volume, so that deleting the first one loses nothing.
    """

    def __init__(self, volume: Volume) -> None:
        self.attempts = Attempts()
        self._volume = volume
        self._checkpoints: set[Checkpoint] = set()
        self._kept = volume.root.with_name(f"{volume.root.name}.journal")

    def look(self) -> None:
        for attempt in range(max(self.attempts.begun, default=0) + 1, last_attempt(self._volume) + 1):
            self.attempts.begun[attempt] = time.time()
            self.attempts.before[attempt] = frozenset(self._checkpoints)
        self._checkpoints |= set(_durable(self._volume))  # after the claims: what came between is not held against them
        with suppress(FileNotFoundError):  # a folder that was emptied meanwhile
            for file in list_files(self._volume):
                self._keep(file.path, f"{file.attempt}-{file.version}")

    def end(self) -> None:
        """Read what was kept."""
        self.look()
        claims = {attempt: read_claim(self._volume, attempt) for attempt in self.attempts.begun}
        self.attempts.claims = {attempt: claim for attempt, claim in claims.items() if claim is not None}
        self.attempts.made = sorted(_made(self._kept), key=lambda each: each[0])
        shutil.rmtree(self._kept, ignore_errors=True)

    def _keep(self, path: Path, name: str) -> None:
        self._kept.mkdir(exist_ok=True)
        with suppress(FileNotFoundError, FileExistsError):  # it was deleted meanwhile, or has its name
            os.link(path, self._kept / f"{name}-{path.stat().st_ino}")


def _durable(volume: Volume) -> Iterator[Checkpoint]:
    for manifest in volume.checkpoints.glob(f"*/{MANIFEST}"):
        if name := CHECKPOINT_NAME.fullmatch(manifest.parent.name):
            yield int(name[1]), int(name[2])


def _made(kept: Path) -> Iterator[Made]:
    for path in kept.glob("*"):
        with path.open("rb") as file:
            payloads = [frame.payload for frame in read_frames(file) if frame.payload is not None]
        headers = [header for header in map(read_header, payloads) if header["kind"] == "made"]
        for key, policies in map(key_of, headers):
            if key.sample == 0:  # the episodes of a group are written together
                version = max(policies)
                match = Match(version + 1, policies[version], key.fingerprint, key.task_id, key.prompt)
                yield int(path.name.split("-")[0]), match
