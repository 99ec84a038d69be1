"""Ray starts this for each worker in place of its setup_worker.py: python ray_worker.py ARGUMENTS.

It asks the process `preloaded` to fork the worker. If that process is gone, or the worker has its own runtime
environment, it runs Ray's file instead. It imports only the standard library, because each worker waits for it.
"""

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path

SOCKET = "RLJOB_PRELOADED"
"""Environment variable with the socket of `preloaded`."""

ENVIRONMENT = "--serialized-runtime-env-context="
LANGUAGE = "--language="

ACCEPT_SECONDS = 40.0
"""Time for `preloaded` to finish its imports. Raylet gives a worker 60 s to register."""


def main() -> None:
    path, arguments = os.environ.get(SOCKET), sys.argv[1:]
    if not (path and _is_plain(arguments) and _forked(path, arguments)):
        found = importlib.util.find_spec("ray")
        assert found is not None
        assert found.origin is not None
        own = Path(found.origin).parent / "_private" / "workers" / "setup_worker.py"
        os.execv(sys.executable, [sys.executable, str(own), *arguments])


def _is_plain(arguments: list[str]) -> bool:
    """Whether it is a Python worker without its own runtime environment."""
    context = next((each.removeprefix(ENVIRONMENT) for each in arguments if each.startswith(ENVIRONMENT)), "{}")
    special = {name for name, value in json.loads(context or "{}").items() if value} - {"py_executable"}
    return f"{LANGUAGE}PYTHON" in arguments and not special


def _forked(path: str, arguments: list[str]) -> bool:
    """Ask `preloaded` to fork the worker. Returns whether it did."""
    wanted = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    request = json.dumps(wanted).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(ACCEPT_SECONDS)
        try:
            server.connect(path)
            socket.send_fds(server, [len(request).to_bytes(4)], [0, 1, 2])
            server.sendall(request)
            return server.recv(1) == b"1"
        except OSError:
            return False


if __name__ == "__main__":
    main()
