"""An attempt's claim on the volume, and the record of how it ended."""

import secrets
from datetime import UTC, datetime

import structlog

from rljob_api.contract import LAYOUT_VERSION, ExitCode, ExitRecord
from rljob_trainer.checkpoint.manifest import CheckpointRef
from rljob_trainer.errors import FencedError, RLJobError, is_full
from rljob_trainer.volume import Volume, read_json, write_json

log = structlog.get_logger()

_MESSAGE = 32_000
"""Characters of a message, at most: an exit record has room for little more."""


def claim(volume: Volume, attempt: int) -> str:
    """Take the attempt's number. Returns its nonce. Raises FencedError where somebody has it."""
    volume.attempts.mkdir(parents=True, exist_ok=True)
    nonce = secrets.token_hex(16)
    try:
        volume.claim(attempt).touch(exist_ok=False)
    except FileExistsError:
        raise FencedError(f"attempt {attempt} is taken: another driver runs or ran it") from None
    _write_claim(volume, attempt, nonce, None)
    return nonce


def record_resume(volume: Volume, attempt: int, nonce: str, ref: CheckpointRef | None) -> None:
    """Say what the attempt continues from: readers follow this line back through the attempts."""
    _write_claim(volume, attempt, nonce, ref)


def _write_claim(volume: Volume, attempt: int, nonce: str, ref: CheckpointRef | None) -> None:
    claimed = {
        "attempt": attempt,
        "nonce": nonce,
        "layoutVersion": LAYOUT_VERSION,
        "startTime": datetime.now(UTC).isoformat(timespec="seconds"),
        "resumedFrom": ref.path.name if ref else None,
        "resumedStep": ref.manifest.step if ref else None,
    }
    write_json(volume.claim(attempt), claimed)


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
        reason = type(error).__name__.removesuffix("Error")
        return ExitRecord(code=error.exit_code, reason=reason, message=error.message[:_MESSAGE], field=error.field)
    if is_full(error):
        message = f"no space left: {error}"
        return ExitRecord(code=ExitCode.STORAGE_FULL, reason="StorageFull", message=message[:_MESSAGE])
    message = f"this is a bug: {type(error).__name__}: {error}"
    return ExitRecord(code=ExitCode.BUG, reason="Bug", message=message[:_MESSAGE])


def read_exit(volume: Volume, attempt: int) -> ExitRecord | None:
    """None where the attempt left no record: it was killed, or it runs."""
    found = read_json(volume.exit_record(attempt))
    return ExitRecord.model_validate(found) if found else None
