"""What nodes change of the kernel beyond their namespaces: cgroups, and a few settings of all of the machine."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

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

EMPTY_SECONDS = 10.0


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
        raise ClusterError(
            f"cannot write {text} to {control} ({error.strerror}): the kernel refuses this to a container whose"
            " processes are in its topmost cgroup; start nodes on the machine itself"
        ) from error


def remove(name: str) -> None:
    """With all below it. Its processes have ended, but the kernel may not have noticed."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            _remove(Path(folder))


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + EMPTY_SECONDS
    while cgroup.exists():
        try:
            cgroup.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _hierarchies() -> list[Path]:
    """One where cgroups are of version 2, else one of each controller."""
    if (ROOT / "cgroup.procs").exists():
        return [ROOT]
    return [folder for folder in ROOT.iterdir() if (folder / "cgroup.procs").exists() and not folder.is_symlink()]


def keep_settings(file: Path) -> None:
    """Write down what kubelets will change, unless that was done before."""
    if not file.exists():
        found = {name: Path("/proc/sys", name).read_text().strip() for name in KUBELET_SETTINGS}
        file.write_text(json.dumps(found))


def restore_settings(file: Path) -> None:
    with suppress(FileNotFoundError):
        for name, value in json.loads(file.read_text()).items():
            Path("/proc/sys", name).write_text(value)
