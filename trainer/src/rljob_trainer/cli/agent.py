"""`rljob agent`"""

import os
from pathlib import Path
from typing import Annotated

import typer

from rljob_trainer.agent.app import create_app
from rljob_trainer.volume import Volume

TOKEN_VARIABLE = "RLJOB_AGENT_TOKEN"


def agent(
    directory: Annotated[Path, typer.Option("--dir", help="The run's directory; it may be empty still.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65_535)] = 8900,
    token_file: Annotated[Path | None, typer.Option(help=f"File with the token; else {TOKEN_VARIABLE}.")] = None,
) -> None:
    """Serve a run's progress, checkpoints and metrics over HTTP, behind a bearer token."""
    import uvicorn

    app = create_app(Volume(directory.resolve()), _token(token_file))
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)


def _token(file: Path | None) -> str:
    try:
        token = file.read_text().strip() if file else os.environ.get(TOKEN_VARIABLE, "").strip()
    except OSError as error:
        raise _refused(f"--token-file {file} cannot be read: {error.strerror}") from error
    if not token:
        raise _refused(f"the agent needs a token: give --token-file, or set {TOKEN_VARIABLE}")
    return token


def _refused(message: str) -> Exception:
    from rljob_trainer.errors import JobError  # it brings pydantic's models, and the agent has to start at once

    return JobError(message)
