"""Holds a command whose processes outlive one another: python -m rljob_trainer.local.holder COMMAND...

vLLM's engine lives on when its API server is killed, and a server that still starts ignores SIGTERM. When this process
is told to end, as the kernel does when its parent dies, or when the command ends, it ends everything below itself.
"""

import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

from rljob_trainer.local.machine import adopt_orphans, end_descendants, wake_when_orphaned

STOP_SECONDS = 5.0
"""How long the command may take to end by itself."""


def main() -> None:
    adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    command: subprocess.Popen[bytes] | None = None
    try:
        wake_when_orphaned()
        command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
        sys.exit(command.wait())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if command is not None:
            command.terminate()
            with suppress(subprocess.TimeoutExpired):
                command.wait(STOP_SECONDS)
        end_descendants()


def _leave(number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come twice, and cleaning up is not to be cut short
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
