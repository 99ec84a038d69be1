"""Real nodes as far as they go in a second: namespaces, wires, cgroups. Training on them is e2e/scenarios'."""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import processes
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import CONTEXT
from e2e.cluster.progress import shown
from e2e.nodes import cgroups, machine, network, packages
from e2e.nodes.__main__ import build_all
from e2e.nodes.machine import Machine, mark, output
from tests.e2e.waiting import eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and cgroups of a node need root")


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "cluster"
    (folder / "logs").mkdir(parents=True)
    yield folder
    for each in machine.machines(folder):
        each.power_off()
    network.remove_bridge(folder)


@needs_root
def test_a_node_has_a_name_and_folders_of_its_own(cluster):
    node = Machine(cluster, 1)
    node.boot()
    node.run("touch", "/var/lib/here", "/run/here")

    assert node.run("cat", "/proc/sys/kernel/hostname") == "node-1\n"
    assert [each.name for each in (node.folder / "lib").iterdir()] == ["here"]
    assert not Path("/var/lib/here").exists()
    assert not Path("/run/here").exists()


@needs_root
def test_nothing_of_a_node_outlives_its_first_process(cluster):
    node = Machine(cluster, 0)
    node.boot()
    node.start("frozen", ["bash", "-c", "mount -t tmpfs tmpfs /var/lib; kill -STOP $$"])
    eventually(lambda: {"T"} == {_state(process) for process in processes.find(cluster).get("node-0/frozen", [])})
    node.power_off()

    assert (node.init, processes.find(cluster)) == (None, {})
    assert str(cluster) not in Path("/proc/mounts").read_text()
    with pytest.raises(ClusterError, match="node-0 is off"):
        node.run("true")


@needs_root
@pytest.mark.skipif(shutil.which("iptables") is None, reason="nodes need iptables")
def test_two_nodes_reach_this_machine_and_leave_no_wire(cluster):
    address = network.free_address()
    network.make_bridge(cluster, address)
    nodes = [Machine(cluster, number) for number in range(2)]
    for node in nodes:
        network.plug(node, node.boot(), address)
    assert network.free_address() != address

    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        for node in nodes:
            node.run("bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}")
    assert network.node_address(address, 1) in nodes[0].run("ip", "route")
    for node in nodes:
        node.power_off()
    network.remove_bridge(cluster)

    def left():
        links = json.loads(output("ip", "-json", "link"))
        return [link["ifname"] for link in links if link["ifname"].startswith(mark(cluster))]

    eventually(lambda: not left())  # the kernel takes a dead node's wire down a moment later


@needs_root
def test_a_nodes_cgroup_goes_with_its_children():
    name = f"rljob-test-{os.getpid()}"
    cgroups.make(f"{name}/node-0")
    made = subprocess.run(["find", "/sys/fs/cgroup", "-name", name], capture_output=True, text=True, check=True)
    for hierarchy in made.stdout.split():
        Path(hierarchy, "node-0/pod").mkdir()
    cgroups.remove(name)

    assert made.stdout
    assert not [each for each in made.stdout.split() if Path(each).exists()]


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    with pytest.raises(ClusterError, match=r"real nodes need containerd, runc, .*: install them with your system"):
        packages.ensure()


def test_without_root_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(ClusterError, match="real nodes need root"):
        packages.ensure()


def test_without_root_nothing_is_built_and_that_is_said(monkeypatch, capsys):
    monkeypatch.delenv(CONTEXT, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    build_all()
    assert capsys.readouterr().err == "nothing is built: real nodes need root, for namespaces, mounts and cgroups\n"


def test_for_another_cluster_nothing_is_built(monkeypatch, capsys):
    monkeypatch.setenv(CONTEXT, "kind")

    build_all()
    assert capsys.readouterr().err == "nothing is built: E2E_KUBECONTEXT names a cluster, kind\n"


def test_what_takes_long_is_shown_until_it_is_over(capsys):
    with shown("building an image"):
        pass
    assert capsys.readouterr().err == "building an image: 0 s\nbuilding an image: done after 0 s\n"


def test_what_fails_is_not_called_done(capsys):
    with pytest.raises(ClusterError, match="no space"), shown("building an image"):
        raise ClusterError("no space")
    assert capsys.readouterr().err == "building an image: 0 s\n"


def _state(process):
    """T is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
