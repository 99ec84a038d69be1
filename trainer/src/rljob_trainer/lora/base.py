"""Which model an adapter belongs to: a fingerprint of its files, beside the adapter's configuration. Light.

An adapter computes something only with its model, of which a checkpoint holds no weights.
"""

import hashlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rljob_api.resolve import ResolvedLora
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.lora.files import CONFIG, peft_config, read_config
from rljob_trainer.lora.files import FIELD as ADAPTER_FIELD
from rljob_trainer.volume import write_json

FILE = "base.json"
FIELD = "spec.model.path"
LORA_FIELD = "spec.model.lora"

_COMPUTING = {"rank": "r", "alpha": "lora_alpha", "targetModules": "target_modules"}
"""What decides what the matrices compute, by its name in the API: its name in peft's files."""

_BLOCK, _DISTANCE, _BLOCKS = 4096, 4 << 20, 1024
"""Bytes of a block that is read; between the beginnings of two, at most; and how many a file has, if it has so many."""


def fingerprint(model: Path) -> str:
    """32 hexadecimal digits of config.json and of blocks of each file of weights.

    4 KiB at least every 4 MiB: a change of all weights, as training makes it, is seen in less time than reading takes.
    Raises DataError if it cannot be read.
    """
    hashed = hashlib.blake2b(digest_size=16)
    weights = sorted(model.glob("*.safetensors")) or sorted(model.glob("*.bin"))
    try:
        for path in (model / "config.json", *weights):
            hashed.update(f"{path.name} {path.stat().st_size}\n".encode())
            for block in _blocks(path):
                hashed.update(block)
    except OSError as error:
        raise DataError(f"{model} cannot be read ({first_line(error)}): give a complete model", field=FIELD) from error
    return hashed.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        for start in range(0, size, max(_BLOCK, min(_DISTANCE, size // _BLOCKS))):
            file.seek(start)
            yield file.read(_BLOCK)


def write_base(adapter: Path, model: Path) -> None:
    """adapter: the folder with adapter_config.json. Raises DataError if the model cannot be read."""
    write_json(adapter / FILE, {"fingerprint": fingerprint(model)}, may_be_lost=True)


def check_base(adapter: Path, model: Path, remedy: str) -> None:
    """Raise DataError if the adapter was trained on another model. adapter: a folder that write_base knows, or not."""
    known = adapter / FILE
    if known.exists() and json.loads(known.read_text())["fingerprint"] != fingerprint(model):
        raise DataError(f"the files in {model} are not those of the model that was adapted: {remedy}", field=FIELD)


def check_continued(adapter: Path, lora: ResolvedLora, model: Path) -> None:
    """Raise DataError if a run's adapter would compute something else with what the job names now.

    adapter: the folder in the run or in its checkpoint. lora: as with_adapter returns it. model: below the adapter.
    """
    check_base(adapter, model, "restore them (model.revision pins one of the hub), or set checkpoint.resume to never")
    if not (adapter / CONFIG).exists():
        return
    before, now = read_config(adapter), peft_config(lora, "")
    for name, key in _COMPUTING.items():
        if before[key] != now[key]:
            began = textwrap.shorten(json.dumps(before[key]), 80)
            raise DataError(
                f"its {name} is no longer the one that the run began with ({began}): restore it, or set"
                " checkpoint.resume to never",
                field=LORA_FIELD if lora.path is None else ADAPTER_FIELD,
            )
