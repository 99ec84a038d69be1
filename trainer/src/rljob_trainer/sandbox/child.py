"""The sandboxed process: python child.py PARENT READY_FD FILTER_FD LIMITS_JSON FILE. Confines itself, then runs FILE.

It imports the standard library alone. It writes one byte to READY_FD once it is confined: what fails before is no fault
of FILE.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TypedDict

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION_OF_LANDLOCK, _PATH_BENEATH = 1, 1
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 1, 38, 22, 2
_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files each version of Landlock knows; linux/landlock.h."""

_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (map a library), read a file, list a folder
_READ_FILE = 1 << 2
_WRITE_FILE = 1 << 1


class ChildLimits(TypedDict):
    """What the parent writes as JSON. readable: folders and files that the code may read."""

    cpu_seconds: int
    memory: int
    file_size: int
    readable: list[str]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


_libc = ctypes.CDLL(None, use_errno=True)


def confine(limits: ChildLimits, folder: str, instructions: bytes) -> None:
    """Give up all but reading `limits.readable` and using `folder`, within the limits. Raises OSError."""
    _checked("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _restrict_files(limits["readable"], folder)
    for what, value in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = _Program(len(instructions) // 8, ctypes.cast(code, ctypes.c_void_p))
    _checked("seccomp", _libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0))


def _restrict_files(readable: list[str], folder: str) -> None:
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, _VERSION_OF_LANDLOCK)
    _checked("Landlock", version)
    every = (1 << _RIGHTS_BY_VERSION.get(version, 16)) - 1
    handled = ctypes.c_uint64(every)
    rules = _libc.syscall(_LANDLOCK_CREATE, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    _checked("Landlock", rules)
    for path in readable:
        _allow(rules, path, _READ if Path(path).is_dir() else _READ_FILE)
    _allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    _allow(rules, folder, every)
    _checked("Landlock", _libc.syscall(_LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    beneath = _Beneath(rights, descriptor)
    _checked("Landlock", _libc.syscall(_LANDLOCK_ADD, rules, _PATH_BENEATH, ctypes.byref(beneath), 0))
    os.close(descriptor)


def _checked(what: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main() -> None:
    """Confine this process and run the file."""
    import json

    parent, ready, rules, limits, file = sys.argv[1:]
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # the parent died before prctl
        return
    with os.fdopen(int(rules), "rb") as given:
        instructions = given.read()
    folder = str(Path(file).parent)
    os.chdir(folder)
    text = Path(file).read_text(encoding="utf-8")
    sys.argv[:] = [file]
    sys.path[0] = folder
    confine(json.loads(limits), folder, instructions)
    os.write(int(ready), b"1")
    os.close(int(ready))
    del sys.modules["__main__"]
    _run(text, file)


def _run(text: str, file: str) -> None:
    import types

    module = types.ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except Exception as error:  # noqa: BLE001  any error of the program ends it as in an interpreter of its own
        frames = error.__traceback__.tb_next if error.__traceback__ else None  # without this file's frame
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


if __name__ == "__main__":
    main()
