"""Holds a command whose processes outlive one another: python -m rljob_trainer.local.process_guard FOLDER COMMAND...

vLLM's engine lives on when its API server is killed, and a server that still starts ignores SIGTERM. When this process
is told to end, as the kernel does when its parent dies, or when the command ends, it ends everything below itself, and
deletes FOLDER, which it has made for their temporary files: vLLM leaves sockets there.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from rljob_trainer.local.machine import adopt_orphans, end_descendants, wake_when_orphaned

STOP_SECONDS = 5.0
"""How long the command may take to end by itself."""

LOOK_SECONDS = 0.1


def main() -> None:
    folder, *arguments = sys.argv[1:]
    told: list[int] = []  # signals; an exception of their handler could get lost, in a destructor or around a fork
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    command: subprocess.Popen[bytes] | None = None
    Path(folder).mkdir(mode=0o700)
    try:
        wake_when_orphaned()
        command = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder})
        while (code := command.poll()) is None and not told:
            time.sleep(LOOK_SECONDS)
        sys.exit(128 + told[0] if told else code)
    finally:
        if command is not None:
            command.terminate()
            with suppress(subprocess.TimeoutExpired):
                command.wait(STOP_SECONDS)
        end_descendants()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
