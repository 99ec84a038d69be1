"""The libraries that move data between ranks, behind one protocol. Buffers are torch tensors [n] float32.

Cupy     NCCL on GPUs, through cupy's bindings
Torch    NCCL on GPUs or gloo on CPUs, through torch.distributed
"""

import datetime
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_trainer.preflight.measured import MemberSettings

# torch 2.13 has renamed them and warns of the names that 2.11 has.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Fabric(Protocol):
    """One rank's end. Calls may return before the data has arrived; `finish` waits for it."""

    device: torch.device
    name: str

    def all_reduce(self, send: Tensor, receive: Tensor) -> None:
        """The sum over all ranks. Both [n]; the same tensor is the in-place form."""

    def all_gather(self, send: Tensor, receive: Tensor) -> None:
        """send: [n / ranks]; in place it is this rank's part of receive [n]."""

    def reduce_scatter(self, send: Tensor, receive: Tensor) -> None:
        """receive: [n / ranks]; in place it is this rank's part of send [n]."""

    def exchange(self, send: Tensor, to: int, receive: Tensor, source: int) -> None:
        """Send to one rank and receive from one, at the same time."""

    def finish(self) -> None: ...


def connect(settings: MemberSettings, store: dist.Store) -> Fabric:
    """Collective."""
    kind = Cupy if settings.library == "cupy" else Torch
    device = torch.device(settings.device, 0)
    return kind(device, store, settings.rank, settings.shape.ranks, settings.seconds)


class Torch:
    """torch.distributed. It reduces in place only, so out-of-place all-reduce includes a copy of the input."""

    def __init__(self, device: torch.device, store: dist.Store, rank: int, ranks: int, seconds: float) -> None:
        self.device = device
        backend = "nccl" if device.type == "cuda" else "gloo"
        self.name = f"torch {torch.__version__}, {backend}{_nccl_of_torch() if backend == 'nccl' else ''}"
        timeout = datetime.timedelta(seconds=seconds)
        # A GPU that is named connects to all others at once; else all would have to take part in the first trial.
        gpu = device if device.type == "cuda" else None
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout, device_id=gpu)

    def all_reduce(self, send: Tensor, receive: Tensor) -> None:
        if receive.data_ptr() != send.data_ptr():
            receive.copy_(send)
        dist.all_reduce(receive)

    def all_gather(self, send: Tensor, receive: Tensor) -> None:
        _ALL_GATHER(receive, send)

    def reduce_scatter(self, send: Tensor, receive: Tensor) -> None:
        _REDUCE_SCATTER(receive, send)

    def exchange(self, send: Tensor, to: int, receive: Tensor, source: int) -> None:
        both = [dist.P2POp(dist.isend, send, to), dist.P2POp(dist.irecv, receive, source)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Cupy:
    """cupy's bindings of NCCL. torch owns memory and stream, and has loaded the NCCL that cupy finds."""

    def __init__(self, device: torch.device, store: dist.Store, rank: int, ranks: int, seconds: float) -> None:
        import cupy
        from cupy.cuda import nccl

        self.device = device
        self._nccl: Any = nccl
        store.set_timeout(datetime.timedelta(seconds=seconds))
        if rank == 0:
            store.set("cupy", self._nccl.get_unique_id().hex())
        torch.cuda.set_device(device)
        self._stream = torch.cuda.current_stream(device).cuda_stream
        torch.zeros(1, device=device)  # creates the context in which NCCL works
        unique = bytes.fromhex(store.get("cupy").decode())
        self._communicator = self._nccl.NcclCommunicator(ranks, unique, rank)
        self.name = f"cupy {cupy.__version__}, NCCL {_version(self._nccl.get_version())}"

    def all_reduce(self, send: Tensor, receive: Tensor) -> None:
        nccl = self._nccl
        self._communicator.allReduce(
            send.data_ptr(), receive.data_ptr(), send.numel(), nccl.NCCL_FLOAT32, nccl.NCCL_SUM, self._stream
        )

    def all_gather(self, send: Tensor, receive: Tensor) -> None:
        self._communicator.allGather(
            send.data_ptr(), receive.data_ptr(), send.numel(), self._nccl.NCCL_FLOAT32, self._stream
        )

    def reduce_scatter(self, send: Tensor, receive: Tensor) -> None:
        nccl = self._nccl
        self._communicator.reduceScatter(
            send.data_ptr(), receive.data_ptr(), receive.numel(), nccl.NCCL_FLOAT32, nccl.NCCL_SUM, self._stream
        )

    def exchange(self, send: Tensor, to: int, receive: Tensor, source: int) -> None:
        kind = self._nccl.NCCL_FLOAT32
        self._nccl.groupStart()
        self._communicator.send(send.data_ptr(), send.numel(), kind, to, self._stream)
        self._communicator.recv(receive.data_ptr(), receive.numel(), kind, source, self._stream)
        self._nccl.groupEnd()

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)


def _nccl_of_torch() -> str:
    return f" {'.'.join(map(str, torch.cuda.nccl.version()))}"


def _version(code: int) -> str:
    """NCCL's number: 22907 is 2.29.7."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
