"""An attempt's claim on the volume, and the record of how it ended."""

import secrets
import shutil
from datetime import UTC, datetime

import structlog

from rljob_api.contract import LAYOUT_VERSION, ExitCode, ExitRecord
from rljob_trainer.checkpoint.lineage import is_known, read_claim, root_of
from rljob_trainer.checkpoint.manifest import METRICS, CheckpointRef, claims_answering
from rljob_trainer.errors import FencedError, InfrastructureError, RLJobError, StorageFullError, is_full, is_outage
from rljob_trainer.progress.state import newest_claim, read_object
from rljob_trainer.volume import Volume, read_json, sync_folder, write_json

log = structlog.get_logger()

_MESSAGE = 32_000
"""Characters of a message, at most: an exit record has room for little more."""

_WAY = (
    ". A new job needs a volume, or a subPath of one, without another run's files; to go on from one of its"
    " checkpoints, give checkpoint.resume its path"
)


def claim(volume: Volume, attempt: int, owner: str | None = None) -> str:
    """Take the attempt's number. Returns its nonce. owner: uid of the RLJob that the attempt is of.

    Raises FencedError where somebody has it, or a later one; StorageFullError or InfrastructureError where the volume
    cannot be written.
    """
    nonce = secrets.token_hex(16)
    try:
        volume.attempts.mkdir(parents=True, exist_ok=True)
        if volume.claim_copy(attempt).exists():
            raise FileExistsError
        volume.claim(attempt).touch(exist_ok=False)
        _write_claim(volume, attempt, nonce, owner)
        sync_folder(volume.root)  # else a power cut could take the folder, and hand out the number again
    except FileExistsError:
        raise FencedError(
            f"attempt {attempt} is taken: {_holder(volume, attempt)} runs or ran it{_WAY if attempt == 1 else ''}"
        ) from None
    except OSError as error:
        if is_full(error):
            raise StorageFullError(f"no space left on {volume.root} to claim attempt {attempt}: free space") from error
        reason = error.strerror or error
        raise InfrastructureError(f"attempt {attempt} cannot be claimed on {volume.root}: {reason}") from error
    check_not_superseded(volume, attempt)
    return nonce


def check_not_superseded(volume: Volume, attempt: int) -> None:
    """Raises FencedError naming the attempt that has the volume now, where it is a later one.

    Raises InfrastructureError where the volume does not say: a driver that was cut off from it may be superseded.
    """
    try:
        newest = newest_claim(volume)
    except OSError as error:
        reason = error.strerror or error
        raise InfrastructureError(f"{volume.root} does not say which attempt has the run: {reason}") from error
    if newest > attempt:
        raise FencedError(f"attempt {newest} has taken over from attempt {attempt}: {_holder(volume, newest)} has it")


def record_resume(
    volume: Volume, attempt: int, nonce: str, ref: CheckpointRef | None, *, parent: int | None = None,
    step: int | None = None, lost: str | None = None, anew_for: str | None = None,
) -> None:  # fmt: skip
    """Decide what the attempt continues: readers follow these decisions back through the attempts.

    ref: the checkpoint resumed from; None for none. parent, step: the attempt and step continued, where they are not
    those of the checkpoint (living workers were taken over). lost: name of a newer checkpoint that was there, so that
    it stays known. anew_for: Resumption.anew_for.
    Raises FencedError where a later attempt has claimed the volume, or the claim is not ours.
    """
    check_not_superseded(volume, attempt)
    claimed = read_json(volume.claim(attempt)) or {}
    if claimed.get("nonce") != nonce:
        raise FencedError(f"attempt {attempt} is not ours any more: {_holder(volume, attempt)} has it")
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
        anewFor=anew_for,
    )  # fmt: skip


def root_nonce(volume: Volume, attempt: int) -> str:
    """The nonce of the attempt that began the run which `attempt` belongs to; "" where its claim is lost.

    Raises InfrastructureError where the volume does not answer.
    """
    with claims_answering(volume):
        claimed = read_claim(volume, root_of(volume, attempt))
    return claimed.nonce if claimed is not None else ""


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
        "anewFor": None,
    }
    write_json(volume.claim(attempt), claimed | decision)
    if decision:
        write_json(volume.claim_copy(attempt), claimed | decision)


def _keep_curve(volume: Volume, attempt: int, ref: CheckpointRef) -> None:
    """Another run may be gone tomorrow, and so are this run's metrics where nobody knows any more which attempts it
    consists of: those up to the checkpoint are in there.
    """
    source, target = ref.path / METRICS, volume.metrics_before(attempt)
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _holder(volume: Volume, attempt: int) -> str:
    start = (read_object(volume.claim(attempt)) or {}).get("startTime")
    return f"the driver that started at {start}" if start else "a driver that has just started"


def record_exit(volume: Volume, attempt: int, error: BaseException | None) -> ExitRecord:
    """Write how the attempt ended; the supervisor decides by it what comes next."""
    record = exit_record(error)
    try:
        write_json(volume.exit_record(attempt), record.model_dump(mode="json", by_alias=True))
    except OSError as failure:  # the supervisor then goes by the process's exit code, which says the same
        log.error("exit_not_recorded", error=str(failure))
    return record


def exit_record(error: BaseException | None) -> ExitRecord:
    if error is None:
        return ExitRecord(code=ExitCode.DONE, reason="Done", message="trained to the last step")
    if isinstance(error, RLJobError):
        reason = reason_of(type(error))
        return ExitRecord(code=error.exit_code, reason=reason, message=error.message[:_MESSAGE], field=error.field)
    if is_full(error):
        message = f"no space left: {error}"
        return ExitRecord(code=ExitCode.STORAGE_FULL, reason="StorageFull", message=message[:_MESSAGE])
    if is_outage(error):
        message = f"a disk or a file system failed: {error}; look after the volume"
        return ExitRecord(code=ExitCode.INFRASTRUCTURE, reason="Infrastructure", message=message[:_MESSAGE])
    message = f"this is a bug: {type(error).__name__}: {error}"
    return ExitRecord(code=ExitCode.BUG, reason="Bug", message=message[:_MESSAGE])


def reason_of(error: type[RLJobError]) -> str:
    """One CamelCase word."""
    return error.__name__.removesuffix("Error")


def read_exit(volume: Volume, attempt: int) -> ExitRecord | None:
    """None where the attempt left no record: it was killed, or it runs."""
    found = read_json(volume.exit_record(attempt))
    return ExitRecord.model_validate(found) if found else None
