"""A Ray cluster of this machine alone, seen from the supervisor. `ray_head` is the process that holds it."""

import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rljob_trainer.local.machine import MODULE, Child, end_child, end_session, is_stopped, last_line, start_child

ADDRESS = "address"
"""File in Ray's folder with its address, there as soon as Ray can be connected to."""


def ray_environment() -> dict[str, str]:
    """What every process of one local cluster shares.

    The second variable says that there is one machine only, and so Ray listens on the loopback address alone. The token
    keeps the machine's other users out. Without prestart the first driver is connected at once: otherwise Ray lets it
    wait for a worker a core, within its own code, where it gives no sign of life and is taken for one that hangs.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",  # its workers are the job: by default all else on the machine goes before them
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # engines ask for no GPU: they share those of their ranks
    }


LONGEST_TEMPORARY = 107 - len("/rljob-ray-12345678/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Characters of the folder for temporary files: a socket's name has 107, and Ray's begin with that folder."""


STOPPED_SECONDS = 10.0
"""How long a process of Ray may be stopped, or the one that holds Ray, which looks after those."""

LONGEST_LOOK = 0.5
"""Seconds between two looks, at most: what is longer was our own pause."""


@dataclass(slots=True)
class LocalRay:
    """address_file: holds Ray's address as soon as Ray is up. frozen: whether its holder was, and so was ended."""

    address_file: Path
    head: Child
    log: Path
    frozen: bool = False
    _stopped: float = 0.0
    _looked: float = field(default_factory=time.monotonic)

    def is_gone(self) -> bool:
        """Whether the holder has ended. One that has been stopped for too long is ended here, and Ray with it."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_LOOK), now
        self._stopped = self._stopped + passed if is_stopped(self.head.pid) else 0.0
        if self._stopped > STOPPED_SECONDS:
            self.frozen = True
            self.head.kill()
            self.head.wait()
        return self.head.poll() is not None

    @property
    def last_words(self) -> str:
        """Why it has ended, as far as it said so itself."""
        if self.frozen:
            return f"the process that holds Ray was stopped for {STOPPED_SECONDS:.0f} s"
        return last_line(self.log)


@contextmanager
def local_ray(gpus: int, engine: str, log: Path, environment: Mapping[str, str]) -> Iterator[LocalRay]:
    """Start Ray, without waiting for it. At the end nothing is left, neither processes nor files.

    engine: the kind of which its workers will be.
    """
    # The head makes it, as soon as it can take it away again, whatever ends us.
    folder = Path(tempfile.gettempdir()) / f"rljob-ray-{secrets.token_hex(4)}"
    try:
        command = [*MODULE, "rljob_trainer.local.ray_head", str(folder), str(gpus), engine]
        # Temporary files of its workers too: vLLM leaves some, and they go with the folder.
        head = start_child(
            command, log, {**environment, "TMPDIR": str(folder)}, orphaned=signal.SIGTERM, stdin=subprocess.PIPE
        )
        try:
            yield LocalRay(folder / ADDRESS, head, log)
        finally:
            end_child(head)
            end_session(head.pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
