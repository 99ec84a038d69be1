"""`rljob driver`: one attempt. `rljob run` and the operator start it; it never restarts itself."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def driver(
    job: Annotated[Path, typer.Option(help="The resolved job, as JSON.")],
    directory: Annotated[Path, typer.Option("--dir", help="The run's volume.")],
    attempt: Annotated[int, typer.Option(min=1, help="Number of this attempt; every start takes a new one.")],
    ray_address: Annotated[
        str, typer.Option(help="Address of the Ray cluster, or file:PATH of a file that will hold it.")
    ] = "auto",
) -> None:
    """Run one attempt of a job and leave an exit record. The exit code tells the supervisor how to recover."""
    from rljob_trainer.attempt.interrupt import hold_signals

    hold_signals()
    from rljob_trainer.attempt.driver import drive
    from rljob_trainer.progress import logging
    from rljob_trainer.volume import Volume

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.configure(json=True, file=Volume(directory).log(attempt))
    record = drive(job, directory.resolve(), attempt, ray_address)
    sys.exit(record.code)
