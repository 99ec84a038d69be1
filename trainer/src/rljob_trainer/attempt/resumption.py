"""Whether an attempt continues the volume's run, and from which checkpoint."""

from dataclasses import replace
from pathlib import Path

import structlog

from rljob_trainer.checkpoint.manifest import (
    CheckpointRef,
    DamagedCheckpointError,
    Found,
    decided,
    list_checkpoints,
    newest,
    read_checkpoint,
    survey,
    verify,
)
from rljob_trainer.errors import DataError, InfrastructureError, NoUsableCheckpoint
from rljob_trainer.volume import Volume

log = structlog.get_logger()

_FIELD = "spec.checkpoint.resume"

_WAY_OUT = ", or move that folder away to use the previous checkpoint"

_WITHOUT_MANIFEST = {"damaged": "its manifest is invalid", "unfinished": "it has no manifest", "gone": "it was deleted"}


class Resumption:
    """What a volume's checkpoints and claims mean for the next attempt.

    spared: damaged or lost checkpoints; this attempt does not delete them, because a person may restore them.
    """

    def __init__(self, resume: str, volume: Volume, start_id: str) -> None:
        """resume: `checkpoint.resume`. start_id: DriverJob's; without one, each attempt with `never` begins a run."""
        self._resume, self._volume, self._start_id = resume, volume, start_id
        self.spared: set[Path] = set()

    def continues(self) -> bool:
        """Whether the attempt continues the volume's run; if not, it begins one, at step 0 or from a path.

        With `auto` it always does. `never` and a path begin a run once; later attempts of that run continue it.
        Call before `record_resume`. Raises NoUsableCheckpoint if the run's newest attempts have no valid claim.
        """
        run, resume = decided(self._volume), self._resume
        if resume == "auto":
            continues = True
        elif run.newest is None or run.root is None:
            continues = False
        elif resume == "never":
            continues = run.newest.fresh_for == self._start_id
        else:
            continues = run.root.foreign == Path(resume).resolve()
        if continues:
            self._check_claims()
        return continues

    def _check_claims(self) -> None:
        """Only a person may decide to ignore intact checkpoints whose attempts have no valid claim."""
        if unclaimed := [each for each in survey(self._volume) if each.standing == "unclaimed"]:
            newest = max(unclaimed, key=lambda each: (each.attempt, each.step))
            claims = sorted({str(self._volume.claim(each.attempt)) for each in unclaimed})
            raise NoUsableCheckpoint(
                f"{', '.join(claims)} are damaged or deleted, so the run of "
                f"{', '.join(each.path.name for each in unclaimed)} is unknown; restore a claim or its copy, set "
                f"checkpoint.resume: {newest.path}, or move those folders away to continue without them",
                field=_FIELD,
            )

    @property
    def fresh_for(self) -> str | None:
        """The attempt claims this; with `never`, later attempts with the same start ID continue the run."""
        return (self._start_id or None) if self._resume == "never" else None

    def find(self) -> CheckpointRef | None:
        """The checkpoint to resume from, None to begin at step 0. Logs each checkpoint that it skips.

        Raises NoUsableCheckpoint if checkpoints exist and none is usable, because starting over would lose them, and
        InfrastructureError if the newest candidate cannot be read now.
        """
        resume = self._resume
        if not self.continues():
            if aside := len(list_checkpoints(self._volume)):
                log.warning("new_run_started", checkpoint_resume=resume, checkpoints_set_aside=aside)
            return None if resume == "never" else _named(Path(resume).resolve())
        run = decided(self._volume)
        origin = run.root.foreign if run.root else None
        found = self._survey()
        candidates = [each for each in found if each.lost or each.standing == "counts"]
        for each in reversed(candidates):
            if each.standing == "unreadable":
                raise InfrastructureError(each.problem + _WAY_OUT)
            if each.ref is not None and self._is_whole(each.ref):
                return each.ref
        if candidates:
            shown = sum(run.holds(each.step, each.attempt) for each in found)  # what `rljob checkpoints` lists
            raise self._none_usable(f"{shown} of {shown} checkpoints are damaged or deleted")
        return _named(origin) if origin is not None else None

    def newest(self) -> Found | None:
        """The run's newest checkpoint, lost or not, for an attempt that takes over living workers."""
        return newest(self._survey())

    def _is_whole(self, ref: CheckpointRef) -> bool:
        try:
            verify(ref)
        except DamagedCheckpointError as error:
            log.warning("checkpoint_skipped", path=str(ref.path), reason=str(error))
            self.spared.add(ref.path)
            return False
        except InfrastructureError as error:
            raise InfrastructureError(error.message + _WAY_OUT) from error
        return True

    def _survey(self) -> list[Found]:
        """Survey the volume, log folders without a readable manifest, and spare lost ones.

        An unfinished folder older than the newest checkpoint may be the rest of a deletion and is not logged.
        """
        found = survey(self._volume)
        newest_whole = max((each.step for each in found if each.standing == "counts"), default=-1)
        for each in found:
            if each.ref is None and (each.standing != "unfinished" or each.step > newest_whole):
                reason = each.problem or _WITHOUT_MANIFEST[each.standing]
                log.warning("checkpoint_skipped", path=str(each.path), reason=reason)
        self.spared |= {each.path for each in found if each.lost}
        return found

    def _none_usable(self, why: str) -> NoUsableCheckpoint:
        return NoUsableCheckpoint(
            f"{why} in {self._volume.checkpoints}; restore one from a backup, or start over with "
            "checkpoint.resume: never",
            field=_FIELD,
        )


def _named(path: Path) -> CheckpointRef:
    """Raises DataError if it is not an intact checkpoint, InfrastructureError if the volume does not answer."""
    ref = read_checkpoint(path)
    if ref is None:
        raise DataError(f"{path} is not a finished checkpoint; choose one that rljob checkpoints lists", field=_FIELD)
    try:
        verify(ref)
    except DamagedCheckpointError as error:
        raise DataError(f"{path}: {error}; restore it, or choose another", field=_FIELD) from error
    return replace(ref, named=True)
