"""The run's volume: the same folders locally (`--dir`) and on the PVC. Light: no torch, no Ray.

    job.json                          {jobUid, name, layoutVersion}
    attempts/<n>.json                 the claim of attempt n: nonce, what it continues (checkpoint/lineage.py)
    attempts/<n>.copy.json            the claim once more, as soon as it has decided
    attempts/<n>.newest.json          {name}: of the last checkpoint that it committed, so that its loss shows
    attempts/<n>.exit.json            how it ended (rljob_api.contract.ExitRecord)
    checkpoints/step-<s>-a<n>/        one checkpoint; manifest.json is written last and makes it count
    journal/a<n>/version-<v>.journal  what attempt n made and used while the policy had version v, until a checkpoint
                                      makes it needless
    metrics/a<n>.jsonl                one line a step
    metrics/a<n>.before.jsonl         the steps before, where attempt n began from another run's checkpoint
    samples/a<n>.jsonl                some responses, for people
    logs/a<n>.jsonl, logs/*.log       structlog lines of the driver; output of other processes
    control/progress.json             rljob_api.v1alpha1.Progress, replaced at each change
    control/request.json              {checkpoint, stop}: what the agent was asked and the driver has not done yet
    control/exit.json                 how `rljob run` ended (ExitRecord); the last attempt's may be another

An attempt writes only under its own number.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Volume:
    """Names of everything on a run's volume."""

    root: Path

    @property
    def job(self) -> Path:
        return self.root / "job.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def progress(self) -> Path:
        return self.control / "progress.json"

    @property
    def run_lock(self) -> Path:
        return self.control / "run.lock"

    @property
    def request(self) -> Path:
        return self.control / "request.json"

    @property
    def run_exit(self) -> Path:
        return self.control / "exit.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def claim(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.json"

    def claim_copy(self, attempt: int) -> Path:
        """Of a claim that has decided: a run's end must not hang on one small file."""
        return self.attempts / f"{attempt}.copy.json"

    def newest_commit(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.newest.json"

    def exit_record(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.exit.json"

    def driver_lock(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.lock"

    def checkpoint(self, step: int, attempt: int) -> Path:
        return self.checkpoints / f"step-{step}-a{attempt}"

    @property
    def journals(self) -> Path:
        return self.root / "journal"

    def journal(self, attempt: int, version: int) -> Path:
        return self.journals / f"a{attempt}" / f"version-{version}.journal"

    def metrics(self, attempt: int) -> Path:
        return self.root / "metrics" / f"a{attempt}.jsonl"

    def metrics_before(self, attempt: int) -> Path:
        return self.root / "metrics" / f"a{attempt}.before.jsonl"

    def samples(self, attempt: int) -> Path:
        return self.root / "samples" / f"a{attempt}.jsonl"

    def log(self, attempt: int) -> Path:
        return self.logs / f"a{attempt}.jsonl"


def write_json(path: Path, value: Any, *, may_be_lost: bool = False) -> None:
    """Replace `path` as a whole: a reader sees the old file or the new one, also after a crash.

    From then on it is the new one, unless it may be lost: a power cut may bring the old one of such a file back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):  # the first failure is the one to tell
            part.unlink()
        raise
    if not may_be_lost:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in it durable: without that a power cut may undo what was created, renamed or deleted there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any | None:
    """The file's value, or None where there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
