"""`rljob samples RUN`: episodes of a run's validations, turn by turn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def samples(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the validation; the default is the last.", show_default=False)
    ] = None,
    status: Annotated[
        str | None, typer.Option(help="Only episodes that ended so, such as truncated, or failed: left out.")
    ] = None,
    at_least: Annotated[float | None, typer.Option("--min-reward", help="Smallest reward to show.")] = None,
    at_most: Annotated[float | None, typer.Option("--max-reward", help="Largest reward to show.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with all episodes to this file instead; - prints it.", show_default=False),
    ] = None,
) -> None:
    """Print the episodes that a run's validations wrote down, and which tokens of each are trained on."""
    from rljob_api.printable import printable
    from rljob_trainer.errors import DataError
    from rljob_trainer.progress.answers import sample_rows
    from rljob_trainer.progress.state import run_name
    from rljob_trainer.progress.transcript import lines
    from rljob_trainer.volume import Volume

    rows = [row for row in sample_rows(Volume(run)) if "episode" in row]
    if not rows:
        raise DataError(f"no validation has written samples in {run}; set data.validation, or give a run's folder")
    if html is not None:
        from rljob_trainer.progress.samples_page import samples_page

        page = samples_page(run_name(run), rows)
        if str(html) == "-":
            typer.echo(page, nl=False)
        else:
            html.write_text(page)
            typer.echo(f"{html}: {len(rows)} episodes")
        return
    shown_step = max(row["step"] for row in rows) if step is None else step
    for row in rows:
        episode, reward = row["episode"], row["reward"]
        if row["step"] != shown_step or not _ended(episode, status) or not _between(reward, at_least, at_most):
            continue
        scored = "no reward" if reward is None else f"reward {reward:g}"
        counts = "".join(f", {name} {value:g}" for name, value in episode["counts"].items())
        typer.echo(f"step {row['step']}, {row['task']}: {scored}, {episode['status']}{counts}")
        typer.echo(printable("\n".join(lines(episode))))


def _ended(episode: Mapping[str, Any], status: str | None) -> bool:
    """Whether it ended so; failed: it was left out, whatever its own status says of the cause."""
    return status in (None, episode["status"]) or (status == "failed" and not episode["trajectories"])


def _between(reward: float | None, at_least: float | None, at_most: float | None) -> bool:
    """An episode that was left out has no reward, and is within no bounds."""
    if reward is None:
        return at_least is None and at_most is None
    return (at_least is None or reward >= at_least) and (at_most is None or reward <= at_most)
