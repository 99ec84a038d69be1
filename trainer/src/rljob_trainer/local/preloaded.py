"""The process that Ray's workers are forked from: python -m rljob_trainer.local.preloaded SOCKET ENGINE DEVICE

Importing torch and transformers takes most of a worker's start, and one core each. This process imports them once,
before the first worker is needed. Workers and their replacements then start within milliseconds and share memory pages.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.v1alpha1.rollout import Engine
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.errors import JobError
from rljob_trainer.local.ray_worker import ENVIRONMENT, LANGUAGE
from rljob_trainer.workers.imports import uncollected

_MODULES = (
    "rljob_trainer.rank.loading",
    "rljob_trainer.rank.sharding",
    "rljob_trainer.rank.step",
    "rljob_trainer.rewards.scorer",
    "torch.distributed.checkpoint.state_dict",
    "transformers.models.llama.modeling_llama",  # for models from scratch; others share most of its imports
)
"""Modules of ranks and the rollout host. Not Ray, which reads a worker's environment when it is imported."""

REQUEST_SECONDS = 5.0
"""Time for a client to send its request, while other clients wait."""

OOM_SCORE = "1000"
"""Ray's value for workers: if memory runs out, the kernel kills a worker, which is replaced, and not Ray."""


def main() -> None:
    path, device = Path(sys.argv[1]), sys.argv[3]
    engine: Engine = "vllm" if sys.argv[2] == "vllm" else "hf"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(64)  # requests during the import wait
        _import(engine, device)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap workers automatically
        while True:
            client, _ = server.accept()
            with client, suppress(OSError, ValueError):  # the client gave up
                _serve(client, server)


def _import(engine: Engine, device: str) -> None:
    """Import the engine first: vLLM sets its environment before torch is imported."""
    sys.modules["ray"] = None  # type: ignore[assignment]  # hidden from vLLM, which would import it
    with uncollected():
        with suppress(JobError):  # vLLM is missing: the engine's worker reports it
            ENGINES[engine].factory(device)
        for module in _MODULES:
            importlib.import_module(module)
    del sys.modules["ray"]
    import torch

    assert not torch.cuda.is_initialized(), "a GPU's context does not survive a fork"


def _serve(client: socket.socket, server: socket.socket) -> None:
    client.settimeout(REQUEST_SECONDS)
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    try:
        with client.makefile("rb") as stream:
            request = json.loads(stream.read(int.from_bytes(size)))
        client.sendall(b"1")  # fails if the client gave up
        if os.fork() == 0:
            server.close()
            client.close()
            _become(request, streams)
    finally:
        for each in streams:
            os.close(each)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Become Ray's worker. Never returns."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _differ()
        worker, *arguments = (each for each in request["arguments"] if not each.startswith((ENVIRONMENT, LANGUAGE)))
        sys.argv = [worker, *arguments]
        runpy.run_path(worker, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:  # noqa: BLE001 every error belongs into Ray's log
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _differ() -> None:
    """Set what a fork does not: process state as raylet sets it, torch and numpy as after a fresh import."""
    import torch

    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as Ray does for workers without CPUs
    np.random.seed()  # noqa: NPY002  forks would share one seed


if __name__ == "__main__":
    main()
