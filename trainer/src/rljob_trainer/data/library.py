"""Folders and data sets of the hub, through the `datasets` library.

data/gsm8k?split=test                      a folder of files, or one that save_to_disk wrote
openai/gsm8k?config=main&split=train       a name on the hub, with load_dataset's arguments
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from rljob_trainer.data.columns import COLUMNS, Row, without_filler
from rljob_trainer.data.tables import has_value
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.paths import locate

FILES = (".parquet", ".jsonl", ".json")
"""Extensions of files that need no library."""
ARGUMENTS = ("config", "split", "revision")
_SOURCE = re.compile(r"(?P<name>[^?*\[]+?)(\?(?P<query>\w+=.*))?")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Named:
    """folder: of the data set; None for a name on the hub. arguments: of ARGUMENTS."""

    name: str
    folder: Path | None
    arguments: Mapping[str, str]


def named(source: str, base_dir: Path, field: str) -> Named | None:
    """The folder or the data set that `source` names; None if it names files.

    Raises DataError for an unknown argument.
    """
    found = _SOURCE.fullmatch(source)
    if found is None or (not found["query"] and locate(source, base_dir).is_file()):
        return None
    folder = locate(found["name"], base_dir)
    if not folder.is_dir() and (folder.suffix in FILES or not _HUB_NAME.fullmatch(found["name"])):
        return None
    for error in argument_errors(source, field):
        raise error
    return Named(found["name"], folder if folder.is_dir() else None, dict(parse_qsl(found["query"] or "")))


def argument_errors(source: str, field: str) -> Iterator[DataError]:
    """An error for each unknown argument of `source`."""
    found = _SOURCE.fullmatch(source)
    for name, _ in parse_qsl(found["query"] or "") if found else ():
        if name not in ARGUMENTS:
            yield DataError(f"{source}: unknown argument {name!r}; use {', '.join(ARGUMENTS)}", field=field)


class LibraryTable:
    """One split of a data set."""

    def __init__(self, split: Any) -> None:
        self._whole = split.with_format("arrow")
        self.columns: Sequence[str] = split.column_names
        self._read = self._whole.select_columns([name for name in COLUMNS if name in self.columns])

    def __len__(self) -> int:
        return len(self._whole)

    def slice(self, start: int, stop: int) -> list[Row]:
        rows = self._read[start : min(stop, len(self))].to_pylist()
        return [without_filler(row) for row in rows]

    def where(self, index: int) -> str:
        return f"row {index}"

    def holds(self, column: str) -> bool:
        batches = self._whole.select_columns([column]).iter(8)
        return has_value(batch.column(0) for batch in batches)


def open_named(source: Named, field: str) -> LibraryTable:
    """The split that the source names. Without one: train, or of data.validation validation or test, or the only one.

    Raises DataError if there is no such data set or split.
    """
    try:
        found = _load(source)
    except _errors() as error:
        what, remedy = "cannot be read", "correct the folder, the config or the split"
        if source.folder is None:
            what = "is no path here, and the hub's data set cannot be loaded"
            remedy = "correct the path, the name, its config or its split, or log in to the hub with HF_TOKEN"
        raise DataError(f"{source.name} {what}: {first_line(error)}; {remedy}", field=field) from error
    return LibraryTable(_split(found, source, field))


def _load(source: Named) -> Any:
    from datasets import disable_progress_bars, load_dataset, load_from_disk

    disable_progress_bars()
    given = dict(source.arguments)
    if source.folder and any((source.folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        whole = load_from_disk(str(source.folder))
        return whole[given["split"]] if "split" in given else whole
    return load_dataset(
        str(source.folder or source.name), given.get("config"), split=given.get("split"), revision=given.get("revision")
    )


def _split(found: Any, source: Named, field: str) -> Any:
    if not isinstance(found, dict):
        return found
    wanted = ("validation", "test") if field.startswith("spec.data.validation") else ("train",)
    for name in (*wanted, *(found if len(found) == 1 else ())):
        if name in found:
            return found[name]
    raise DataError(f"{source.name} has the splits {', '.join(found)}; name one, as ?split=NAME", field=field)


def _errors() -> tuple[type[Exception], ...]:
    from datasets.exceptions import DatasetsError
    from httpx import HTTPError

    return OSError, ValueError, KeyError, DatasetsError, HTTPError
