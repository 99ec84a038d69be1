"""What of a cluster's nodes is on this machine: after `down` nothing, and the kernel is as it was."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster import processes
from e2e.nodes import builder, cgroups
from e2e.nodes.machine import mark, output


def traces(cluster: Path) -> list[str]:
    """A line for each process, mount, interface, cgroup and file. cluster: its folder.

    What is every cluster's counts once none is left: the record of the kernel's settings, buildah's notes.
    """
    return list(_traces(cluster))


def _traces(cluster: Path) -> Iterator[str]:
    name = mark(cluster)
    yield from (f"process {found} {pids}" for found, pids in processes.find(cluster).items())
    yield from (f"mount {each}" for each in _lines("/proc/mounts") if str(cluster) in each or name in each)
    yield from (f"interface {each.name}" for each in Path("/sys/class/net").iterdir() if each.name.startswith(name))
    yield from (f"cgroup {each}" for each in cgroups.ROOT.glob(f"**/{name}*"))
    if cluster.exists():
        yield f"folder {cluster}"
    if cgroups.no_cluster_is_recorded():
        left = (cgroups.RECORD.parent, *builder.notes())
        yield from (f"folder {each}" for each in left if each.exists())


def kernel() -> set[str]:
    """Rules of iptables and settings of this machine, which have no cluster's name: the same before and after one."""
    saves = [each for each in ("iptables-save", "ip6tables-save") if shutil.which(each)]
    rules = [f"{each}: {rule}" for each in saves for rule in output(each).splitlines() if rule.startswith("-")]
    settings = (f"{name} is {(cgroups.PROC / name).read_text().strip()}" for name in cgroups.KUBELET_SETTINGS)
    return {*rules, *settings}


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()
