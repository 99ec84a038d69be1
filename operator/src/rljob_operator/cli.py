"""The command `rljob-operator`."""

import asyncio
import math
import re
from typing import Annotated, Literal

import typer

from rljob_operator.settings import Settings

_VARIABLES = {"auto_envvar_prefix": "RLJOB_OPERATOR"}  # set for the command: otherwise they would contain its name
_LAST_PORT = 65535
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)

app = typer.Typer(name="rljob-operator", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _seconds(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(f"{seconds:g} is not a positive number of seconds")
    return seconds


def _namespace(name: str | None) -> str | None:
    if name is not None and not _NAMESPACE.fullmatch(name):
        raise typer.BadParameter(f"{name!r} is not a namespace's name: lowercase letters, digits and '-', at most 63")
    return name


def _namespaces(names: list[str] | None) -> list[str]:
    return [name for name in names or () if _namespace(name) is not None]


def _version(version: str) -> str:
    if not _VERSION.fullmatch(version):
        raise typer.BadParameter(f"{version!r} is not a version such as {Settings().ray_version}")
    return version


def _host_and_port(listen: str) -> str:
    _, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= _LAST_PORT):
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT or :PORT, such as 127.0.0.1:8080")
    return listen


def _head_template(template: str) -> str:
    from rljob_operator.head.address import HeadAddress

    try:
        HeadAddress(template)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return template


@app.callback()
def _main() -> None:
    """The Kubernetes operator of RLJobs."""


@app.command(context_settings=_VARIABLES)
def run(  # noqa: PLR0913, PLR0917 - one for each option
    namespace: Annotated[
        list[str] | None,
        typer.Option(callback=_namespaces, help="Manage this namespace; may be repeated. Without it: all namespaces."),
    ] = None,
    operator_namespace: Annotated[
        str, typer.Option(callback=_namespace, help="Namespace of the operator's Lease and key.")
    ] = "rljob-system",
    trainer_image: Annotated[str | None, typer.Option(help="Image of jobs without one.")] = None,
    ray_version: Annotated[str, typer.Option(callback=_version, help="Ray's version in it.")] = Settings().ray_version,
    head_url: Annotated[
        str,
        typer.Option(
            callback=_head_template,
            help="URL of head pods: a template with {service}, {namespace} and {port}.",
        ),
    ] = Settings().head_url,
    monitoring_namespace: Annotated[
        str | None,
        typer.Option(
            callback=_namespace, help="Namespace of Prometheus, which may scrape jobs' agents without their tokens."
        ),
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(callback=_seconds, help="Seconds between two polls of a running job.")
    ] = 5.0,
    listen: Annotated[
        str, typer.Option(callback=_host_and_port, help="Address of /healthz, /readyz and /metrics.")
    ] = "127.0.0.1:8080",
    log_format: Annotated[Literal["json", "console"], typer.Option(help="Format of the log, on stderr.")] = "json",
) -> None:
    """Reconcile RLJobs until SIGTERM. Each option may be a variable too, such as RLJOB_OPERATOR_TRAINER_IMAGE."""
    from rljob_operator.kube.errors import KubeError
    from rljob_operator.main import Options
    from rljob_operator.main import run as run_operator
    from rljob_operator.runtime import logging
    from rljob_operator.runtime.health import CannotListen

    logging.configure(json=log_format == "json")
    settings = Settings(
        operator_namespace=operator_namespace, trainer_image=trainer_image, ray_version=ray_version,
        head_url=head_url, poll_seconds=poll_seconds, monitoring_namespace=monitoring_namespace,
    )  # fmt: skip
    try:
        asyncio.run(run_operator(Options(settings, tuple(namespace or ()), listen)))
    except KubeError as error:
        raise SystemExit(f"error: {error}") from None
    except CannotListen as error:
        raise SystemExit(f"error: --listen: {error}") from None


def main() -> None:
    """The console script."""
    app(prog_name="rljob-operator")
