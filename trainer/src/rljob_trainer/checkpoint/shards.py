"""The tensors of a checkpoint, some files a rank: torch.distributed.checkpoint, its failures in terms of the job."""

import errno
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from rljob_trainer.errors import InfrastructureError, JobError, RLJobError, StorageFullError

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it was asked for, of one rank

METADATA = ".metadata"
"""Written last by torch; without it no shard can be read."""

_FILE_BYTES = 4 << 30
_MAX_FILES = 8
"""A rank's files are written, and later hashed, by a thread each: one alone is slower than the volume."""


_NO_SPACE = "no space left for a checkpoint: free space, grow the volume or keep fewer"

_ROOM = 1 << 20
"""Bytes that a file system has, unless a write has just failed for want of more."""


def save_shards(state: dict[str, Any], directory: Path, group: dist.ProcessGroup) -> None:
    """Write this rank's part of `state`, durably; collective over `group`. state: in host memory.

    Raises StorageFullError or InfrastructureError.
    """
    try:
        files = min(_MAX_FILES, 1 + _bytes(state) // _FILE_BYTES)
        writer = dcp.FileSystemWriter(directory, thread_count=files, per_thread_copy_ahead=0)  # 0: all is on the host
        alone = group.size() == 1  # it need not pickle its plan for others, which would hold up the training thread
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=alone)
    except dcp.api.CheckpointException as error:
        reason = _reason(error)
        failure = InfrastructureError(f"the checkpoint was not written: {reason}")
        raise _storage_problem(reason) or _no_room(directory) or failure from error


def load_shards(state: dict[str, Any], directory: Path, *, alone: bool = False) -> None:
    """Read `state`'s tensors in place, by whatever number of ranks they were written; collective unless `alone`.

    Raises JobError where the checkpoint is of another model or algorithm, InfrastructureError where it is unreadable.
    """
    if not (directory / METADATA).is_file():
        raise InfrastructureError(f"the checkpoint's storage failed: {directory / METADATA} is missing")
    try:
        dcp.load(state, checkpoint_id=directory, no_dist=alone)
    except dcp.api.CheckpointException as error:
        reason = _reason(error)
        raise _storage_problem(reason) or JobError(
            f"{directory.parent.name} does not fit this job ({reason}): keep model and algorithm.kl as they were when "
            "it was written, or set it to never",
            field="spec.checkpoint.resume",
        ) from error


def _bytes(state: dict[str, Any]) -> int:
    """Of this rank's part."""
    tensors = (leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor))
    return sum((each.to_local() if isinstance(each, DTensor) else each).nbytes for each in tensors)


def _reason(error: dcp.api.CheckpointException) -> BaseException:
    """The first rank's. It derives from BaseException, which Ray does not carry between processes."""
    cause, _ = next(iter(error.failures.values()))
    return cause


def _no_room(directory: Path) -> StorageFullError | None:
    """Where PyTorch's own writer met it, the system's answer is lost ("unexpected pos"); the file system knows."""
    return StorageFullError(_NO_SPACE) if shutil.disk_usage(directory).free < _ROOM else None


def _storage_problem(reason: BaseException) -> RLJobError | None:
    if not isinstance(reason, OSError):
        return None
    if reason.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(_NO_SPACE)
    return InfrastructureError(f"the checkpoint's storage failed: {reason}")
