"""`rljob run FILE`: train on this machine."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def _folder(path: str) -> Path:
    """Reject an empty --dir: usually an unset shell variable."""
    if not path:
        raise typer.BadParameter("is empty; give a folder, or omit --dir")
    return Path(path)


def run(
    file: Annotated[Path, typer.Argument(help="The RLJob, as for kubectl apply.")],
    directory: Annotated[
        Path | None,
        typer.Option("--dir", parser=_folder, help="The run's folder; the default is runs/NAME.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Trainer processes; the default is the GPUs present, else 1.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, as in training.steps=2.")
    ] = None,
    reward_models: Annotated[
        list[str] | None,
        typer.Option(
            "--reward-model", metavar="NAME=URL", help="URL of a reward model that already runs; others are started."
        ),
    ] = None,
    agent_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the agent on 127.0.0.1; 0 takes a free one.")
    ] = 0,
) -> None:
    """Train on this machine, from the newest checkpoint of the run's folder if there is one.

    Ctrl-C saves a checkpoint after the current step and stops; the same command then continues (with
    checkpoint.resume: auto, the default). A second Ctrl-C stops at once.
    """
    from rljob_trainer.local.lock import only_run_in
    from rljob_trainer.local.prepare import adopt, nothing_left, prepare, writable
    from rljob_trainer.local.supervisor import supervise

    local = prepare(file, directory, ranks, overrides or [], reward_models or [])
    with only_run_in(local.volume):
        with writable(local.volume):
            uid = adopt(local)
        if done := nothing_left(local):
            typer.echo(done)
            return
        sys.exit(supervise(local, uid, agent_port))
