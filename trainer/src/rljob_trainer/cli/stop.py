"""`rljob stop`: run by pods before they end, and by people in another terminal."""

import time
import uuid
from pathlib import Path
from typing import Annotated

import typer

POLL_SECONDS = 0.2


def _duration(text: str) -> str:
    from rljob_api.durations import parse_duration

    try:
        parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def stop(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory.")],
    wait: Annotated[
        str, typer.Option(callback=_duration, help="How long to wait for the driver's end, such as 120s.")
    ] = "0s",
) -> None:
    """Ask a run's driver to save a checkpoint after its step and to stop; the same job can resume from it later."""
    from rljob_api.contract import ExitCode
    from rljob_api.durations import parse_duration
    from rljob_api.printable import printable
    from rljob_trainer.errors import DataError, InfrastructureError
    from rljob_trainer.progress.presence import has_died
    from rljob_trainer.progress.state import SILENT_AFTER, last_attempt, read_object, silence, supervised
    from rljob_trainer.volume import Volume, write_json

    volume = Volume(directory)
    attempt, seconds = last_attempt(volume), parse_duration(wait)
    if not attempt and not volume.job.exists():
        raise DataError(f"{directory} holds no run; give a run's folder, such as runs/NAME")
    held = supervised(volume)

    def has_ended() -> bool:
        # None does not mean that the run has ended: the volume may not answer.
        if held:
            return supervised(volume) is False
        return volume.exit_record(attempt).exists() or has_died(volume, attempt) or is_silent()

    def is_silent() -> bool:  # for example, killed with its host
        quiet = silence(volume)
        return quiet is not None and quiet >= SILENT_AFTER

    lives = held if held is not None else silence(volume) is not None and not has_ended()
    if not lives:
        typer.echo(f"no driver runs in {directory}")
        return
    whose = "the run" if held else f"attempt {attempt}"  # a run may have started another attempt
    write_json(volume.request, {"id": uuid.uuid4().hex, "checkpoint": True, "stop": True})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if has_ended():
            record = read_object(volume.run_exit if held else volume.exit_record(attempt)) or {}
            how = f"with {record.get('code')} {record.get('reason')}" if record else "without an exit record"
            if held and record.get("code") not in (ExitCode.DONE, ExitCode.STOPPED):
                raise InfrastructureError(f"{whose} has ended {how}: {record.get('message', 'it was killed')}")
            typer.echo(printable(f"{whose} has stopped, {how}"))
            return
        time.sleep(POLL_SECONDS)
    if seconds:
        raise InfrastructureError(
            f"{whose} did not stop within {wait}: the stop request is pending; wait longer, and see"
            f" rljob status {directory}"
        )
    typer.echo(f"asked {whose} to stop; rljob status {directory} shows when it has stopped")
