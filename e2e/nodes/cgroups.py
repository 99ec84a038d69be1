"""What nodes change of the kernel beyond their namespaces: cgroups, and a few settings of all of the machine."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

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
