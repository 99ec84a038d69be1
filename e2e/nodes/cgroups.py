"""What nodes change of the kernel beyond their namespaces: cgroups, and a few settings of all of the machine."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError

ROOT = Path("/sys/fs/cgroup")

CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")
"""What a kubelet asks for, or gives to pods, where the machine has it."""

KUBELET_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""A kubelet sets them, below /proc/sys."""

PROC = Path("/proc/sys")

RECORD = Path("/run/rljob/kernel.json")
"""One for the machine, as its settings are; like them it does not survive a reboot."""

EMPTY_SECONDS = 10.0

_PERIOD = 100_000
"""Microseconds between two refills of a CPU quota: the kernel's default."""


def make(name: str) -> None:
    """A cgroup in every hierarchy, with room for children. name: its path below the root."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(parents=True, exist_ok=True)
        if hierarchy == ROOT:  # version 2
            _give_controllers(hierarchy / name)


def _give_controllers(cgroup: Path) -> None:
    """From the root down, for a cgroup of version 2 has those controllers that each one above it gives its children.

    What is below the cgroup itself is the kubelet's. The root goes on giving them: others may count on them by now.
    """
    for above in reversed(cgroup.parents):
        if above.is_relative_to(ROOT):
            there = (above / "cgroup.controllers").read_text().split()
            given = (above / "cgroup.subtree_control").read_text().split()
            wanted = [f"+{each}" for each in CONTROLLERS if each in there and each not in given]
            if wanted:
                _write(above / "cgroup.subtree_control", " ".join(wanted))


def _write(control: Path, text: str) -> None:
    try:
        control.write_text(text)
    except OSError as error:
        why = (
            ": the kernel refuses this to a container whose processes are in its topmost cgroup; start nodes on the"
            " machine itself"
        )
        reason = why if control.name == "cgroup.subtree_control" else ""
        raise ClusterError(f"cannot write {text} to {control} ({error.strerror}){reason}") from error


@contextmanager
def limited(name: str, cpus: float) -> Iterator[None]:
    """Meanwhile the processes in a cgroup and below it share so many CPUs. name: its path below the root."""
    if (ROOT / name / "cpu.max").exists():  # version 2
        control, limit, none = ROOT / name / "cpu.max", f"{cpus * _PERIOD:.0f} {_PERIOD}", "max"
    else:
        control, limit, none = ROOT / "cpu" / name / "cpu.cfs_quota_us", f"{cpus * _PERIOD:.0f}", "-1"
    _write(control, limit)
    try:
        yield
    finally:
        _write(control, none)


def processes(name: str) -> Iterator[int]:
    """Those in a cgroup and below it, by their numbers on this machine. name: its path below the root."""
    below = (ROOT if (ROOT / "cgroup.procs").exists() else ROOT / "cpu") / name
    for folder, _, _ in os.walk(below):
        with suppress(OSError):  # it is gone by now
            yield from map(int, Path(folder, "cgroup.procs").read_text().split())


def find(name: str) -> Iterator[Path]:
    """Those whose names begin so, in all hierarchies. Some may be removed meanwhile."""
    for folder, below, _ in os.walk(ROOT):  # which takes a folder that is gone by now for an empty one
        yield from (Path(folder, each) for each in below if each.startswith(name))


def remove(name: str) -> list[Path]:
    """With all below it; returns those that are in use. Processes have ended, but the kernel may not have noticed."""
    deadline = time.monotonic() + EMPTY_SECONDS
    found = [Path(folder) for each in _hierarchies() for folder, _, _ in os.walk(each / name, topdown=False)]
    return [cgroup for cgroup in found if not _removed(cgroup, deadline)]


def _removed(cgroup: Path, deadline: float) -> bool:
    while cgroup.exists():
        try:
            cgroup.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def _hierarchies() -> list[Path]:
    """One where cgroups are of version 2, else one of each controller."""
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return [folder for folder in ROOT.iterdir() if (folder / "cgroup.procs").exists() and not folder.is_symlink()]


def keep_settings(cluster: Path) -> None:
    """Write down what kubelets will change, unless those of another cluster have changed it already."""
    with _recorded() as record:
        if not record:
            record["settings"] = {name: (PROC / name).read_text().strip() for name in KUBELET_SETTINGS}
        record["clusters"] = [*_others(record, cluster), str(cluster)]


def restore_settings(cluster: Path) -> None:
    """Undo what kubelets have changed, with the last cluster that has any."""
    with _recorded() as record:
        record["clusters"] = _others(record, cluster)
        if not record["clusters"]:
            for name, value in record.get("settings", {}).items():
                (PROC / name).write_text(value)
            record.clear()


def _others(record: dict[str, Any], cluster: Path) -> list[str]:
    """A cluster without a folder was removed by hand, and will not be taken down."""
    return [each for each in record.get("clusters", ()) if each != str(cluster) and Path(each).exists()]


def is_recorded(cluster: Path) -> bool:
    """Also before its first node is there. What may not be read is root's, as clusters with nodes are."""
    with suppress(PermissionError), _locked(fcntl.LOCK_SH):
        return not no_cluster_is_recorded() and str(cluster) in json.loads(RECORD.read_text())["clusters"]
    return False


def no_cluster_is_recorded() -> bool:
    """Also where an empty record is left."""
    return not (RECORD.exists() and RECORD.read_text().strip())


@contextmanager
def _recorded() -> Iterator[dict[str, Any]]:
    """The machine's record, locked meanwhile: `settings` by name, and the `clusters` that have changed them.

    An empty one goes, with its folder.
    """
    with _locked(fcntl.LOCK_EX):
        record: dict[str, Any] = {} if no_cluster_is_recorded() else json.loads(RECORD.read_text())
        yield record
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(record))
        if not record:
            RECORD.unlink()
            with suppress(OSError):  # files of other programs are there, too
                RECORD.parent.rmdir()


@contextmanager
def _locked(how: int) -> Iterator[None]:
    """The record, whose folder goes with it: so the lock is the folder's above it, which stays."""
    lock = os.open(RECORD.parent.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)
