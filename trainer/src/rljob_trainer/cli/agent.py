"""`rljob agent`"""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from rljob_trainer.agent.app import create_app
from rljob_trainer.volume import Volume

TOKEN_VARIABLE = "RLJOB_AGENT_TOKEN"
OPEN_METRICS_VARIABLE = "RLJOB_AGENT_OPEN_METRICS"


def agent(
    directory: Annotated[Path, typer.Option("--dir", help="The run's directory; it may be empty.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65_535)] = 8900,
    token_file: Annotated[Path | None, typer.Option(help=f"File with the token; else {TOKEN_VARIABLE}.")] = None,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", envvar=OPEN_METRICS_VARIABLE, help="Serve /metrics without the token.")
    ] = False,
) -> None:
    """Serve a run's progress, checkpoints and metrics over HTTP, behind a bearer token."""
    import uvicorn

    app = create_app(Volume(directory.resolve()), _token(token_file), open_metrics=open_metrics)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    with _listen(host, port) as listener:
        typer.echo(f"agent listens on http://{host}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise _refused(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from error


def _token(file: Path | None) -> str:
    try:
        token = file.read_text().strip() if file else os.environ.get(TOKEN_VARIABLE, "").strip()
    except OSError as error:
        raise _refused(
            f"cannot read --token-file {file}: {error.strerror}; correct the path or its permissions"
        ) from error
    if not token:
        raise _refused(f"the agent needs a token: give --token-file, or set {TOKEN_VARIABLE}")
    return token


def _refused(message: str) -> Exception:
    from rljob_trainer.errors import JobError  # it imports pydantic's models, which would delay the start

    return JobError(message)
