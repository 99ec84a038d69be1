"""Rows of all sources of a job: files, folders, data sets of the hub and generated tasks, one after the other."""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rljob_trainer.data.columns import MEDIA, BadRow, Row, is_text
from rljob_trainer.data.generated import generator
from rljob_trainer.data.library import FILES, named, open_named
from rljob_trainer.data.tables import JsonlTable, ListTable, ParquetTable, Table, open_json
from rljob_trainer.errors import DataError
from rljob_trainer.paths import locate, no_file

__all__ = ["BATCH", "BadRow", "Row", "Rows", "is_text", "open_rows", "peek"]

BATCH = 1024


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

    def holds(self, column: str) -> bool:
        with _blaming(self.name, self.field):
            return self.table.holds(column)


def media_error(column: str) -> str:
    return f"column {column!r} holds what a model of text cannot see; remove the column to train on the text alone"


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

    def refuse_media(self) -> None:
        """Raise DataError if a source holds images, videos or audio: models are trained on text alone."""
        for source in self.sources:
            for column in MEDIA:
                if column in source.table.columns and source.holds(column):
                    raise source.error(media_error(column))

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
        DataError: a source is missing, empty or unreadable, or a generated task is unknown.
    """
    return Rows([source for i, name in enumerate(files) for source in _open(name, base_dir, f"{field}[{i}]")])


def peek(files: Sequence[str], base_dir: Path, field: str) -> Rows:
    """As open_rows, but quick: reads one row of a .jsonl file, generates no tasks and asks no hub.

    Raises:
        DataError: as open_rows, for the errors that this finds.
    """
    sources: list[Source] = []
    for i, name in enumerate(files):
        place = f"{field}[{i}]"
        if (generated := generator(name)) is not None:
            generated.check(name, place)
        elif (found := named(name, base_dir, place)) is None or found.folder:
            sources += _open(name, base_dir, place, most=1)
    return Rows(sources)


def _open(name: str, base_dir: Path, field: str, most: int | None = None) -> Iterator[Source]:
    if (generated := generator(name)) is not None:
        yield Source(name, field, ListTable(generated.read(name, field)))
    elif "://" in name:
        raise DataError(f"{name} is a URL; download it, and give the path of the file", field=field)
    elif (found := named(name, base_dir, field)) is not None:
        yield _filled(Source(name, field, open_named(found, field)))
    else:
        for path in _matching(locate(name, base_dir), field):
            yield _filled(_file(path, field, most))


def _matching(path: Path, field: str) -> Sequence[Path]:
    """The file itself, or the files that a pattern such as data/*.parquet matches, by name."""
    if path.exists() or not set(str(path)) & set("*?["):
        return [path]
    found = sorted(each for each in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if each.is_file())
    if not found:
        raise DataError(f"no file matches {path}; correct the pattern", field=field)
    return found


def _file(path: Path, field: str, most: int | None) -> Source:
    if path.suffix not in FILES:
        raise DataError(
            f"{path} has the unknown extension {path.suffix!r}; use {', '.join(FILES)}, a folder, or a data set's name"
            " such as org/name",
            field=field,
        )
    with _blaming(str(path), field):
        table: Table = (
            ParquetTable(path) if path.suffix == ".parquet"
            else JsonlTable(path, most) if path.suffix == ".jsonl"
            else open_json(path, most)
        )  # fmt: skip
    return Source(str(path), field, table)


def _filled(source: Source) -> Source:
    if not len(source.table):
        raise DataError(f"{source.name} has no rows; remove it from the list, or fill it", field=source.field)
    return source


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
