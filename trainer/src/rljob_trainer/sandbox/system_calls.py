"""Which system calls sandboxed code may use, as a seccomp filter that libseccomp compiles."""

import errno
import tempfile
from functools import cache
from typing import Any

from rljob_trainer.errors import InfrastructureError

_FILES = (
    "access", "chdir", "close", "close_range", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fchdir",
    "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "getcwd", "getdents",
    "getdents64", "lseek", "lstat", "mkdir", "mkdirat", "newfstatat", "open", "openat", "pipe", "pipe2", "pread64",
    "preadv", "pwrite64", "pwritev", "read", "readlink", "readlinkat", "readv", "rename", "renameat", "renameat2",
    "rmdir", "sendfile", "stat", "statfs", "statx", "truncate", "umask", "unlink", "unlinkat", "write",
    "writev",
)  # fmt: skip
"""Landlock decides which files. It does not guard modes, owners and times, so no call that changes them is here."""

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
