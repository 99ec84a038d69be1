"""An attempt's claim on the volume, and the record of how it ended."""

import secrets
import shutil
from datetime import UTC, datetime

import structlog

from rljob_api.contract import LAYOUT_VERSION, ExitCode, ExitRecord
from rljob_trainer.checkpoint.lineage import Claim, is_known, read_claim, root_of
from rljob_trainer.checkpoint.manifest import METRICS, CheckpointRef, claims_answering
from rljob_trainer.errors import FencedError, RLJobError, is_full, is_outage, on_volume, storage_error
from rljob_trainer.progress.state import newest_claim, read_object
from rljob_trainer.volume import Volume, read_json, sync_folder, write_json

log = structlog.get_logger()

_MESSAGE = 32_000
"""Longest message in characters; ExitRecord limits it."""

_USED_VOLUME = (
    ". A new job needs a volume or subPath without another run's files; to continue from one of its checkpoints, set"
    " checkpoint.resume to its path"
)


def claim(volume: Volume, attempt: int, owner: str | None = None) -> str:
    """Claim the attempt's number. Returns the nonce. owner: uid of the RLJob.

    Raises FencedError if this number or a later one is taken; StorageFullError or InfrastructureError if the claim
    cannot be written.
    """
    nonce = secrets.token_hex(16)
    try:
        volume.attempts.mkdir(parents=True, exist_ok=True)
        if volume.claim_copy(attempt).exists():
            raise FileExistsError
        volume.claim(attempt).touch(exist_ok=False)
        _write_claim(volume, attempt, nonce, owner)
        sync_folder(volume.root)  # else a power cut could lose the folder, and the number would be taken twice
    except FileExistsError:
        raise FencedError(
            f"attempt {attempt} is taken by {_holder(volume, attempt)}{_USED_VOLUME if attempt == 1 else ''}"
        ) from None
    except OSError as error:
        raise storage_error(error, f"attempt {attempt} cannot be claimed on {volume.root}") from error
    check_not_superseded(volume, attempt)
    return nonce


def check_not_superseded(volume: Volume, attempt: int) -> None:
    """Raise FencedError if a later attempt has claimed the run.

    Raises InfrastructureError if the claims cannot be read, because this driver may then be superseded.
    """
    with on_volume(f"the claims in {volume.attempts} cannot be listed"):
        newest = newest_claim(volume)
    if newest > attempt:
        raise FencedError(f"attempt {newest} ({_holder(volume, newest)}) has taken over from attempt {attempt}")


def record_resume(
    volume: Volume, attempt: int, nonce: str, ref: CheckpointRef | None, *, parent: int | None = None,
    step: int | None = None, lost: str | None = None, fresh_for: str | None = None,
) -> None:  # fmt: skip
    """Record what the attempt continues.

    ref: the checkpoint resumed from; None without one. parent, step: the attempt and step continued, if they differ
    from the checkpoint's (living workers were taken over). lost: name of a newer checkpoint that was committed and is
    unusable. fresh_for: Resumption.fresh_for.
    Raises FencedError if a later attempt has claimed the run, or another driver holds this claim.
    """
    check_not_superseded(volume, attempt)
    claimed = read_json(volume.claim(attempt)) or {}
    if claimed.get("nonce") != nonce:
        raise FencedError(f"attempt {attempt} now belongs to {_holder(volume, attempt)}")
    source, begun = None, 0
    if ref is not None:
        source, begun = str(ref.path) if ref.named else ref.path.name, ref.manifest.step
        if parent is None and not ref.named:
            parent = ref.manifest.attempt
        if parent is None or not is_known(volume, parent):
            _keep_curve(volume, attempt, ref)
            if parent is not None:
                log.warning("earlier_attempts_unknown", lost=str(volume.claim(root_of(volume, parent))))
    begun = begun if step is None else step
    _write_claim(
        volume, attempt, nonce, claimed.get("owner"), parent=parent, resumedFrom=lost or source, resumedStep=begun,
        freshFor=fresh_for,
    )  # fmt: skip


def root_claim(volume: Volume, attempt: int) -> Claim | None:
    """The claim of the attempt that began the run of `attempt`; None if it is lost.

    Raises InfrastructureError if the volume does not answer.
    """
    with claims_answering(volume):
        return read_claim(volume, root_of(volume, attempt))


def _write_claim(
    volume: Volume, attempt: int, nonce: str, owner: str | None, **decision: int | str | None
) -> None:  # fmt: skip
    claimed = {
        "attempt": attempt,
        "nonce": nonce,
        "layoutVersion": LAYOUT_VERSION,
        "startTime": datetime.now(UTC).isoformat(timespec="seconds"),
        "owner": owner,
        "parent": None,
        "resumedFrom": None,
        "resumedStep": None,
        "freshFor": None,
    }
    write_json(volume.claim(attempt), claimed | decision)
    if decision:
        write_json(volume.claim_copy(attempt), claimed | decision)


def _keep_curve(volume: Volume, attempt: int, ref: CheckpointRef) -> None:
    """Copy the checkpoint's metrics, because the attempts that wrote them belong to another run or are unknown."""
    source, target = ref.path / METRICS, volume.metrics_before(attempt)
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _holder(volume: Volume, attempt: int) -> str:
    start = (read_object(volume.claim(attempt)) or {}).get("startTime")
    return f"the driver that started at {start}" if start else "a driver that has just started"


def record_exit(volume: Volume, attempt: int, error: BaseException | None) -> ExitRecord:
    """Write how the attempt ended, for its supervisor."""
    record = exit_record(error)
    try:
        write_json(volume.exit_record(attempt), record.model_dump(mode="json", by_alias=True))
    except OSError as failure:  # the supervisor then reads the process's exit code
        log.error("exit_not_recorded", error=str(failure))
    return record


def exit_record(error: BaseException | None) -> ExitRecord:
    if error is None:
        return ExitRecord(code=ExitCode.DONE, reason="Done", message="trained to the last step")
    if isinstance(error, RLJobError):
        reason = type(error).__name__.removesuffix("Error")
        return ExitRecord(code=error.exit_code, reason=reason, message=error.message[:_MESSAGE], field=error.field)
    if is_full(error):
        message = f"the volume is full ({error}); free space or grow it"
        return ExitRecord(code=ExitCode.STORAGE_FULL, reason="StorageFull", message=message[:_MESSAGE])
    if is_outage(error):
        message = f"a disk or a file system failed: {error}; check the volume"
        return ExitRecord(code=ExitCode.INFRASTRUCTURE, reason="Infrastructure", message=message[:_MESSAGE])
    message = f"this is a bug: {type(error).__name__}: {error}"
    return ExitRecord(code=ExitCode.BUG, reason="Bug", message=message[:_MESSAGE])


def read_exit(volume: Volume, attempt: int) -> ExitRecord | None:
    """How the attempt ended; None if it runs or was killed."""
    found = read_json(volume.exit_record(attempt))
    return ExitRecord.model_validate(found) if found else None
