"""A generated task as parquet files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rljob_trainer.data.tasks import generate, make_request, make_task
from rljob_trainer.errors import DataError, is_full


def write_task(
    name: str,
    folder: Path,
    arguments: Mapping[str, str],
    *,
    rows: int = 2000,
    validation_rows: int = 200,
    seed: int = 0,
    overwrite: bool = False,
) -> list[Path]:
    """Write train.parquet and validation.parquet of a task into `folder`.

    arguments: the task's own, in camelCase.

    Raises:
        DataError: unknown task or argument, a value out of bounds, or existing files.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        task = make_task(name, arguments)
        requests = [
            make_request(rows=rows, seed=seed, split="train"),
            make_request(rows=validation_rows, seed=seed, split="validation"),
        ]
        paths = [folder / f"{request.split}.parquet" for request in requests]
        with _writing_into(folder):
            _check_free(paths, overwrite)
        tables = [pa.Table.from_pylist(generate(name, task, request)) for request in requests]
    except ValueError as error:
        raise DataError(str(error)) from error
    with _writing_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, table in zip(paths, tables, strict=True):
            pq.write_table(table, path)
    return paths


def _check_free(paths: Sequence[Path], overwrite: bool) -> None:
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a directory; choose another folder")
    existing = [str(path) for path in paths if path.exists()]
    if existing and not overwrite:
        raise DataError(f"files exist: {', '.join(existing)}; choose another folder, or replace them with --overwrite")


@contextmanager
def _writing_into(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise
        raise DataError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
