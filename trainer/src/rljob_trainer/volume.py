"""The run's volume: the same folders locally (`--dir`) and on the PVC. Light: no torch, no Ray.

    job.json                          {jobUid, name, layoutVersion}
    attempts/<n>.json                 the claim of attempt n: nonce, what it continues (checkpoint/lineage.py)
    attempts/<n>.copy.json            a copy of the claim after its decision
    attempts/<n>.newest.json          {name}: the last checkpoint that it committed, so that its loss is detected
    attempts/<n>.exit.json            how it ended (rljob_api.contract.ExitRecord)
    attempts/<n>.preflight.json       its fabric preflight (rljob_api.preflight.PreflightRecord)
    checkpoints/step-<s>-a<n>/        one checkpoint; manifest.json is written last and commits it
    journal/a<n>/version-<v>.journal  what attempt n made and used with policy version v; deleted after a checkpoint
    metrics/a<n>.jsonl                one line per step
    metrics/a<n>.before.jsonl         earlier steps, if attempt n started from another run's checkpoint
    samples/a<n>.jsonl                sample responses for people
    bad_batches/a<n>.jsonl            samples of the attempt's last step with a skipped update (training.onBadGradient)
    compiled/                         kernels that ranks and engines compiled, in a cluster (compute/compiled.py)
    logs/a<n>.preflight.txt           everything that the preflight measured, for people
    logs/a<n>.jsonl, logs/*.log       structlog lines of the driver; output of other processes
    control/progress.json             rljob_api.v1alpha1.Progress, replaced at each change
    control/request.json              {checkpoint, stop}: requests to the agent that the driver has not carried out
    control/exit.json                 how `rljob run` ended (ExitRecord); may differ from the last attempt's record

An attempt writes only files with its own number.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Volume:
    """The paths on a run's volume."""

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
        return self.attempts / f"{attempt}.copy.json"

    def newest_commit(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.newest.json"

    def exit_record(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.exit.json"

    def preflight_record(self, attempt: int) -> Path:
        return self.attempts / f"{attempt}.preflight.json"

    def preflight_table(self, attempt: int) -> Path:
        return self.logs / f"a{attempt}.preflight.txt"

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

    def bad_batch(self, attempt: int) -> Path:
        return self.root / "bad_batches" / f"a{attempt}.jsonl"

    def log(self, attempt: int) -> Path:
        return self.logs / f"a{attempt}.jsonl"


def write_json(path: Path, value: Any, *, may_be_lost: bool = False) -> None:
    """Replace `path` atomically: readers see the old file or the new one, also after a crash.

    may_be_lost: skip the folder's fsync, so that a power cut may bring the old file back.
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
        with suppress(OSError):  # keep the first error
            part.unlink()
        raise
    if not may_be_lost:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that a power cut does not undo what was created, renamed or deleted in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any | None:
    """The file's value; None if it does not exist."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
