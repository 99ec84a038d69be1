"""`kubectl rljob`: what a researcher asks about jobs, and suspend and resume.

    commands: listing, describe, logs, checkpoints, events, suspend
        │
        ├── jobs     one RLJob, read for people
        ├── show     tables and times
        └── calls    kubectl itself, which knows clusters, credentials and proxies; an API client takes seconds to load

kubectl finds the plugin by its name, kubectl-rljob, on the PATH.
"""

import sys

import typer

from rljob_operator.kubectl.calls import Problem
from rljob_operator.kubectl.checkpoints import checkpoints
from rljob_operator.kubectl.describe import describe
from rljob_operator.kubectl.events import events
from rljob_operator.kubectl.listing import list_jobs
from rljob_operator.kubectl.logs import logs
from rljob_operator.kubectl.suspend import resume, suspend

app = typer.Typer(
    help="RLJobs at a glance: how far, how well, what went wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list")(list_jobs)
for command in (describe, logs, events, checkpoints, suspend, resume):
    app.command()(command)


def main() -> None:
    """The console script."""
    try:
        app(prog_name="kubectl rljob")
    except Problem as problem:
        typer.echo(f"error: {problem}", err=True)
        sys.exit(1)
