"""Read the files that torch.distributed.checkpoint wrote, as data alone.

torch keeps an index of the tensors as a pickle, and a pickle can run any code. A user who can write to the volume of a
job must not decide what the job's processes run, so the index may name only the types below.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from pickle import _Unpickler as _PythonUnpickler
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

METADATA = ".metadata"
"""torch writes it last; without it no shard can be read."""

_RECORDS = (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    _StorageInfo,
)
"""What the index consists of. It may set attributes of these objects alone: those of a class outlive the index."""

_DTYPES = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_TYPES = {
    **{(each.__module__, each.__name__): each for each in (*_RECORDS, _MEM_FORMAT_ENCODING)},
    **{("torch", name): getattr(torch, name) for name in ("Size", *_DTYPES)},
    ("torch.serialization", "_get_layout"): _get_layout,
}

_PATHS = {("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}
"""What names the checkpoint's own folder; the second since Python 3.13, and unknown to older ones."""


class ShardReader(FileSystemReader):
    """Reads one checkpoint's shards. Raises pickle.UnpicklingError if the index is damaged or names another type."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._metadata = _Unpickler((directory / METADATA).read_bytes()).metadata()

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        self._metadata.storage_meta = self._metadata.storage_meta or StorageMeta()
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


class DataPlanner(DefaultLoadPlanner):
    """Loads tensors, numbers, texts and lists of them. torch's own planner unpickles all that is no tensor."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        place = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, place, torch.load(value, weights_only=True))


class _Unpickler(_PythonUnpickler):
    """The one in Python: C's sets attributes of anything on its stack, also of a class, for the whole process."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def load_build(self) -> None:
        if type(self.stack[-2]) not in _RECORDS:  # type: ignore[attr-defined]  # typeshed lacks it
            raise pickle.UnpicklingError("it changes something that is no part of a checkpoint")
        super().load_build()  # type: ignore[misc]  # the same

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_PythonUnpickler.dispatch,
        pickle.BUILD[0]: load_build,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PATHS:
            return PurePosixPath
        if (module, name) == ("builtins", "getattr"):
            return _member
        if (module, name) not in _TYPES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a checkpoint")
        return _TYPES[module, name]

    def metadata(self) -> Metadata:
        try:
            metadata = self.load()
            sound = isinstance(metadata, Metadata) and all(map(_is_inside, (metadata.storage_data or {}).values()))
        except pickle.UnpicklingError:
            raise
        except Exception as error:  # what a damaged pickle raises depends on where it is damaged
            raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
        if not sound:
            raise pickle.UnpicklingError("it is no index of files in this folder")
        return metadata


def _member(kind: Any, name: str) -> Any:
    """Since Python 3.12 a member of an enumeration is pickled as getattr(kind, name)."""
    if kind is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError("it asks for an attribute, which is no part of a checkpoint")
    return _MEM_FORMAT_ENCODING[name]


def _is_inside(info: Any) -> bool:
    path = PurePosixPath(info.relative_path)
    return not path.is_absolute() and ".." not in path.parts
