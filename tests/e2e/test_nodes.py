"""Real nodes as far as they go in a second: namespaces, wires, cgroups. Training on them is e2e/scenarios'."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from e2e.cluster import processes
from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import CONTEXT
from e2e.cluster.layout import Layout
from e2e.nodes import agents, builder, cgroups, machine, network, up
from e2e.nodes.__main__ import build_all
from e2e.nodes.machine import Machine, mark, output
from e2e.nodes.traces import traces
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
def test_a_node_makes_nothing_in_the_run_of_its_machine(tmp_path):
    """Of one that has just booted, where nobody has called mount yet."""
    boot = (
        "import sys; from pathlib import Path; from e2e.nodes.machine import Machine;"
        " node = Machine(Path(sys.argv[1]), 0); node.boot(); node.power_off()"
    )
    fresh = ["mount --no-mtab -t tmpfs tmpfs /run", '"$0" -c "$1" "$2"', "ls /run"]
    command = ["sh", "-ec", "; ".join(fresh), sys.executable, boot, str(tmp_path)]
    assert output("unshare", "--mount", "--propagation=private", *command) == ""


def test_programs_of_a_node_keep_what_is_brief_in_what_goes_with_it(tmp_path, monkeypatch):
    """Python takes TMPDIR as Go does, in which containerd is written; its shim asks for XDG_RUNTIME_DIR first."""
    (tmp_path / "logs").mkdir()
    program = "import os, tempfile; print(tempfile.gettempdir() + os.environ['XDG_RUNTIME_DIR'])"
    monkeypatch.setattr(Machine, "inside", lambda _, *command: [*command])
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/0")
    Machine(tmp_path, 0).start("program", [sys.executable, "-c", program])

    told = tmp_path / "logs/node-0-program.log"
    assert eventually(told.read_text) == "/run/run\n"
    assert "tmpfs /run " in machine.INIT.read_text()


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


ACCEPTED = "-A FORWARD -i rlj0 -o rlj0 -j ACCEPT"


@pytest.mark.parametrize(
    ("bridged", "rules", "warned"),
    [
        ("1", "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER", True),
        ("1", f"-P FORWARD DROP\n{ACCEPTED}", False),
        ("1", "-P FORWARD ACCEPT", False),
        ("0", "-P FORWARD DROP", False),
        (None, "-P FORWARD DROP", False),
    ],
)
def test_a_machine_that_may_drop_packets_between_nodes_is_warned_of(
    tmp_path, monkeypatch, capsys, bridged, rules, warned
):
    monkeypatch.setattr(network, "BRIDGED", tmp_path / "bridge-nf-call-iptables")
    monkeypatch.setattr(network, "output", lambda *_: f"{rules}\n")
    if bridged is not None:
        network.BRIDGED.write_text(f"{bridged}\n")
    network.warn_of_dropping("rlj0")

    remedy = "iptables --insert FORWARD --in-interface rlj0 --out-interface rlj0 --jump ACCEPT\n"
    assert capsys.readouterr().err.endswith(remedy) == warned


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


def test_a_cgroup_that_the_kernel_removes_while_others_are_looked_for_is_no_error(tmp_path, monkeypatch):
    made = [tmp_path / each for each in ("cpu/rljob-x", "cpu/rljob-x/rljob-x-pod", "cpu/rljob-y")]
    for cgroup in made:
        cgroup.mkdir(parents=True)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    found = []
    for each in cgroups.find("rljob-"):
        found.append(each)
        if each == made[1]:
            shutil.rmtree(made[0])

    assert sorted(found) == made


def control_files(folder, controllers, given=""):
    """A cgroup of version 2, as far as its controllers go."""
    folder.mkdir()
    (folder / "cgroup.procs").touch()
    (folder / "cgroup.controllers").write_text(f"{controllers}\n")
    (folder / "cgroup.subtree_control").write_text(f"{given}\n")


def test_a_nodes_cgroup_of_version_2_has_the_machines_controllers(tmp_path, monkeypatch):
    """Each cgroup above it must give them to its children; which files the kernel makes are made up here."""
    root, cluster = tmp_path / "cgroup", tmp_path / "cgroup/rljob"
    control_files(root, "cpuset cpu io memory pids rdma", given="memory pids")
    control_files(cluster, "cpuset cpu io memory pids")
    control_files(cluster / "node-0", "cpuset cpu io memory pids")
    monkeypatch.setattr(cgroups, "ROOT", root)
    cgroups.make("rljob/node-0")

    given = [(folder / "cgroup.subtree_control").read_text() for folder in (root, cluster, cluster / "node-0")]
    assert given == ["+cpu +cpuset +io", "+cpu +cpuset +io +memory +pids", "\n"]


def test_a_machine_that_gives_no_controllers_is_told_why(tmp_path, monkeypatch):
    root = tmp_path / "cgroup"
    control_files(root, "cpu memory")
    monkeypatch.setattr(cgroups, "ROOT", root)
    monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(16, "Device or resource busy")))

    with pytest.raises(ClusterError, match=r"\+cpu \+memory to .*subtree_control \(Device or resource busy\)"):
        cgroups.make("rljob/node-0")


def test_cgroups_of_version_1_are_folders_alone(tmp_path, monkeypatch):
    for controller in ("cpu", "memory"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").touch()
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    cgroups.make("rljob/node-0")

    made = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob("*/rljob/**/*"))]
    assert made == ["cpu/rljob/node-0", "memory/rljob/node-0"]


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


def test_a_cluster_that_was_removed_by_hand_keeps_no_settings(kernel, tmp_path):
    cgroups.keep_settings(tmp_path / "first")
    kubelet_starts(kernel)
    (tmp_path / "first").rmdir()
    cgroups.keep_settings(tmp_path / "second")
    cgroups.restore_settings(tmp_path / "second")

    assert panic(kernel) == "0"


def test_a_cluster_that_was_cut_off_before_its_first_node_leaves_no_record(kernel, tmp_path, monkeypatch):
    """As by Ctrl-C while it waits for its images, which somebody else is building."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cgroups.keep_settings(tmp_path / "first")
    kubelet_starts(kernel)

    assert up.down(tmp_path / "second") == [], "of another kind, or of whoever is not root"
    assert cgroups.RECORD.exists()
    assert up.down(tmp_path / "first") == []
    assert panic(kernel) == "0"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("others", [False, True])
def test_buildahs_notes_go_with_the_last_cluster_if_they_are_ours(kernel, tmp_path, monkeypatch, others):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(builder, "NOTES", tmp_path / "containers/cache")
    monkeypatch.setattr(builder, "APART", ("sh", "-c", f"mkdir -p {builder.NOTES}"))
    if others:
        builder.NOTES.mkdir(parents=True)
    builder.number("any")
    for cluster in ("first", "second"):
        (tmp_path / cluster / "nodes/node-0").mkdir(parents=True)
        cgroups.keep_settings(tmp_path / cluster)

    up.down(tmp_path / "first")
    assert builder.NOTES.exists(), "the second one is there"
    assert traces(tmp_path / "other") == []
    cgroups.restore_settings(tmp_path / "second")
    assert traces(tmp_path / "other") == ([] if others else [f"folder {builder.NOTES}"])
    up.down(tmp_path / "second")
    assert (builder.NOTES.exists(), builder.NOTES.parent.exists()) == (others, others)
    assert traces(tmp_path / "other") == []


def test_buildah_keeps_networks_beside_its_images(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builder, "NOTES", tmp_path / "notes")
    monkeypatch.setattr(builder, "APART", ("sh", "-c", 'cat "$CONTAINERS_CONF"'))
    told = tomllib.loads(builder.number("any"))
    assert told == {"network": {"network_config_dir": f"{builder.storage()}/cni"}}


def test_settings_that_were_never_kept_are_left_alone(kernel, tmp_path):
    kubelet_starts(kernel)
    cgroups.restore_settings(tmp_path / "first")

    assert panic(kernel) == "10"


def test_without_root_nothing_is_built_and_that_is_said(monkeypatch, capsys):
    monkeypatch.delenv(CONTEXT, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    build_all()
    assert capsys.readouterr().err == "nothing is built: real nodes need root, for namespaces, mounts and cgroups\n"


def test_for_another_cluster_nothing_is_built(monkeypatch, capsys):
    monkeypatch.setenv(CONTEXT, "kind")

    build_all()
    assert capsys.readouterr().err == "nothing is built: E2E_KUBECONTEXT names a cluster, kind\n"


def _state(process):
    """T is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_of_a_node_that_has_ended_is_started_again_until_the_node_is_ready(cluster, monkeypatch):
    """As the kubelet where containerd answers and is not quite ready."""
    started = []
    monkeypatch.setattr(agents, "start", lambda _, node: started.append(node.name))
    answers = iter([ClusterError("no such node"), None, ClusterError("it is not ready"), None])

    def kubectl(*_):
        if error := next(answers):
            raise error

    monkeypatch.setattr(Access, "kubectl", kubectl)
    up.wait_until_ready(Layout(cluster, {}), Access(), [Machine(cluster, 0)])
    assert started == ["node-0", "node-0"]


def test_a_node_that_does_not_get_ready_shows_the_end_of_its_log(cluster, monkeypatch):
    monkeypatch.setattr(up, "READY_SECONDS", 0)
    (cluster / "logs/node-0-kubelet.log").write_text("the server is not initialized yet\n")

    def kubectl(*_):
        raise ClusterError("timed out")

    monkeypatch.setattr(Access, "kubectl", kubectl)
    with pytest.raises(ClusterError, match=r"(?s)^timed out\nthe end of .*the server is not initialized yet$"):
        up.wait_until_ready(Layout(cluster, {}), Access(), [Machine(cluster, 0)])
