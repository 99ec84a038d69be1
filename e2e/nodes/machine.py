"""A node: a machine made of namespaces, with its own network and processes, its own /run, /var/lib and /var/log.

Its first process holds it together. With that the kernel ends every other process of the node, its containers among
them, and takes down its mounts and interfaces.
"""

import hashlib
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import processes
from e2e.cluster.errors import ClusterError

INIT = Path(__file__).with_name("init.sh")

BOOT_SECONDS = 30.0
LOOK_SECONDS = 0.05

PREFIX = "node-"

_VARIABLES = {"HOME": "/root", "TMPDIR": "/run", "XDG_RUNTIME_DIR": "/run"}
"""Of a node's programs. containerd's shim writes a file for each command that is run in a container: not to this
machine's /tmp, where it would stay when the node is powered off meanwhile, nor to a folder of this machine's /run,
which root has at a login and the node has not.
"""

NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")


def mark(cluster: Path) -> str:
    """What names of a cluster's things on this machine have in common."""
    return "rlj" + hashlib.sha256(str(cluster).encode()).hexdigest()[:7]


@dataclass(frozen=True)
class Machine:
    """cluster: its folder. number: 0, 1, ..."""

    cluster: Path
    number: int

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.number}"

    @property
    def folder(self) -> Path:
        """What the node keeps: `lib` is its /var/lib, `log` its /var/log."""
        return self.cluster / "nodes" / self.name

    @property
    def init(self) -> int | None:
        """The first process, by its number on this machine; None while the node is off."""
        found = processes.find(self.cluster).get(self.name, ())
        return next((process for process in found if _is_first(process)), None)

    def boot(self) -> int:
        """The number of its first process, once it is set up."""
        booted = self.folder / "booted"
        booted.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "init.log"
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "--propagation=private"]
        processes.start(self.cluster, self.name, [*unshare, str(INIT), str(self.folder), self.name], log, {})
        deadline = time.monotonic() + BOOT_SECONDS
        while not booted.exists() or (init := self.init) is None:
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} does not start: {log.read_text(errors='replace').strip()}")
            time.sleep(LOOK_SECONDS)
        return init

    def power_off(self) -> None:
        """At once, and wait until nothing of it runs."""
        while running := self._processes():
            init = self.init
            for process in running:  # all of them: the first one goes when all others were reaped, and a program's
                with suppress(ProcessLookupError):  # nsenter, outside, reaps nothing while it is frozen with it
                    processes.send(process, signal.SIGKILL)
            if init is not None:
                processes.stop(init, 0)

    def start(self, name: str, command: list[str]) -> None:
        """Start one of its programs."""
        log = self.cluster / "logs" / f"{self.name}-{name}.log"
        processes.start(self.cluster, f"{self.name}/{name}", self.inside(*command), log, _VARIABLES)

    def inside(self, *command: str) -> list[str]:
        """The command, to be run in the node."""
        init = self.init
        if init is None:
            raise ClusterError(f"{self.name} is off")
        return ["nsenter", f"--target={init}", *NAMESPACES, "--", *command]

    def run(self, *command: str) -> str:
        """Its output."""
        return output(*self.inside(*command))

    def _processes(self) -> list[int]:
        running = processes.find(self.cluster).items()
        return [process for name, found in running if name.split("/")[0] == self.name for process in found]


def machines(cluster: Path) -> list[Machine]:
    """Those that were ever made."""
    folders = (cluster / "nodes").glob(f"{PREFIX}*")
    return [Machine(cluster, number) for number in sorted(int(each.name.removeprefix(PREFIX)) for each in folders)]


def output(*command: str, text: str = "") -> str:
    """Of a command of this machine. text: its standard input."""
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ClusterError(f"{' '.join(command)} failed: {run.stderr.strip() or run.stdout.strip()}")
    return run.stdout


def _is_first(process: int) -> bool:
    """Of its namespace."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                numbers = line.split()[1:]
                return len(numbers) > 1 and numbers[-1] == "1"
    return False
