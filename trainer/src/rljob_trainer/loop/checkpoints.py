"""When a checkpoint is taken, how it becomes durable while training goes on, and which ones are kept.

    loop      begin ──> ranks: begin_save ──> training goes on ........ poll: the checkpoint is durable
    thread              └─> model/, trainer.json, ranks: finish_save, metrics ──> [still ours?] commit ──> [ours?] prune

A driver that was frozen anywhere in there and superseded meanwhile does no harm: it writes and deletes only under its
own attempt's number, what it commits is outside the lineage, and it looks who has the volume before it deletes.
"""

import json
import shutil
from collections.abc import Iterator, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Protocol

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.attempt.claim import check_not_superseded
from rljob_trainer.checkpoint.files import FileEntry, files_below
from rljob_trainer.checkpoint.manifest import (
    METRICS,
    MODEL,
    RANKS,
    TRAINER,
    CheckpointRef,
    Retention,
    commit,
)
from rljob_trainer.checkpoint.retention import Pruning
from rljob_trainer.errors import DataError, InfrastructureError, StorageFullError, is_full, storage_error
from rljob_trainer.progress.history import history
from rljob_trainer.volume import Volume, write_json
from rljob_trainer.workers.context import UPDATE_SECONDS

log = structlog.get_logger()

DURABLE_SECONDS = 2 * UPDATE_SECONDS
"""Deadline of a whole one: a volume may stop to answer."""

_CONFIG = "config.json"

_WEIGHTS = (".safetensors", ".bin")


class Ranks(Protocol):
    """All trainer ranks, asked together (rank/client.py)."""

    def begin_save(self, directory: str) -> None:
        """Start to write each rank's part of a checkpoint."""

    def finish_save(self) -> list[dict[str, FileEntry]]:
        """Wait for it beside the training, from any thread. Returns what each rank wrote, by file name."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint is to hold besides the ranks' tensors. state: LoopState's, as JSON."""

    step: int
    state: str
    reward: float | None
    validation_reward: float | None


class Checkpoints:
    """Saves and prunes the checkpoints of one attempt. For one thread, the loop's."""

    def __init__(
        self, spec: ResolvedSpec, volume: Volume, attempt: int, model_dir: Path, spared: Set[Path] = frozenset()
    ) -> None:
        """spared: checkpoints that are not deleted, whatever retention wants; looked at when others are."""
        self._settings = spec.checkpoint
        self._retention = Retention(
            keep_last=spec.checkpoint.keep_last,
            keep_every=spec.checkpoint.keep_every,
            keep_best=spec.checkpoint.keep_best,
        )
        self._volume, self._attempt, self._model_dir = volume, attempt, model_dir
        self._running: Future[CheckpointRef] | None = None
        self._durable: CheckpointRef | None = None
        self._spared = spared

    def due(self, step: int, total: int) -> bool:
        return step == total or (self._settings.every_steps > 0 and step % self._settings.every_steps == 0)

    def begin(
        self, step: int, state: dict[str, object], reward: float | None, ranks: Ranks, *,
        validation_reward: float | None = None,
    ) -> None:  # fmt: skip
        """Take a checkpoint of now. Returns as soon as the ranks have started, and waits for an earlier one first.

        Raises what `poll` raises.
        """
        self.finish()
        snapshot = Snapshot(step, json.dumps(state), reward, validation_reward)
        staged = self._staged(step)
        with self._explained(step):
            check_not_superseded(self._volume, self._attempt)
            shutil.rmtree(staged, ignore_errors=True)
            (staged / RANKS).mkdir(parents=True)
        ranks.begin_save(str(staged / RANKS))
        self._running = Future()
        Thread(target=self._complete, args=(snapshot, ranks, self._running), name="commit", daemon=True).start()

    def poll(self) -> CheckpointRef | None:
        """The checkpoint that has become durable since the last call, if one has.

        Raises StorageFullError, InfrastructureError or FencedError if it failed.
        """
        if self._running is not None and self._running.done():
            self.finish()
        durable, self._durable = self._durable, None
        return durable

    def finish(self) -> None:
        """Wait until nothing is being saved. Raises what `poll` raises."""
        running, self._running = self._running, None
        if running is not None:
            try:
                self._durable = running.result(DURABLE_SECONDS)
            except TimeoutError as error:
                if running.done():  # it is the save's own
                    raise
                message = f"the checkpoint has not become durable within {DURABLE_SECONDS:.0f} s: does"
                raise InfrastructureError(f"{message} {self._volume.root} answer?") from error

    def prune(self) -> None:
        """Delete what retention does not want, superseded commits, and what older attempts left unfinished.

        For the time after `record_resume`; each save does it by itself. Raises FencedError.
        """
        pruning = Pruning(self._volume, self._retention, self._attempt, spared=self._spared)
        check_not_superseded(self._volume, self._attempt)  # after looking: a later attempt has seen no more than we
        try:
            pruning.carry_out()
        finally:
            for path in pruning.deleted:
                log.info("checkpoint_pruned", path=str(path))

    def _staged(self, step: int) -> Path:
        target = self._volume.checkpoint(step, self._attempt)
        return target.with_name(f".{target.name}.part")

    def _complete(self, snapshot: Snapshot, ranks: Ranks, result: "Future[CheckpointRef]") -> None:
        try:
            result.set_result(self._commit(snapshot, ranks))
        except BaseException as error:  # noqa: BLE001  it belongs to the loop, which polls
            result.set_exception(error)

    def _commit(self, snapshot: Snapshot, ranks: Ranks) -> CheckpointRef:
        staged = self._staged(snapshot.step)
        try:
            with self._explained(snapshot.step):
                _copy_without_weights(self._model_dir, staged / MODEL)
                (staged / TRAINER).write_text(snapshot.state)
                by_rank = ranks.finish_save()
                self._write_metrics(staged / METRICS, snapshot.step)
                check_not_superseded(self._volume, self._attempt)
                ref = commit(
                    staged, self._volume.checkpoint(snapshot.step, self._attempt), step=snapshot.step,
                    attempt=self._attempt, reward=snapshot.reward, validation_reward=snapshot.validation_reward,
                    retention=self._retention,
                    written={f"{RANKS}/{name}": entry for files in by_rank for name, entry in files.items()},
                )  # fmt: skip
                self._note(ref)
                log.info("checkpoint_saved", step=snapshot.step, path=str(ref.path), bytes=ref.manifest.bytes)
                self.prune_if_possible()
                return ref
        finally:
            shutil.rmtree(staged, ignore_errors=True)  # gone already, unless something failed

    def _note(self, ref: CheckpointRef) -> None:
        """Its name, beside the attempt's claim. The checkpoint counts, also if the volume is too full for that."""
        try:
            write_json(self._volume.newest_commit(self._attempt), {"name": ref.path.name})
        except OSError as error:
            log.warning("commit_not_noted", path=str(ref.path), reason=error.strerror)

    def prune_if_possible(self) -> None:
        """A save stays a success if the volume does not let others be deleted; the next save tries again."""
        try:
            self.prune()
        except (OSError, InfrastructureError) as error:
            log.warning("not_pruned", reason=str(error))

    def _write_metrics(self, path: Path, step: int) -> None:
        """So that the checkpoint keeps the run's curve wherever it is taken."""
        lines = (json.dumps(line) for line in history(self._volume) if line["step"] <= step)
        path.write_text("".join(f"{line}\n" for line in lines))

    @contextmanager
    def _explained(self, step: int) -> Iterator[None]:
        """Say so if an error follows from a later claim, or from a full volume."""
        try:
            yield
        except (OSError, StorageFullError, InfrastructureError) as error:
            check_not_superseded(self._volume, self._attempt)
            where = f"the checkpoint of step {step} on {self._volume.root}"
            if isinstance(error, StorageFullError) or is_full(error):
                message = f"no space left for {where}: free space, grow the volume or keep fewer checkpoints"
                raise StorageFullError(message) from error
            if isinstance(error, OSError):
                raise storage_error(error, f"{where} cannot be written") from error
            raise


def _copy_without_weights(source: Path, target: Path) -> None:
    """Not by shutil.copytree: it turns the system's errors into text, and a full disk must stay recognisable.

    Raises DataError without a configuration: such a checkpoint could not be loaded.
    """
    if not (source / _CONFIG).exists():
        raise DataError(f"{source / _CONFIG} is gone, and no checkpoint is of use without it: restore that folder")
    for path in files_below(source):
        if path.suffix not in _WEIGHTS:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
