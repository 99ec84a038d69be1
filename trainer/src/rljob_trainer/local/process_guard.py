"""Ends all processes of a command together: python -m rljob_trainer.local.process_guard FOLDER COMMAND...

vLLM's engine survives the death of its API server, and a starting server ignores SIGTERM. This process ends all its
descendants when the command ends or when it receives SIGTERM, which the kernel also sends when the parent dies. Then it
deletes FOLDER, which holds temporary files: vLLM leaves sockets there.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

from rljob_trainer.local.machine import accept_termination, adopt_orphans, end_descendants, wake_when_orphaned

STOP_SECONDS = 5.0
"""Time for the command to end after SIGTERM."""

LOOK_SECONDS = 0.1


def main() -> None:
    folder, *arguments = sys.argv[1:]
    received: list[int] = []  # signals; Python may drop an exception of a handler, in a destructor or around a fork
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    command: subprocess.Popen[bytes] | None = None
    try:
        accept_termination()
        wake_when_orphaned()
        command = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder})
        while (code := command.poll()) is None and not received:
            time.sleep(LOOK_SECONDS)
        sys.exit(128 + received[0] if received else code)
    finally:
        if command is not None:
            command.terminate()
            with suppress(subprocess.TimeoutExpired):
                command.wait(STOP_SECONDS)
        end_descendants()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
