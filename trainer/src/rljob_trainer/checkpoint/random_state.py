"""The state of a rank's random generators (torch, CUDA, numpy, Python) as JSON."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The state in this process. cuda: of the current device; None without one."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  the process's global generator
    cuda = torch.cuda.is_initialized()
    return {
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
        "cuda": bytes(torch.cuda.get_rng_state().tolist()).hex() if cuda else None,
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "python": random.getstate(),
    }


def write_random_state(state: dict[str, Any], directory: Path, rank: int, world: int) -> Path:
    """Returns the file. Raises OSError."""
    path = _file(directory, rank, world)
    path.write_text(json.dumps(state))
    return path


def restore_random_state(directory: Path, rank: int, world: int, seed: int) -> None:
    """Restore the state of `rank` of `world`.

    If another number of ranks wrote the checkpoint, derive a seed from rank 0's state, `rank` and `seed`: different on
    every rank, equal in every resume.
    """
    path = _file(directory, rank, world)
    if path.is_file():
        _set(json.loads(path.read_text()))
        return
    writer = next(iter(sorted(directory.glob("random-0-of-*.json"))), None)
    left = writer.read_bytes() if writer else b""
    derived = hashlib.sha256(left + f"/{seed}/{rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(derived[:7]))  # CUDA's too
    np.random.seed(int.from_bytes(derived[8:12]))  # noqa: NPY002
    random.seed(derived)


def _set(state: dict[str, Any]) -> None:
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


def _bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def _file(directory: Path, rank: int, world: int) -> Path:
    return directory / f"random-{rank}-of-{world}.json"
