"""Save one rank's state while it continues to train.

    training thread   begin ──────┐   update (waits for "staged", not for "written")
    saving thread                 └─> copy to host memory ─ staged ─> write, fsync, hash ─ written ─> finish
    any thread                                                                                        finish waits

An update waits for the copy only, not for the disk. All collectives use a process group that belongs to the saver,
because two threads must not share one.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from rljob_trainer.checkpoint.files import FileEntry, entries
from rljob_trainer.checkpoint.host_copy import HostCopy, shapes_of
from rljob_trainer.checkpoint.random_state import random_state, write_random_state
from rljob_trainer.checkpoint.shard_reader import METADATA
from rljob_trainer.checkpoint.shards import save_shards


class ShardSaver:
    """One save at a time. The training thread calls `begin`; any thread may call the other methods."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup, mesh: DeviceMesh) -> None:
        """group: gloo, over all ranks, used by nothing else. mesh: of CPUs, in the shape of the models' mesh."""
        self._group, self._rank, self._world = group, group.rank(), group.size()
        self._copy = HostCopy(device, mesh)
        self._staged = threading.Event()
        self._staged.set()
        self._written: Future[dict[str, FileEntry]] | None = None

    def reserve(self, tensors: Iterable[Tensor]) -> None:
        """Allocate host memory for tensors like these in a thread, so that the first save is not slower.

        A save that begins meanwhile waits for it; if the allocation fails, that save raises.
        """
        shapes = shapes_of(tensors)
        threading.Thread(target=self._copy.reserve, args=(shapes,), name="reserve", daemon=True).start()

    def begin(self, state: dict[str, Any], directory: Path) -> None:
        """Start to save `state`, whose tensors must not change before `wait_staged` returns; collective.

        Waits for an earlier save to end; `finish` raises that save's failure.
        """
        if self._written is not None:
            self._written.exception()
        self._staged = threading.Event()
        self._written = Future()
        self._copy.follow()
        work = (state, random_state(), directory, self._staged, self._written)
        # A daemon: a volume that hangs must not keep the process from exiting.
        threading.Thread(target=self._save, args=work, name="checkpoint", daemon=True).start()

    def wait_staged(self) -> None:
        """Wait until the state may change."""
        self._staged.wait()

    def finish(self) -> dict[str, FileEntry]:
        """Wait for the last save. Returns the files that this rank wrote, by name.

        Raises StorageFullError or InfrastructureError.
        """
        assert self._written is not None, "finish comes after begin"
        return self._written.result()

    def _save(
        self, state: dict[str, Any], random: dict[str, Any], directory: Path, staged: threading.Event,
        written: "Future[dict[str, FileEntry]]",
    ) -> None:  # fmt: skip
        try:
            copy = self._copy.take(state)
            del state
            staged.set()
            written.set_result(self._write(copy, random, directory))
        except BaseException as error:  # noqa: BLE001  `finish` raises it
            written.set_exception(error)
        finally:
            staged.set()

    def _write(self, state: dict[str, Any], random: dict[str, Any], directory: Path) -> dict[str, FileEntry]:
        save_shards(state, directory, self._group)
        own = [write_random_state(random, directory, self._rank, self._world), *directory.glob(f"__{self._rank}_*")]
        if self._rank == 0:
            own.append(directory / METADATA)
        return entries(directory, own)
