"""The process that Ray's workers are forked from: python -m rljob_trainer.local.preloaded SOCKET ENGINE DEVICE

Importing torch and transformers takes most of the time that a worker takes to start, and a core each. Here it happens
once, before the first worker is wanted; each one then starts within milliseconds, also in place of one that died, and
shares the imported pages with the others.
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
    "transformers.models.llama.modeling_llama",  # of models from scratch; others share most of what it imports
)
"""What ranks and scorers need but for Ray itself, which reads a worker's environment when it is imported."""

REQUEST_SECONDS = 5.0
"""How long whoever has connected may take to ask: the others wait meanwhile."""

OOM_SCORE = "1000"
"""Ray's for its workers: where memory runs short the kernel takes one of them, which is replaced, and not Ray."""


def main() -> None:
    path, device = Path(sys.argv[1]), sys.argv[3]
    engine: Engine = "vllm" if sys.argv[2] == "vllm" else "hf"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(64)  # whoever asks early waits
        _import(engine, device)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
        while True:
            client, _ = server.accept()
            with client, suppress(OSError, ValueError):  # somebody gave up
                _serve(client, server)


def _import(engine: Engine, device: str) -> None:
    """The engine first: vLLM wants its environment before torch is imported."""
    sys.modules["ray"] = None  # type: ignore[assignment]  # "not installed": it must not be imported here, and vLLM would
    with uncollected():
        with suppress(JobError):  # vLLM is missing: the engine says so
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
        client.sendall(b"1")  # fails where somebody has given up
        if os.fork() == 0:
            server.close()
            client.close()
            _become(request, streams)
    finally:
        for each in streams:
            os.close(each)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Ray's worker. Never returns."""
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
    except Exception:  # noqa: BLE001 Ray's log shall have it, whatever it is
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _differ() -> None:
    """What is not inherited: as raylet starts processes, and as torch and numpy are after an import of one's own."""
    import torch

    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # Ray says so to workers that ask for no cores
    np.random.seed()  # noqa: NPY002  all would draw the same


if __name__ == "__main__":
    main()
