"""Rows of data files in verl's format, converted to Python only when they are read.

    data_source   str                                   passed to the reward
    prompt        list of {role, content}
    reward_model  {style, ground_truth}, optional       passed to the reward, as None if it is missing
    extra_info    mapping, optional                     passed to the reward
    response      str                                   a supervised target
    messages      list of {role, content}               a supervised conversation, instead of prompt and response

Other columns are not read.
"""

import bisect
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_trainer.data.tasks import SCHEME, check_synthetic, read_synthetic
from rljob_trainer.errors import DataError
from rljob_trainer.paths import locate, no_file

COLUMNS = ("data_source", "prompt", "reward_model", "extra_info", "response", "messages")
BATCH = 1024

Row = Mapping[str, Any]


class BadRow(ValueError):
    """What is wrong with a row; the caller adds file and row number."""


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text that UTF-8 can encode: JSON may contain unpaired surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


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


class ParquetTable:
    """Columns stay in Arrow's memory. Opening reads the metadata; reading a row loads the rest."""

    def __init__(self, path: Path) -> None:
        end = pq.read_metadata(path)
        self.columns: Sequence[str] = end.schema.to_arrow_schema().names
        self._path, self._rows = path, int(end.num_rows)

    def __len__(self) -> int:
        return self._rows

    def slice(self, start: int, stop: int) -> list[Row]:
        rows: list[Row] = self._table.slice(start, stop - start).to_pylist()
        return rows

    def where(self, index: int) -> str:
        return f"row {index}"

    @cached_property
    def _table(self) -> Any:
        return pq.read_table(self._path, columns=[name for name in COLUMNS if name in self.columns])


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

    def _parse(self, number: int, line: bytes) -> Row:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
            raise BadRow(f"line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise BadRow(f'line {number} is {type(row).__name__}, not an object like {{"prompt": ...}}')
        return row


class GeneratedTable:
    """Rows of a generated task."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.columns: Sequence[str] = list(rows[0])

    def __len__(self) -> int:
        return len(self._rows)

    def slice(self, start: int, stop: int) -> list[Row]:
        return list(self._rows[start:stop])

    def where(self, index: int) -> str:
        return f"row {index}"


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of a list of files. field: its field in the spec ("spec.data.train[0]")."""

    name: str
    field: str
    table: Table

    def error(self, message: str) -> DataError:
        return DataError(f"{self.name}: {message}", field=self.field)

    def read(self, start: int, stop: int) -> list[Row]:
        with _blaming(self.name, self.field):
            return self.table.slice(start, stop)


class Rows:
    """The rows of several sources, concatenated."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._ends = list(itertools.accumulate(len(source.table) for source in sources))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        source, local = self._locate(index)
        return source.read(local, local + 1)[0]

    def batches(self) -> Iterator[list[Row]]:
        """All rows in order, at most BATCH at a time."""
        for source in self.sources:
            for start in range(0, len(source.table), BATCH):
                yield source.read(start, start + BATCH)

    def require(self, *columns: str) -> None:
        """Check that each source has all `columns`.

        Raises:
            DataError: names the source, the missing column and the existing ones.
        """
        for source in self.sources:
            for column in columns:
                if column not in source.table.columns:
                    has = ", ".join(source.table.columns)
                    raise source.error(f"no column {column!r}; it has {has}: add it, or correct the path")

    def require_target(self) -> None:
        """Check that each source has columns for supervised training.

        Raises:
            DataError: names the source and its columns.
        """
        for source in self.sources:
            columns = source.table.columns
            if not {"prompt", "response"} <= set(columns) and "messages" not in columns:
                raise source.error(
                    "supervised training needs the columns prompt and response, or messages;"
                    f" it has {', '.join(columns)}: add them, or correct the path"
                )

    def error(self, index: int, message: str) -> DataError:
        """An error about row `index`."""
        source, local = self._locate(index)
        return source.error(f"{source.table.where(local)}: {message}")

    def _locate(self, index: int) -> tuple[Source, int]:
        number = bisect.bisect_right(self._ends, index)
        return self.sources[number], index - (self._ends[number - 1] if number else 0)


def open_rows(files: Sequence[str], base_dir: Path, field: str) -> Rows:
    """Open `files`, entries of the spec's list `field`; relative paths start at `base_dir`.

    Raises:
        DataError: a file is missing, empty or unreadable, or a generated task is unknown.
    """
    return Rows([_open(name, base_dir, f"{field}[{i}]") for i, name in enumerate(files)])


def peek(files: Sequence[str], base_dir: Path, field: str) -> Rows:
    """As open_rows, but quick: reads one row of a .jsonl file and generates no tasks.

    Raises:
        DataError: as open_rows, for the errors that this finds.
    """
    sources = []
    for i, name in enumerate(files):
        if name.startswith(SCHEME):
            check_synthetic(name, f"{field}[{i}]")
        else:
            sources.append(_open(name, base_dir, f"{field}[{i}]", most=1))
    return Rows(sources)


def _open(name: str, base_dir: Path, field: str, most: int | None = None) -> Source:
    if name.startswith(SCHEME):
        return Source(name, field, GeneratedTable(read_synthetic(name, field)))
    if "://" in name:
        raise DataError(f"{name} is a URL; download it, and give the path of the file", field=field)
    path = locate(name, base_dir)
    if path.suffix not in {".parquet", ".jsonl"}:
        raise DataError(f"{path} has the unknown extension {path.suffix!r}; use .parquet or .jsonl", field=field)
    with _blaming(str(path), field):
        table: Table = ParquetTable(path) if path.suffix == ".parquet" else JsonlTable(path, most)
    if not len(table):
        raise DataError(f"{path} has no rows; remove it from the list, or fill it", field=field)
    return Source(str(path), field, table)


@contextmanager
def _blaming(name: str, field: str) -> Iterator[None]:
    """Turn errors of reading into DataError, which names the file, its field and the remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(no_file(Path(name)), field=field) from error
    except BadRow as error:
        raise DataError(f"{name}: {error}; correct the file", field=field) from error
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "correct the path, the file or its permissions"
        raise DataError(f"cannot read {name}: {reason}; {remedy}", field=field) from error
