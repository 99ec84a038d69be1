"""What Ray starts for each worker, in place of its own setup_worker.py: python ray_worker.py ARGUMENTS.

The worker itself is forked by the process of `preloaded`. Where that is not there, or the worker shall have a runtime
environment of its own, Ray's own file does what it always does. Nothing is imported here but Python's own: each worker
waits for this.
"""

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path

SOCKET = "RLJOB_PRELOADED"
"""Environment variable: where `preloaded` listens."""

ENVIRONMENT = "--serialized-runtime-env-context="
LANGUAGE = "--language="

ACCEPT_SECONDS = 40.0
"""How long it may still import. After 60 s raylet takes a worker that has not registered for lost."""


def main() -> None:
    path, arguments = os.environ.get(SOCKET), sys.argv[1:]
    if not (path and _is_plain(arguments) and _asked(path, arguments)):
        found = importlib.util.find_spec("ray")
        assert found is not None
        assert found.origin is not None
        own = Path(found.origin).parent / "_private" / "workers" / "setup_worker.py"
        os.execv(sys.executable, [sys.executable, str(own), *arguments])


def _is_plain(arguments: list[str]) -> bool:
    """Whether it is a worker in Python, in the environment that all have."""
    context = next((each.removeprefix(ENVIRONMENT) for each in arguments if each.startswith(ENVIRONMENT)), "{}")
    special = {name for name, value in json.loads(context or "{}").items() if value} - {"py_executable"}
    return f"{LANGUAGE}PYTHON" in arguments and not special


def _asked(path: str, arguments: list[str]) -> bool:
    """Whether the worker has been forked."""
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
