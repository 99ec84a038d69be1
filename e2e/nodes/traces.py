"""What of a cluster's nodes is on this machine: after `down` nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster import processes
from e2e.nodes.cgroups import ROOT
from e2e.nodes.machine import mark, output


def traces(cluster: Path) -> list[str]:
    """A line for each process, mount, interface, rule of iptables, cgroup and file. cluster: its folder."""
    return list(_traces(cluster))


def _traces(cluster: Path) -> Iterator[str]:
    name = mark(cluster)
    yield from (f"process {found} {pids}" for found, pids in processes.find(cluster).items())
    yield from (f"mount {each}" for each in _lines("/proc/mounts") if str(cluster) in each or name in each)
    yield from (f"interface {each.name}" for each in Path("/sys/class/net").iterdir() if each.name.startswith(name))
    if shutil.which("iptables-save"):
        yield from (f"rule {each}" for each in output("iptables-save").splitlines() if name in each)
    yield from (f"cgroup {each}" for each in ROOT.glob(f"**/{name}*"))
    if cluster.exists():
        yield f"folder {cluster}"


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()
