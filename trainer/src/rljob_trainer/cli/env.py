"""`rljob env try FILE --model MODEL`: one episode of an environment, turn by turn."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Action(StrEnum):
    """What to do with an environment."""

    TRY = "try"


def env(
    action: Annotated[Action, typer.Argument(metavar="try", help="Play one episode and print it.")],  # noqa: ARG001  there is one
    file: Annotated[Path, typer.Argument(help="A Python file with an environment, or a YAML file with an RLJob.")],
    model: Annotated[str, typer.Option(help="A model's folder, or its name on the hub.")],
    prompt: Annotated[str, typer.Option(help="The user's message; of an RLJob, the row's own prompt is played.")] = "",
    truth: Annotated[str | None, typer.Option(help="The task's ground_truth.", show_default=False)] = None,
    tools: Annotated[list[str] | None, typer.Option("--tool", help="A function of the file that is a tool.")] = None,
    row: Annotated[int, typer.Option(min=0, help="Row of an RLJob's data.train to play.")] = 0,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
) -> None:
    """Play one episode of an environment with a model on this machine, and print it turn by turn."""
    from math import isnan

    from rljob_api.printable import printable
    from rljob_trainer.environments.trial import of_job, of_python, play
    from rljob_trainer.progress.transcript import episode_row, lines

    is_job = file.suffix in {".yaml", ".yml"}
    trial = of_job(file, row) if is_job else of_python(file, tools or (), prompt, truth)
    episode, decode = play(trial, model, temperature)
    counts = "".join(f", {name} {value:g}" for name, value in episode.counts.items())
    reward = "no reward of its own" if isnan(episode.reward) else f"reward {episode.reward:g}"
    typer.echo(f"{trial.task_id}: {episode.status}, {reward}{counts}")
    typer.echo(printable("\n".join(lines(episode_row(episode, decode)))))
