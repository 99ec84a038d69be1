"""Saving one rank's state while it goes on training.

    training thread   begin ──────┐   update (waits for "staged", not for "written")
    saving thread                 └─> copy to host memory ─ staged ─> write, fsync, hash ─ written ─> finish
    any thread                                                                                        finish waits

The copy takes a bus's time, the writing a disk's: training waits for the former only, and only where it would change
what is being copied. All collectives are over a process group of the saver's own: two threads must not share one.
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
from rljob_trainer.checkpoint.shards import METADATA, save_shards


class ShardSaver:
    """At most one save at a time. All methods may be called by any thread; `begin` by the one that trains."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup, mesh: DeviceMesh) -> None:
        """group: gloo, over all ranks, used by nothing else. mesh: of CPUs, in the shape of the models' own."""
        self._group, self._rank, self._world = group, group.rank(), group.size()
        self._copy = HostCopy(device, mesh)
        self._staged = threading.Event()
        self._staged.set()
        self._written: Future[dict[str, FileEntry]] | None = None

    def reserve(self, tensors: Iterable[Tensor]) -> None:
        """Get host memory for a state of tensors like these, in a thread of its own: the first save is then no slower.

        A save that begins meanwhile copies when that is done. Where memory does not suffice, that save says so.
        """
        shapes = shapes_of(tensors)
        threading.Thread(target=self._copy.reserve, args=(shapes,), name="reserve", daemon=True).start()

    def begin(self, state: dict[str, Any], directory: Path) -> None:
        """Start to save `state`, whose tensors must not change before `wait_staged` returns; collective.

        Waits for an earlier save to end; `finish` is where that one's failure shows.
        """
        if self._written is not None:
            self._written.exception()
        self._staged = threading.Event()
        self._written = Future()
        self._copy.follow()
        work = (state, random_state(), directory, self._staged, self._written)
        # A daemon: a volume that hangs must not keep the process from leaving.
        threading.Thread(target=self._save, args=work, name="checkpoint", daemon=True).start()

    def wait_staged(self) -> None:
        """Until the state may change again."""
        self._staged.wait()

    def finish(self) -> dict[str, FileEntry]:
        """Wait for the save that was begun last. Returns the files that this rank wrote, by name.

        Raises what the save raised: StorageFullError or InfrastructureError.
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
        except BaseException as error:  # noqa: BLE001  it belongs to whoever calls finish
            written.set_exception(error)
        finally:
            staged.set()

    def _write(self, state: dict[str, Any], random: dict[str, Any], directory: Path) -> dict[str, FileEntry]:
        save_shards(state, directory, self._group)
        own = [write_random_state(random, directory, self._rank, self._world), *directory.glob(f"__{self._rank}_*")]
        if self._rank == 0:
            own.append(directory / METADATA)
        return entries(directory, own)
