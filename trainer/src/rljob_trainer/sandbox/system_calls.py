"""Which system calls sandboxed code may use, as a seccomp filter that libseccomp compiles."""

import errno
import os
import tempfile
from functools import cache
from typing import Any

from rljob_trainer.errors import InfrastructureError

_FILES = (
    "access", "chdir", "close", "close_range", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fchdir",
    "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "getcwd", "getdents",
    "getdents64", "lseek", "lstat", "newfstatat", "pipe", "pipe2", "pread64",
    "preadv", "pwrite64", "pwritev", "read", "readlink", "readlinkat", "readv", "rename", "renameat", "renameat2",
    "rmdir", "sendfile", "stat", "statfs", "statx", "unlink", "unlinkat", "write", "writev",
)  # fmt: skip
"""Landlock decides which files. It does not guard modes, owners and times, so no call that changes them is here. Before
Linux 6.2 it does not guard truncate either."""

_OPENING = {"open": 1, "openat": 2}
"""Number of the argument with the flags. O_TRUNC without a right to write is refused: Linux truncates the file, and
Landlock before Linux 6.2 asks for the right to read alone."""

_MAKING_FOLDERS = {"mkdir": 1, "mkdirat": 2}
"""Number of the argument with the mode, which has to let the owner in: the parent counts what a folder holds. So there
is no umask."""

_DESCRIPTOR_REQUESTS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
"""F_DUPFD to F_SETLKW and F_DUPFD_CLOEXEC of linux/fcntl.h. Not F_SETOWN and F_SETSIG: with O_ASYNC on a pipe they send
any signal to any process."""

_MEMORY = ("brk", "madvise", "mincore", "mmap", "mprotect", "mremap", "munmap")
"""RLIMIT_AS counts all of these; memfd_create, shmget and mlock are left out."""

_ITSELF = (
    "alarm", "arch_prctl", "clock_getres", "clock_gettime", "clock_nanosleep", "exit", "exit_group", "futex", "getegid",
    "geteuid", "getgid", "getgroups", "getitimer", "getpgrp", "getpid", "getppid", "getrandom", "getresgid",
    "getresuid", "getrlimit", "getrusage", "gettid", "gettimeofday", "getuid", "membarrier", "nanosleep", "pause",
    "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend",
    "sched_getaffinity", "sched_yield", "set_robust_list", "set_tid_address", "setitimer", "sigaltstack", "sysinfo",
    "time", "times", "uname",
)  # fmt: skip
"""Nothing that makes or reaches another process: no clone, execve, kill, ptrace."""

_WAITING = (
    "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2", "poll", "ppoll", "pselect6", "select",
)  # fmt: skip
"""No io_uring, which opens sockets past a filter."""

_TERMINAL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX of asm-generic/ioctls.h: what Python asks of its files."""


@cache
def compiled_filter() -> bytes:
    """The filter as instructions of classic BPF (struct sock_filter, 8 bytes each). Any other call fails with EPERM.

    Raises:
        InfrastructureError: libseccomp is missing.
    """
    seccomp = _library()
    rules = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.EPERM))
    for name in (*_FILES, *_MEMORY, *_ITSELF, *_WAITING):
        if _exists(seccomp, name):
            rules.add_rule(seccomp.ALLOW, name)
    for name, flags in _OPENING.items():
        if _exists(seccomp, name):
            for mask, value in ((os.O_TRUNC, 0), (os.O_ACCMODE, os.O_WRONLY), (os.O_ACCMODE, os.O_RDWR)):
                rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(flags, seccomp.MASKED_EQ, mask, value))
    for name, mode in _MAKING_FOLDERS.items():
        if _exists(seccomp, name):
            rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(mode, seccomp.MASKED_EQ, 0o700, 0o700))
    for request in _DESCRIPTOR_REQUESTS:
        rules.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, request))
    for request in _TERMINAL_REQUESTS:
        rules.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, seccomp.EQ, request))
    rules.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(2, seccomp.EQ, 0))  # reads a limit, sets none
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _library() -> Any:
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: the wheel is there, libseccomp.so is not
        message = f"the sandbox needs libseccomp ({error}); install the system's package libseccomp2"
        raise InfrastructureError(message) from error
    return pyseccomp


def _exists(seccomp: Any, name: str) -> bool:
    """Whether this architecture has the call: arm64 has no `open`."""
    try:
        return bool(seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0)
    except ValueError:
        return False
