"""When a checkpoint is taken, and which one an attempt continues from."""

import json
import shutil
from pathlib import Path

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.checkpoint.manifest import (
    ACTOR,
    MODEL,
    TRAINER,
    CheckpointRef,
    commit,
    list_checkpoints,
    prune,
    unreadable_checkpoints,
    verify,
)
from rljob_trainer.controller.workers import UPDATE_SECONDS, ActorGroup
from rljob_trainer.errors import DataError, InfrastructureError, NoUsableCheckpoint, StorageFullError, is_full
from rljob_trainer.volume import Volume

log = structlog.get_logger()


class Checkpoints:
    """Saves and finds the checkpoints of one attempt."""

    def __init__(self, spec: ResolvedSpec, volume: Volume, attempt: int, model_dir: Path) -> None:
        self._settings = spec.checkpoint
        self._volume, self._attempt, self._model_dir = volume, attempt, model_dir

    def due(self, step: int, total: int) -> bool:
        return step == total or (self._settings.every_steps > 0 and step % self._settings.every_steps == 0)

    def save(self, step: int, state: dict[str, object], reward: float | None, actors: ActorGroup) -> CheckpointRef:
        """Write one checkpoint and prune old ones. Raises StorageFullError naming the volume."""
        target = self._volume.checkpoint(step, self._attempt)
        staged = target.with_name(f".{target.name}.part")
        shutil.rmtree(staged, ignore_errors=True)
        try:
            (staged / ACTOR).mkdir(parents=True)
            shutil.copytree(self._model_dir, staged / MODEL, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
            (staged / TRAINER).write_text(json.dumps(state))
            actors.call("save", UPDATE_SECONDS, str(staged / ACTOR))
            ref = commit(staged, target, step=step, attempt=self._attempt, reward=reward)
        except (OSError, StorageFullError) as error:
            if isinstance(error, OSError) and not is_full(error):
                raise
            raise StorageFullError(
                f"no space left for the checkpoint of step {step} on {self._volume.root}: "
                "free space, or lower spec.checkpoint.keepLast"
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)  # gone already, unless something failed
        prune(self._volume, self._settings.keep_last)
        log.info("checkpoint_saved", step=step, path=str(target), bytes=ref.manifest.bytes)
        return ref

    def find(self) -> CheckpointRef | None:
        """What `checkpoint.resume` asks for: None to begin at step 0.

        Raises NoUsableCheckpoint where there are checkpoints and each is damaged: starting over would lose them.
        """
        if self._settings.resume == "never":
            return None
        if self._settings.resume != "auto":
            return self._named(Path(self._settings.resume))
        refs = list_checkpoints(self._volume)
        for ref in reversed(refs):
            try:
                verify(ref)
                return ref
            except InfrastructureError as error:
                log.warning("checkpoint_skipped", path=str(ref.path), reason=str(error))
        lost = len(refs) + len(unreadable_checkpoints(self._volume))
        if lost:
            raise NoUsableCheckpoint(
                f"all {lost} checkpoints in {self._volume.checkpoints} are damaged: restore one from a backup, "
                "or begin anew with checkpoint.resume: never",
                field="spec.checkpoint.resume",
            )
        return None

    def _named(self, path: Path) -> CheckpointRef:
        refs = [ref for ref in list_checkpoints(Volume(path.parent.parent)) if ref.path.name == path.name]
        if not refs:
            raise DataError(f"{path} is no finished checkpoint: see rljob checkpoints", field="spec.checkpoint.resume")
        verify(refs[0])
        return refs[0]
