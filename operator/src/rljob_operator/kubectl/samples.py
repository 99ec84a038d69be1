"""`kubectl rljob samples`: episodes of the job's validations, which `rljob samples` prints in the head pod's agent."""

from pathlib import Path
from typing import Annotated

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Namespace, Problem
from rljob_operator.kubectl.jobs import job_named
from rljob_operator.kubectl.logs import in_agent


def samples(
    name: str,
    step: Annotated[
        int | None, typer.Option(help="Step of the validation; the default is the last.", show_default=False)
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only episodes that ended so, such as truncated, or failed: left out.", show_default=False),
    ] = None,
    at_least: Annotated[
        float | None, typer.Option("--min-reward", help="Smallest reward to show.", show_default=False)
    ] = None,
    at_most: Annotated[
        float | None, typer.Option("--max-reward", help="Largest reward to show.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with all episodes to this file instead.", show_default=False)
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Episodes that validations wrote down, turn by turn, and which tokens of each are trained on."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    options = {"step": step, "status": status, "min-reward": at_least, "max-reward": at_most}
    given = [f"--{option}={value}" for option, value in options.items() if value is not None]
    if html is not None:
        given.append("--html=-")
    command = ["rljob", "samples", names.VOLUME_FOLDER, *given]
    arguments = in_agent(kubectl, job, command, f"the samples are on the volume {job.claim}, in the folder samples")
    if html is None:
        kubectl.show(*arguments)
        return
    page = kubectl.output(*arguments)
    try:
        html.write_text(page, encoding="utf-8")
    except OSError as error:
        raise Problem(f"cannot write {html}: {error.strerror}") from error
    typer.echo(f"{html}: the episodes of {job.name}")
