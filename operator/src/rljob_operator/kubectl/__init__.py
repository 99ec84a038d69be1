"""`kubectl rljob`: what kubectl itself does not show of a job: log, checkpoints and episodes; suspend and resume.

    commands: describe, logs, checkpoints, samples, suspend, resume
        │
        ├── jobs     one RLJob and its pods, read for people
        └── calls    kubectl itself, which knows clusters, credentials and proxies; an API client takes seconds to load

kubectl finds the plugin by its name, kubectl-rljob, on the PATH.
"""

import sys

import typer

from rljob_api.printable import printable
from rljob_operator.kubectl.calls import Problem
from rljob_operator.kubectl.describe import describe
from rljob_operator.kubectl.logs import checkpoints, logs
from rljob_operator.kubectl.samples import samples
from rljob_operator.kubectl.suspend import resume, suspend

app = typer.Typer(
    help="RLJobs: what goes on, and why. `kubectl get rljobs` lists them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (describe, logs, checkpoints, samples, suspend, resume):
    app.command()(command)


def main() -> None:
    """The console script."""
    try:
        app(prog_name="kubectl rljob")
    except Problem as problem:
        typer.echo(printable(f"error: {problem}"), err=True)
        sys.exit(1)
