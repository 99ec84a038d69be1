"""A checkpoint is data: reading a forged one runs nothing."""

import pickle
from enum import Enum
from pathlib import Path, PosixPath, PurePosixPath
from pickle import _Pickler as PythonPickler
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from rljob_trainer.checkpoint.shard_reader import METADATA
from rljob_trainer.checkpoint.shards import load_shards
from rljob_trainer.errors import JobError


class _Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "step-1-a1" / "ranks"
    more = {"half": torch.ones(2).bfloat16(), "groups": [{"lr": 0.1}]}
    dcp.save({"weights": torch.arange(3.0), "more": more}, checkpoint_id=folder)
    return folder


def _edit(folder: Path, name: str, value: Any) -> None:
    metadata = pickle.loads((folder / METADATA).read_bytes())
    setattr(metadata, name, value)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def test_tensors_and_numbers_are_read(saved: Path) -> None:
    weights, half = torch.zeros(3), torch.zeros(2).bfloat16()
    state: dict[str, Any] = {"weights": weights, "more": {"half": half, "groups": [{"lr": 0.0}]}}
    load_shards(state, saved, alone=True)
    assert (weights.tolist(), half.tolist(), state["more"]["groups"]) == ([0, 1, 2], [1, 1], [{"lr": 0.1}])


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_an_index_of_any_python_is_read(saved: Path, module: str) -> None:
    """Python 3.13 pickles a path, which names the checkpoint, as pathlib._local's."""
    written = pickle.dumps(pickle.loads((saved / METADATA).read_bytes()), 2)
    own = type(saved).__module__
    assert f"c{own}\nPosixPath\n".encode() in written
    (saved / METADATA).write_bytes(written.replace(f"c{own}\nPosixPath\n".encode(), f"c{module}\nPosixPath\n".encode()))
    state = {"weights": torch.zeros(3)}
    load_shards(state, saved, alone=True)
    assert state["weights"].tolist() == [0, 1, 2]


class _Newer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_enumerations_of_a_newer_python_are_read(saved: Path) -> None:
    with (saved / METADATA).open("r+b") as file:
        metadata = pickle.load(file)
        file.seek(0)
        _Newer(file).dump(metadata)
    assert b"getattr" in (saved / METADATA).read_bytes()
    state = {"weights": torch.zeros(3)}
    load_shards(state, saved, alone=True)
    assert state["weights"].tolist() == [0, 1, 2]


def test_an_index_that_would_run_code_is_refused(saved: Path, tmp_path: Path) -> None:
    _edit(saved, "planner_data", _Touch(tmp_path / "ran"))
    _refused(saved)
    assert not (tmp_path / "ran").exists()


def test_bytes_in_the_place_of_a_tensor_are_not_unpickled(saved: Path, tmp_path: Path) -> None:
    metadata = pickle.loads((saved / METADATA).read_bytes())
    (index, info), *_ = [each for each in metadata.storage_data.items() if each[0].fqn == "weights"]
    torch.save(_Touch(tmp_path / "ran"), saved / info.relative_path)
    info.offset, info.length = 0, (saved / info.relative_path).stat().st_size
    metadata.storage_data = {type(index)("weights"): info}
    metadata.state_dict_metadata = {"weights": BytesStorageMetadata()}
    (saved / METADATA).write_bytes(pickle.dumps(metadata))
    _refused(saved)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("path", ["../elsewhere", "/etc/hostname", 5])
def test_files_outside_the_checkpoint_are_not_read(saved: Path, path: Any) -> None:
    metadata = pickle.loads((saved / METADATA).read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = path
    _edit(saved, "storage_data", metadata.storage_data)
    _refused(saved)


class _Setter(PythonPickler):
    """Pickles a _Set as an opcode that sets attributes of a class."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Set):
            super().save(PosixPath)  # type: ignore[misc]  # typeshed lacks it
            super().save((None, {"is_absolute": torch.Size, "parts": ()}))  # type: ignore[misc]
            self.write(pickle.BUILD)  # type: ignore[attr-defined]
        else:
            super().save(obj, save_persistent_id)  # type: ignore[misc]


class _Set: ...


def test_an_index_does_not_change_classes(saved: Path) -> None:
    """Else it could let paths leave the folder, and for as long as the process lives."""
    parts = PurePosixPath.parts
    metadata = pickle.loads((saved / METADATA).read_bytes())
    metadata.planner_data = _Set()
    with (saved / METADATA).open("wb") as file:
        _Setter(file).dump(metadata)
    _refused(saved)
    assert PurePosixPath.parts is parts


@pytest.mark.parametrize("kept", [0, 1, 40, -10])
def test_a_damaged_index_is_a_short_error(saved: Path, kept: int) -> None:
    (saved / METADATA).write_bytes((saved / METADATA).read_bytes()[:kept])
    _refused(saved)


def _refused(folder: Path) -> None:
    with pytest.raises(JobError) as caught:
        load_shards({"weights": torch.zeros(3)}, folder, alone=True)
    assert caught.value.field == "spec.checkpoint.resume"
    assert str(folder) in str(caught.value)
