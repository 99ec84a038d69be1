"""One source's rows, converted to Python only when they are read."""

import itertools
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from rljob_trainer.data.columns import COLUMNS, BadRow, Row, without_filler


class Table(Protocol):
    """The rows of one source."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> list[Row]:
        """Rows start..stop - 1.

        Raises:
            BadRow: a row cannot be read.
        """

    def where(self, index: int) -> str:
        """The place of row `index` in the source, for messages."""

    def holds(self, column: str) -> bool:
        """Whether a row has a value in `column`, one of `columns`; JSON looks at its first row alone."""


class ParquetTable:
    """Columns stay in Arrow's memory. Opening reads the metadata; reading a row loads the rest."""

    def __init__(self, path: Path) -> None:
        end = pq.read_metadata(path)
        self.columns: Sequence[str] = end.schema.to_arrow_schema().names
        self._path, self._rows = path, int(end.num_rows)

    def __len__(self) -> int:
        return self._rows

    def slice(self, start: int, stop: int) -> list[Row]:
        return [without_filler(row) for row in self._table.slice(start, stop - start).to_pylist()]

    def where(self, index: int) -> str:
        return f"row {index}"

    def holds(self, column: str) -> bool:
        with pq.ParquetFile(self._path) as file:
            return has_value(batch.column(0) for batch in file.iter_batches(8, columns=[column]))

    @cached_property
    def _table(self) -> Any:
        return pq.read_table(self._path, columns=[name for name in COLUMNS if name in self.columns])


def has_value(columns: Iterable[Any]) -> bool:
    """Whether one of these Arrow columns has a value that is neither null nor empty."""
    return any(column.null_count < len(column) and any(column.to_pylist()) for column in columns)


class JsonlTable:
    """One JSON object a line; blank lines are skipped. Lines are parsed when they are read.

    most: how many rows to read; None for all.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        with path.open("rb") as file:
            pieces = itertools.chain.from_iterable(line.splitlines() for line in file)
            lines = ((number, line) for number, line in enumerate(pieces, 1) if line.strip())
            self._lines = list(itertools.islice(lines, most))
        self.columns: Sequence[str] = list(self.slice(0, 1)[0]) if self._lines else []

    def __len__(self) -> int:
        return len(self._lines)

    def slice(self, start: int, stop: int) -> list[Row]:
        return [self._parse(number, line) for number, line in self._lines[start:stop]]

    def where(self, index: int) -> str:
        return f"line {self._lines[index][0]}"

    def holds(self, column: str) -> bool:
        return bool(self.slice(0, 1)[0].get(column))

    def _parse(self, number: int, line: bytes) -> Row:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
            raise BadRow(f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadRow(f'line {number} is {type(row).__name__}, not an object like {{"prompt": ...}}')
        return row


class ListTable:
    """Rows of a generated task, or of a .json file that holds a list."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.columns: Sequence[str] = list(rows[0]) if rows else []

    def __len__(self) -> int:
        return len(self._rows)

    def slice(self, start: int, stop: int) -> list[Row]:
        return list(self._rows[start:stop])

    def where(self, index: int) -> str:
        return f"row {index}"

    def holds(self, column: str) -> bool:
        return bool(self._rows[0].get(column))


def open_json(path: Path, most: int | None = None) -> Table:
    """A .json file: a list of objects, or one object a line.

    Raises BadRow if it is neither.
    """
    with path.open("rb") as file:
        begin = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not begin.startswith(b"["):
        return JsonlTable(path, most)
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadRow(f"it is not JSON: {error}") from error
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise BadRow(f'row {index} is {type(row).__name__}, not an object like {{"prompt": ...}}')
    return ListTable(rows)
