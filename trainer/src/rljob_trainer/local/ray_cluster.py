"""A Ray cluster of one machine, as the supervisor sees it. The process `ray_head` holds it."""

import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rljob_trainer.local.machine import MODULE, Child, end_child, end_session, is_stopped, last_line, start_child
from rljob_trainer.local.private_folder import new_private_folder

ADDRESS = "address"
"""File in the cluster's folder with Ray's address; it appears when Ray accepts connections."""

RAY_FOLDER = "r"
"""Ray's own folder, in the cluster's: Ray lets every user write to it, and the folder around it keeps them out."""


def ray_environment() -> dict[str, str]:
    """Variables of all processes of one local cluster.

    All of them listen on the loopback address alone; Ray does so with the second. The token excludes other users of
    the machine. Without prestart the first driver connects at once: else it waits inside Ray for one worker per core,
    cannot send heartbeats there, and looks hung.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",  # by default workers yield to all other processes
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # engines request no GPU: they share their ranks' GPUs
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_HOST_IP": "127.0.0.1",
    }


LONGEST_TEMPORARY = 107 - len("/rljob-ray-12345678/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Longest folder for temporary files: a socket's name has at most 107 characters and begins with it."""


STOPPED_SECONDS = 10.0
"""Longest time that a process of Ray, or the one that holds Ray, may be stopped (SIGSTOP)."""

LONGEST_LOOK = 0.5
"""Most seconds that count between two polls: a longer gap was a pause of this process."""


@dataclass(slots=True)
class LocalRay:
    """address_file: holds the address once Ray is up. frozen: the head was stopped for too long and was killed."""

    address_file: Path
    head: Child
    log: Path
    frozen: bool = False
    _stopped: float = 0.0
    _looked: float = field(default_factory=time.monotonic)

    def is_gone(self) -> bool:
        """Whether the head has ended. Kills a head that has been stopped for too long, and Ray with it."""
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
        """Why the head ended; "" if its log does not say."""
        if self.frozen:
            return f"the head of Ray was stopped for {STOPPED_SECONDS:.0f} s"
        return last_line(self.log)


@contextmanager
def local_ray(gpus: int, engine: str, log: Path, environment: Mapping[str, str]) -> Iterator[LocalRay]:
    """Start Ray without waiting for it, and remove all its processes and files at the end.

    engine: which engine its workers preload.
    """
    folder = new_private_folder("rljob-ray-")
    try:
        command = [*MODULE, "rljob_trainer.local.ray_head", str(folder), str(gpus), engine]
        # TMPDIR covers its workers too: vLLM leaves files there.
        head = start_child(
            command,
            log,
            {**environment, "TMPDIR": str(folder)},
            orphaned=signal.SIGTERM,
            stdin=subprocess.PIPE,
            cleans_up=True,
        )
        try:
            yield LocalRay(folder / ADDRESS, head, log)
        finally:
            end_child(head)
            end_session(head.pid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
