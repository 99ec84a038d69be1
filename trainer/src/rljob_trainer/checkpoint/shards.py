"""Write and read a checkpoint's tensors with torch.distributed.checkpoint; map its failures to job errors."""

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from rljob_trainer.checkpoint.shard_reader import METADATA, DataPlanner, ShardReader
from rljob_trainer.errors import InfrastructureError, JobError, RLJobError, StorageFullError, storage_error

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # intended for one rank

_FILE_BYTES = 4 << 30
_MAX_FILES = 8
"""One thread per file writes and hashes a rank's files: one thread is slower than the volume."""

_NO_SPACE = "no space left for a checkpoint; free space, grow the volume or keep fewer checkpoints"

_FAILED = "the checkpoint's storage failed"

_ROOM = 1 << 20
"""A file system with fewer free bytes counts as full after a failed write."""


def save_shards(state: dict[str, Any], directory: Path, group: dist.ProcessGroup) -> None:
    """Write and fsync this rank's part of `state` (in host memory); collective over `group`.

    Raises StorageFullError or InfrastructureError.
    """
    try:
        files = min(_MAX_FILES, 1 + _bytes(state) // _FILE_BYTES)
        writer = dcp.FileSystemWriter(directory, thread_count=files, per_thread_copy_ahead=0)  # 0: all is on the host
        alone = group.size() == 1  # then torch does not pickle its plan, which would block the training thread
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=alone)
    except dcp.api.CheckpointException as error:
        reason = _reason(error)
        failure = InfrastructureError(f"the checkpoint was not written: {reason}")
        raise _storage_problem(reason) or _no_room(directory) or failure from error


def load_shards(state: dict[str, Any], directory: Path, *, alone: bool = False) -> None:
    """Read `state`'s tensors in place, whatever number of ranks wrote them; collective unless `alone`.

    Raises JobError if the checkpoint belongs to another model or algorithm or its index is damaged,
    InfrastructureError if it is unreadable.
    """
    if not (directory / METADATA).is_file():
        raise InfrastructureError(f"{_FAILED}: {directory / METADATA} is missing")
    if not alone and (lacking := _lacking(state, directory)) is not None:
        raise JobError(
            f"{directory.parent.name} does not match this job (its {lacking} is not in the job's model); restore the"
            " model with which it was written, or set this field to never",
            field="spec.checkpoint.resume",
        )
    try:
        dcp.load(state, storage_reader=ShardReader(directory), planner=DataPlanner(), no_dist=alone)
    except pickle.UnpicklingError as error:
        raise _forged(directory, error) from error
    except OSError as error:
        raise storage_error(error, _FAILED) from error
    except dcp.api.CheckpointException as error:
        reason = _reason(error)
        if isinstance(reason, pickle.UnpicklingError):
            raise _forged(directory, reason) from error
        raise _storage_problem(reason) or JobError(
            f"{directory.parent.name} does not match this job ({reason}); restore the model, algorithm.advantage, "
            "algorithm.kl, actor.optimizer and actor.emaDecay with which it was written, or set this field to never",
            field="spec.checkpoint.resume",
        ) from error


def saved_shapes(directory: Path) -> dict[str, torch.Size]:
    """The shape of each tensor in a checkpoint, by its place in the state, as in policy.model.NAME.

    Raises JobError if the index is damaged, InfrastructureError if it cannot be read.
    """
    try:
        saved = ShardReader(directory).read_metadata().state_dict_metadata
    except pickle.UnpicklingError as error:
        raise _forged(directory, error) from error
    except OSError as error:
        raise storage_error(error, _FAILED) from error
    return {name: each.size for name, each in saved.items() if isinstance(each, TensorStorageMetadata)}


def _lacking(state: dict[str, Any], directory: Path) -> str | None:
    """A saved weight that the state's model of that role lacks. torch reads only what a state wants."""
    for name in saved_shapes(directory):
        role, _, weight = name.partition(".model.")
        if weight and role in state and weight not in state[role]["model"]:
            return name
    return None


def _forged(directory: Path, reason: pickle.UnpicklingError) -> JobError:
    return JobError(
        f"a file of {directory} is damaged or forged ({str(reason).partition(chr(10))[0]}); delete this checkpoint or "
        "continue from another one",
        field="spec.checkpoint.resume",
    )


def _bytes(state: dict[str, Any]) -> int:
    """Size of this rank's part."""
    tensors = (leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor))
    return sum((each.to_local() if isinstance(each, DTensor) else each).nbytes for each in tensors)


def _reason(error: dcp.api.CheckpointException) -> BaseException:
    """The first rank's error. The exception itself is a BaseException, which Ray does not pickle."""
    cause, _ = next(iter(error.failures.values()))
    return cause


def _no_room(directory: Path) -> StorageFullError | None:
    """torch's own writer hides ENOSPC behind "unexpected pos", so ask the file system."""
    return StorageFullError(_NO_SPACE) if shutil.disk_usage(directory).free < _ROOM else None


def _storage_problem(reason: BaseException) -> RLJobError | None:
    return storage_error(reason, _FAILED) if isinstance(reason, OSError) else None
