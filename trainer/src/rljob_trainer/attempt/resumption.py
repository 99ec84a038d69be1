"""Which checkpoint an attempt goes on from, and whether it goes on with a run at all."""

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

_WAY_OUT = ", or move that folder away to go back to the one before"
"""Where one is unreadable for good."""

_WITHOUT_MANIFEST = {
    "damaged": "its manifest makes no sense",
    "unfinished": "it has no manifest",
    "gone": "it is gone",
}


class Resumption:
    """What a volume's checkpoints and earlier attempts mean for the next attempt.

    spared: what it found damaged or lost. A person may restore those, so this attempt deletes none.
    """

    def __init__(self, resume: str, volume: Volume, start_id: str) -> None:
        """resume: `checkpoint.resume`. start_id: DriverJob's; without one, `never` begins anew with each attempt."""
        self._resume, self._volume, self._start_id = resume, volume, start_id
        self.spared: set[Path] = set()

    def goes_on(self) -> bool:
        """Whether the attempt goes on with the run that the volume holds. Else it begins one: at step 0, or at a path.

        With `auto` it always does, also where the volume holds none yet.
        `never` and a path say where a run begins; the attempts after the one that began it go on with it, as with
        `auto`. For the time before `record_resume`. Raises NoUsableCheckpoint where that run's end is not known.
        """
        run, resume = decided(self._volume), self._resume
        if resume == "auto":
            goes_on = True
        elif run.newest is None or run.root is None:
            goes_on = False
        elif resume == "never":
            goes_on = run.newest.anew_for == self._start_id
        else:
            goes_on = run.root.foreign == Path(resume).resolve()
        if goes_on:
            self._check_claims()
        return goes_on

    def _check_claims(self) -> None:
        """To go back past whole checkpoints, because nobody knows whose they are, is for a person to decide."""
        if unclaimed := [each for each in survey(self._volume) if each.standing == "unclaimed"]:
            newest = max(unclaimed, key=lambda each: (each.attempt, each.step))
            claims = sorted({str(self._volume.claim(each.attempt)) for each in unclaimed})
            raise NoUsableCheckpoint(
                f"damaged or gone: {', '.join(claims)}, so nobody knows which run those attempts continued, and they "
                f"saved {', '.join(each.path.name for each in unclaimed)}: restore a claim or its copy, set "
                f"checkpoint.resume: {newest.path}, or move those folders away to go on without them",
                field=_FIELD,
            )

    @property
    def anew_for(self) -> str | None:
        """For the attempt's claim: attempts of the same start go on with the run; another setting ends that."""
        return (self._start_id or None) if self._resume == "never" else None

    def find(self) -> CheckpointRef | None:
        """What `checkpoint.resume` asks for: None to begin at step 0. Logs each checkpoint that it skips, and why.

        Raises NoUsableCheckpoint where there are checkpoints and none is usable: starting over would lose them.
        Raises InfrastructureError where the volume does not answer for one that is newer than the newest whole one: it
        may be whole too.
        """
        resume = self._resume
        if not self.goes_on():
            if aside := len(list_checkpoints(self._volume)):
                log.warning("run_begins_anew", checkpoint_resume=resume, checkpoints_set_aside=aside)
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
            shown = sum(run.holds(each.step, each.attempt) for each in found)  # by rljob checkpoints, as this run's
            raise self._none_usable(f"{shown} of {shown} checkpoints are damaged or gone")
        return _named(origin) if origin is not None else None

    def newest(self) -> Found | None:
        """The run's newest checkpoint, where workers live that are ahead of it: it may also be lost."""
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
        """Logs what has no manifest that can be read. What was lost is spared, for whoever restores it.

        One older than a checkpoint that counts may be what a deletion that was cut short has left: nobody misses it.
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
            f"{why} in {self._volume.checkpoints}: restore one from a backup, or begin anew with "
            "checkpoint.resume: never",
            field=_FIELD,
        )


def _named(path: Path) -> CheckpointRef:
    """Raises DataError where it is not a whole checkpoint, InfrastructureError where the volume does not answer."""
    ref = read_checkpoint(path)
    if ref is None:
        raise DataError(f"{path} is no finished checkpoint: see rljob checkpoints", field=_FIELD)
    try:
        verify(ref)
    except DamagedCheckpointError as error:
        raise DataError(f"{path}: {error}; restore it, or name another", field=_FIELD) from error
    return replace(ref, named=True)
