"""`rljob stop`: what pods run before they end, and people from another terminal."""

import time
import uuid
from pathlib import Path
from typing import Annotated

import typer

POLL_SECONDS = 0.2


def stop(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory.")],
    wait: Annotated[str, typer.Option(help="How long to wait for the driver's end, such as 120s.")] = "0s",
) -> None:
    """Ask a run's driver to save a checkpoint after its step and to end; the same job goes on from there later."""
    from rljob_api.durations import parse_duration
    from rljob_trainer.errors import DataError, InfrastructureError
    from rljob_trainer.progress.state import SILENT_AFTER, last_attempt, silence
    from rljob_trainer.volume import Volume, write_json

    volume = Volume(directory)
    attempt, seconds = last_attempt(volume), parse_duration(wait)
    if not attempt and not volume.job.exists():
        raise DataError(f"{directory} holds no run; give a run's folder, such as runs/NAME")
    quiet = silence(volume)
    if volume.exit_record(attempt).exists() or quiet is None or quiet > SILENT_AFTER:
        typer.echo(f"no driver runs in {directory}")
        return
    write_json(volume.request, {"id": uuid.uuid4().hex, "checkpoint": True, "stop": True})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if volume.exit_record(attempt).exists():
            typer.echo(f"attempt {attempt} has stopped")
            return
        time.sleep(POLL_SECONDS)
    if seconds:
        raise InfrastructureError(f"attempt {attempt} did not stop within {wait}")
    typer.echo(f"attempt {attempt} is asked to stop; rljob status {directory} shows when it has")
