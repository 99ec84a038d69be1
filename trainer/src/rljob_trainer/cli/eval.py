"""`rljob eval`"""

from pathlib import Path
from typing import Annotated, Literal

import typer


def eval(
    source: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run's folder, a checkpoint in it, a model's folder, or a hub name."),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with one RLJob.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint of the run; the default is the newest.")] = None,
    base: Annotated[
        Path | None, typer.Option(help="The model that a LoRA run adapts, if it has moved since the run.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples a prompt, in place of rollout.validation.samplesPerPrompt.")
    ] = None,
    k: Annotated[list[int] | None, typer.Option(help="k of pass@k; may be repeated. The default is 1 and all.")] = None,
    passing: Annotated[float, typer.Option(help="Reward from which a sample passes.")] = 1.0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the samples, as JSON lines.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, as in rollout.engine=hf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Answer a job's validation rows with a model, score them with its rewards, and print mean@n and pass@k.

    Sampling is that of rollout.validation, with the seeds of a run's validation. Without data.validation the rows are
    those of data.train.
    """
    import json
    import sys
    from contextlib import redirect_stdout

    from transformers.utils.logging import disable_progress_bar

    from rljob_api import resolve
    from rljob_api.printable import printable
    from rljob_api.validation import load_rljob
    from rljob_trainer.evaluation.evaluate import evaluate
    from rljob_trainer.evaluation.passing import table
    from rljob_trainer.evaluation.weights import Source

    more = [f"rollout.validation.samplesPerPrompt={samples}"] if samples else []
    spec = resolve(load_rljob(file, [*(overrides or ()), *more]).spec)
    if output is not None:
        _write(output, "a")  # an error now, and not after the evaluation
    disable_progress_bar()
    base_dir = file.resolve().parent
    with redirect_stdout(sys.stderr):  # what engines and data print is not the result
        found = evaluate(
            spec, base_dir, Source(source, step, base), k, passing,
            lambda line: typer.echo(printable(line), err=True),
        )  # fmt: skip
    if found.dropped:
        typer.echo(f"{found.dropped} prompts are left out, because their rewards failed", err=True)
    numbers = {name: {"prompts": count} | values for name, (count, values) in found.numbers.items()}
    typer.echo(json.dumps(numbers, indent=2) if as_json else printable(table(found.numbers)))
    if output is not None:
        _write(output, "w", "".join(json.dumps(each, default=str) + "\n" for each in found.samples))


def _write(output: Path, mode: Literal["w", "a"], text: str = "") -> None:
    """Raises DataError."""
    from rljob_trainer.errors import DataError

    try:
        with output.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror}; choose another --output") from error
