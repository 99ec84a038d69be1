"""What of a cluster's nodes is on this machine: after `down` nothing, and the kernel is as it was."""

import glob
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
    yield from (f"cgroup {each}" for each in cgroups.find(name))
    folders = (cluster, *cluster.parent.glob(f"{glob.escape(cluster.name)}-????????"))  # as `down` renames it first
    yield from (f"folder {each}" for each in folders if each.exists())
    if cgroups.no_cluster_is_recorded():
        left = (cgroups.RECORD.parent, *builder.notes())
        yield from (f"folder {each}" for each in left if each.exists())


def kernel() -> set[str]:
    """Of this machine, the same before and after a cluster: rules and chains of iptables, and settings.

    None of them has a cluster's name.
    """
    saves = [each for each in ("iptables-save", "ip6tables-save") if shutil.which(each)]
    rules = [f"{each}: {rule}" for each in saves for rule in _rules(output(each))]
    settings = (f"{name} is {(cgroups.PROC / name).read_text().strip()}" for name in cgroups.KUBELET_SETTINGS)
    return {*rules, *settings}


def _rules(saved: str) -> Iterator[str]:
    """And chains, without their counters. Not Linux's own chains that accept: listing rules creates these."""
    for line in saved.splitlines():
        if line.startswith("-"):
            yield line
        elif line.startswith(":") and not (chain := line.partition(" [")[0]).endswith(" ACCEPT"):
            yield chain


PLACES = ("/etc", "/opt", "/usr/libexec", "/usr/local", "/var/lib", "/run", "~/.kube")
"""Where Kubernetes' programs keep things by default."""

_DEPTH = 3
"""Down to /etc/cni/net.d/cni.lock, and not to the layers of users' images."""

_OTHERS = {
    *("/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd", "/run/systemd", "/run/udev", "/run/user"),
    *("/var/lib/containerd", "/var/lib/docker", "/run/containerd", "/run/docker"),
}
"""Folders whose files come and go without a cluster. That they are there counts: nodes have some of the same names."""


def files(places: Iterable[str] = PLACES) -> set[str]:
    """Names in folders that are not a cluster's: after one, none that was not there before.

    Not those of which `traces` knows when they have to be gone.
    """
    known = {cgroups.RECORD.parent, builder.NOTES.parent}
    there = (each for place in places if (each := Path(place).expanduser()).exists())
    return {str(name) for place in there for name in _names(place, _DEPTH) if known.isdisjoint((name, *name.parents))}


def _names(path: Path, depth: int) -> Iterator[Path]:
    yield path
    if depth and str(path) not in _OTHERS and path.is_dir() and not path.is_symlink():
        with suppress(OSError):  # gone meanwhile
            for each in path.iterdir():
                yield from _names(each, depth - 1)


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()
