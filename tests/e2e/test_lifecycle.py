"""A cluster is brought up and taken down, by command and by tests, and leaves no trace, also after a crash."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from e2e.cluster import processes
from e2e.cluster.components import COMPONENTS
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import HOST, make
from e2e.cluster.plane import EVERY, LISTENERS, Plane
from e2e.nodes.traces import files
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.slow

USER = """
import sys
from pathlib import Path
from e2e.cluster.sharing import shared
with shared(Path(sys.argv[1])):
    print("uses it", flush=True)
    sys.stdin.read()
"""


def command(*arguments, folder):
    return [sys.executable, "-m", "e2e.cluster", *arguments, f"--dir={folder}"]


def run(*arguments, folder):
    return subprocess.run(command(*arguments, folder=folder), capture_output=True, text=True, check=True).stdout


def start_user(folder):
    """A process that uses the cluster until its input ends."""
    user = [sys.executable, "-c", USER, str(folder)]
    return subprocess.Popen(user, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def listens(port):
    with closing(socket.socket()) as client:
        return client.connect_ex((HOST, port)) == 0


def leaves_nothing(plane, ports):
    return not plane.folder.exists() and not processes.find(plane.folder) and not any(map(listens, ports))


@pytest.fixture
def folder(tmp_path):
    folder, there = tmp_path / "cluster", files()
    yield folder
    Plane(folder).down()
    assert files() - there == set()


def test_a_cluster_outlives_its_command_and_a_crash_but_not_its_last_user(folder):
    plane = Plane(folder)
    out = run("up", folder=folder)
    assert out.startswith(f"started {', '.join(COMPONENTS)} in ")
    assert f"\nexport KUBECONFIG={folder}/kubeconfig\n" in out
    assert plane.running == list(COMPONENTS)
    ports = [plane.layout.ports[name] for each in COMPONENTS.values() for name in each.listeners]
    assert all(map(listens, ports))
    plane.access.kubectl("create", "configmap", "kept")
    assert run("up", folder=folder).startswith("the cluster is already up\n")

    for (process,) in processes.find(folder).values():
        os.kill(process, signal.SIGKILL)
    eventually(lambda: not plane.running)
    assert run("up", folder=folder).startswith("started etcd, ")
    assert plane.access.kubectl("get", "configmap", "kept", "--output=name") == "configmap/kept\n"

    with start_user(folder) as first, start_user(folder) as second:
        assert first.stdout.readline() == second.stdout.readline() == "uses it\n"
        first.stdin.close()
        first.wait()
        assert plane.running == list(COMPONENTS)
        second.kill()
    eventually(lambda: leaves_nothing(plane, ports))


def test_a_user_that_is_killed_while_it_starts_leaves_nothing(folder):
    with start_user(folder) as user:
        eventually(lambda: "etcd" in Plane(folder).running)
        ports = Plane(folder).layout.ports.values()
        user.kill()
    eventually(lambda: leaves_nothing(Plane(folder), ports))


def test_a_cluster_that_runs_gets_no_gang_scheduler_beside_its_own(folder):
    folder.mkdir()
    make(folder, LISTENERS, gang="native")
    with pytest.raises(ClusterError, match="lacks volcano: take it down first"):
        Plane(folder).up(gang="volcano")


def test_a_cluster_that_runs_gets_kueue_and_keeps_it(folder):
    plane = Plane(folder)
    run("up", folder=folder)
    assert run("up", "--kueue", folder=folder).startswith("started kueue in ")
    ports = [plane.layout.ports[port] for name in plane.running for port in EVERY[name].listeners]
    assert all(map(listens, ports))
    plane.stop("kueue", grace=0)
    assert run("up", folder=folder).startswith("started kueue in ")
    assert run("down", folder=folder) == "the cluster is down\n"
    assert leaves_nothing(plane, ports)
