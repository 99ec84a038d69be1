"""Runs one Python program in a sandbox and waits for it."""

import json
import os
import selectors
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.sandbox import child
from rljob_trainer.sandbox.system_calls import compiled_filter

Status = Literal["finished", "failed", "timed_out", "too_much_output", "too_much_disk"]
_LOOK_SECONDS = 0.02
_START_SECONDS = 60.0  # until the process is confined; Python starts slowly on a busy machine
_LONGEST_PATH = 3000
"""Bytes. The system names nothing below 4096, and a program that changes into a folder writes files there."""

_SHARED = ("/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom")
"""Libraries and time zones, beside the folders of Python itself."""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    seconds: of wall-clock time; the same number of CPU time, rounded up.
    memory, output, disk: bytes of address space, of stdout and stderr each, and of the program's folder.
    files: entries of that folder.
    """

    seconds: float = 10.0
    memory: int = 512 * 2**20
    output: int = 64 * 2**10
    disk: int = 16 * 2**20
    files: int = 256


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    status: `finished` means exit code 0. stdout, stderr: text, cut off at Limits.output bytes.
    exit_code: as of subprocess, -N for signal N. seconds: wall-clock time.
    """

    status: Status
    exit_code: int
    stdout: str
    stderr: str
    seconds: float


def run(source: str, stdin: str = "", limits: Limits = Limits()) -> Outcome:
    """Run a program in a process and a folder of its own, which is deleted afterwards.

    The program reads Python's own libraries and its folder and nothing else; it has no sockets, no threads, no other
    processes and no signals to them. It sees no environment variable of this process.

    Raises:
        InfrastructureError: the kernel has no Landlock or no seccomp, libseccomp is missing, or no process starts.
    """
    with _folder() as folder:
        file = folder / "main.py"
        file.write_text(source, encoding="utf-8", errors="replace")
        with _started(file, stdin, limits) as (process, ready):
            return _Watch(process, folder, limits).outcome(ready)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="sandbox-")
    try:
        yield Path(folder)
    finally:
        try:
            shutil.rmtree(folder)
        except RecursionError:  # folders in folders: Python before 3.13 calls itself for each
            subprocess.run(["rm", "-rf", folder], check=True)


@contextmanager
def _started(file: Path, stdin: str, limits: Limits) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    ready, tells = os.pipe()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as rules:
        for opened, content in ((given, stdin.encode(errors="replace")), (rules, compiled_filter())):
            opened.write(content)
            opened.seek(0)
        command = [sys.executable, "-P", "-s", "-B", child.__file__]
        command += [str(os.getpid()), str(tells), str(rules.fileno()), _as_json(limits), str(file)]
        try:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(file.parent),
                pass_fds=[tells, rules.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            os.close(ready)
            raise InfrastructureError(f"cannot start a sandboxed process: {error}") from error
        finally:
            os.close(tells)
    try:
        yield process, ready
    finally:
        os.close(ready)
        process.kill()  # one process: the filter has no call that starts another
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _as_json(limits: Limits) -> str:
    seconds = int(limits.seconds) + 1
    given = child.ChildLimits(
        cpu_seconds=seconds, memory=limits.memory, file_size=limits.disk, readable=[*_python_folders(), *_SHARED]
    )
    return json.dumps(given)


@cache
def _python_folders() -> tuple[str, ...]:
    """Where the interpreter, its standard library and the installed packages are."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {str(Path(paths[name]).resolve()) for name in names}
    return tuple(sorted(folders | {str(Path(sys.base_prefix, "lib"))}))


def _environment(folder: Path) -> dict[str, str]:
    """A fixed hash seed: an episode that is played again sees the same order of a set."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **one_thread,
    }  # fmt: skip


class _Watch:
    """Reads what the process writes, and kills it at a limit."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, limits: Limits) -> None:
        self._process, self._folder, self._limits = process, folder, limits
        self._written: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._began = time.monotonic()
        self._confined = False

    def outcome(self, ready: int) -> Outcome:
        """Wait for the end. ready: the pipe on which the process says that it is confined; its time begins then."""
        broken = self._follow(ready)
        if broken is not None:
            self._process.kill()
        code = self._process.wait()
        if not self._confined:
            raise InfrastructureError(f"the sandbox cannot confine its process: {self._text('stderr').strip()[-500:]}")
        status = broken or ("failed" if code else "finished")
        return Outcome(status, code, self._text("stdout"), self._text("stderr"), time.monotonic() - self._began)

    def _follow(self, ready: int) -> Status | None:
        """The limit that the process reached, or None: it ended by itself."""
        with selectors.DefaultSelector() as selector:
            for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, name)
            selector.register(ready, selectors.EVENT_READ, "ready")
            while selector.get_map() or self._process.poll() is None:
                for key, _ in selector.select(_LOOK_SECONDS):
                    piece = os.read(key.fd, 65_536)
                    if key.data == "ready":
                        self._confined, self._began = bool(piece), time.monotonic()
                    else:
                        self._written[key.data] += piece
                    if key.data == "ready" or not piece:
                        selector.unregister(key.fileobj)
                if (limit := self._reached()) is not None:
                    return limit
                if not selector.get_map():
                    time.sleep(_LOOK_SECONDS)
        return None

    def _reached(self) -> Status | None:
        if any(len(written) > self._limits.output for written in self._written.values()):
            return "too_much_output"
        if time.monotonic() - self._began > (self._limits.seconds if self._confined else _START_SECONDS):
            return "timed_out"
        entries = size = 0
        for path, _, names in os.walk(self._folder):
            entries += 1 + len(names)
            if entries > self._limits.files or len(os.fsencode(path)) > _LONGEST_PATH:
                return "too_much_disk"
            size += sum(_size(Path(path, name)) for name in names)
        return "too_much_disk" if size + self._deleted() > self._limits.disk else None

    def _deleted(self) -> float:
        """Bytes of files that are deleted and still open. A mapping does not say how large its file is: it is too much.

        The standard input is such a file, and its descriptor is 0.
        """
        process = Path(f"/proc/{self._process.pid}")
        size = 0
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # the process ended meanwhile
            mapped = (process / "maps").read_text(errors="replace")
            if any(line.endswith(" (deleted)") and f" {self._folder}/" in line for line in mapped.splitlines()):
                return float("inf")
            for descriptor in (process / "fd").iterdir():
                found = descriptor.stat()
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and descriptor.name != "0":
                    size += found.st_blocks * 512
        return size

    def _text(self, name: str) -> str:
        return bytes(self._written[name][: self._limits.output]).decode(errors="replace")


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0
