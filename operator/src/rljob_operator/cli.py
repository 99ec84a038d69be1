"""The command `rljob-operator`."""

import asyncio
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from rljob_operator.settings import Settings

_DEFAULTS = Settings()
_VARIABLES = {"auto_envvar_prefix": "RLJOB_OPERATOR"}  # set for the command: otherwise they would contain its name

app = typer.Typer(name="rljob-operator", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _main() -> None:
    """The Kubernetes operator of RLJobs."""


@app.command(context_settings=_VARIABLES)
def run(  # noqa: PLR0913, PLR0917 - one for each option
    namespace: Annotated[
        list[str] | None, typer.Option(help="Manage this namespace; may be repeated. Without it: all namespaces.")
    ] = None,
    operator_namespace: Annotated[
        str, typer.Option(help="Namespace of the operator's Lease and key.")
    ] = _DEFAULTS.operator_namespace,
    protect_own_namespace: Annotated[
        bool, typer.Option(help="Refuse RLJobs in that namespace: their pods could mount the key.")
    ] = False,
    trainer_image: Annotated[str | None, typer.Option(help="Image of jobs without one.")] = None,
    ray_version: Annotated[str, typer.Option(help="Ray's version in it.")] = _DEFAULTS.ray_version,
    coscheduling_scheduler: Annotated[
        str, typer.Option(help="schedulerName of pods with gang.scheduler coscheduling.")
    ] = _DEFAULTS.coscheduling_scheduler,
    head_url: Annotated[
        str, typer.Option(help="URL of head pods: a template with {service}, {namespace} and {port}.")
    ] = _DEFAULTS.head_url,
    monitoring_namespace: Annotated[
        str | None, typer.Option(help="Namespace of Prometheus, which may scrape jobs' agents without their tokens.")
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(help="Seconds between two polls of a running job.")
    ] = _DEFAULTS.poll_seconds,
    listen: Annotated[str, typer.Option(help="Address of /healthz, /readyz and /metrics.")] = _DEFAULTS.listen,
    log_format: Annotated[Literal["json", "console"], typer.Option(help="Format of the log, on stderr.")] = "json",
) -> None:
    """Reconcile RLJobs until SIGTERM. Each option may be a variable too, such as RLJOB_OPERATOR_TRAINER_IMAGE."""
    from rljob_operator.head.address import HeadAddress
    from rljob_operator.kube.errors import KubeError
    from rljob_operator.main import run as run_operator
    from rljob_operator.runtime import logging
    from rljob_operator.runtime.health import CannotListen

    logging.configure(json=log_format == "json")
    try:
        settings = Settings(
            namespaces=tuple(namespace or ()), operator_namespace=operator_namespace,
            protect_own_namespace=protect_own_namespace, trainer_image=trainer_image, ray_version=ray_version,
            coscheduling_scheduler=coscheduling_scheduler, head_url=head_url,
            monitoring_namespace=monitoring_namespace, poll_seconds=poll_seconds, listen=listen,
        )  # fmt: skip
        HeadAddress(head_url)
    except ValidationError as error:
        raise _refused(error) from None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--head-url") from None
    try:
        asyncio.run(run_operator(settings))
    except KubeError as error:
        raise SystemExit(f"error: {error}") from None
    except CannotListen as error:
        raise SystemExit(f"error: --listen: {error}") from None


def _refused(error: ValidationError) -> typer.BadParameter:
    first = error.errors()[0]
    field = str(first["loc"][0])
    example = Settings.model_fields[field].default or "team-a"
    option = "namespace" if field == "namespaces" else field.replace("_", "-")
    words = f"{first['input']!r} is refused: {first['msg']}. An example is {example}"
    return typer.BadParameter(words, param_hint=f"--{option}")


def main() -> None:
    """The console script."""
    app(prog_name="rljob-operator")
