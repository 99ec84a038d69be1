"""The commands of `rljob`. A command's module is imported only when it runs, so that `rljob --help` is fast."""

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from rljob_trainer.cli.failures import report

COMMANDS: Final = {
    "run": "Train on this machine.",
    "validate": "Check RLJob files and list every error.",
    "convert": "Write an RLJob from a configuration of verl or TRL.",
    "show": "Print a job as it will run, every default filled in.",
    "plan": "Print the GPU memory that each phase of a job takes.",
    "preflight": "Measure the links between this machine's GPUs.",
    "data": "Write a small example data set.",
    "model": "Fetch a small pretrained model.",
    "status": "Summarise a run's directory.",
    "logs": "Print the logs of a run's drivers.",
    "plot": "Draw the curves of one or several runs.",
    "checkpoints": "List a run's checkpoints.",
    "samples": "Print episodes of a run's validations, turn by turn.",
    "env": "Play one episode of an environment and print it.",
    "stop": "Ask a run to save a checkpoint and stop.",
    "eval": "Score the answers of a checkpoint or a model with the rewards of a job.",
    "export": "Write a checkpoint as a model that transformers loads.",
    "agent": "Serve a run's progress over HTTP.",
    "driver": "Run one attempt; `rljob run` and the operator call this.",
}
"""Each is a function of the same name in `rljob_trainer.cli.<command>`, or in the module that ELSEWHERE names."""

ELSEWHERE: Final = {"driver": "rljob_trainer.attempt.driver"}

app = typer.Typer(
    name="rljob",
    help="Reinforcement-learning post-training of language models, from one RLJob file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        typer.echo(f"rljob {metadata.version('rljob-trainer')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Version.")
    ] = False,
) -> None: ...


class _LazyCommand(TyperCommand):
    """Represents a command in the list, and loads it when it runs."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return _load(str(self.name)).make_context(info_name, args, parent=parent, **extra)


def _load(name: str) -> Any:
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    module = import_module(ELSEWHERE.get(name, f"rljob_trainer.cli.{name}"))
    single.command(name, epilog=getattr(module, "EPILOG", None))(getattr(module, name))
    return typer.main.get_command(single)


def execute() -> None:
    """Exit with the command's code, or with that of the error that it raised."""
    group = typer.main.get_group(app)
    for name, summary in COMMANDS.items():
        group.add_command(_LazyCommand(name, help=summary, hidden=name == "driver"))
    try:
        group(prog_name="rljob")
    except Exception as error:  # noqa: BLE001 - nothing above can report it
        sys.exit(report(error))
