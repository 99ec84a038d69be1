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
from e2e.nodes import cgroups, machine, network
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

    assert cgroups.remove(name) == []
    assert made.stdout
    assert not [each for each in made.stdout.split() if Path(each).exists()]


def test_a_cgroup_in_use_is_named_and_the_others_go(tmp_path, monkeypatch):
    for controller in ("cpu", "memory"):
        (tmp_path / controller / "rljob/node-0").mkdir(parents=True)
        (tmp_path / controller / "cgroup.procs").touch()
    (tmp_path / "cpu/rljob/node-0/busy").touch()  # rmdir fails, as with a process
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "EMPTY_SECONDS", 0.1)

    assert cgroups.remove("rljob") == [tmp_path / "cpu/rljob/node-0", tmp_path / "cpu/rljob"]
    assert not (tmp_path / "memory/rljob").exists()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Settings of a machine that is made up: the folder that stands for /proc/sys."""
    for name in cgroups.KUBELET_SETTINGS:
        setting = tmp_path / "proc" / name
        setting.parent.mkdir(parents=True, exist_ok=True)
        setting.write_text("0\n")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "RECORD", tmp_path / "run/kernel.json")
    for cluster in ("first", "second"):
        (tmp_path / cluster).mkdir()
    return tmp_path / "proc"


def kubelet_starts(kernel):
    (kernel / "kernel/panic").write_text("10\n")


def panic(kernel):
    return (kernel / "kernel/panic").read_text().strip()


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_the_kernels_settings_come_back_with_the_last_of_two_clusters(kernel, tmp_path, order):
    for cluster in ("first", "first", "second"):  # `up` is repeated, too
        cgroups.keep_settings(tmp_path / cluster)
        kubelet_starts(kernel)

    cgroups.restore_settings(tmp_path / order[0])
    assert panic(kernel) == "10", "the other cluster's kubelets run"
    cgroups.restore_settings(tmp_path / order[1])
    assert panic(kernel) == "0"
    assert not (tmp_path / "run").exists(), "nothing is left of the record"

    (kernel / "kernel/panic").write_text("5\n")
    cgroups.keep_settings(tmp_path / "first")
    kubelet_starts(kernel)
    cgroups.restore_settings(tmp_path / "first")
    assert panic(kernel) == "5", "what was recorded for earlier clusters is forgotten"


def _state(process):
    """T is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
