"""What runs on a node: containerd, kubelet, kube-proxy."""

import time
from collections.abc import Callable

import yaml

from e2e.cluster import certificates, processes
from e2e.cluster.binaries import BINARIES
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, write_kubeconfig, write_secret
from e2e.nodes import cgroups, configuration
from e2e.nodes.machine import Machine, mark
from e2e.nodes.network import node_address

START_SECONDS = 60.0

PROXY_USER = "system:kube-proxy"

LOG_LINES = 15


def start(layout: Layout, machine: Machine) -> None:
    """Start on a node that is plugged in what does not run there, and wait until containerd answers."""
    if not (machine.folder / "kubelet.yaml").exists():
        _configure(layout, machine)
    cgroups.make(cgroup(machine))
    running = processes.find(layout.folder)
    for name, command in _commands(machine).items():
        if f"{machine.name}/{name}" not in running:
            machine.start(name, command)
        if name == "containerd":
            _wait(machine, name, lambda: machine.run("ctr", f"--address={configuration.SOCKET}", "version"))


def cgroup(machine: Machine) -> str:
    return f"{mark(machine.cluster)}/{machine.name}"


def _commands(machine: Machine) -> dict[str, list[str]]:
    folder = machine.folder
    return {
        "containerd": ["containerd", f"--config={folder}/containerd.toml"],
        "kubelet": [
            str(BINARIES["kubelet"].path),
            f"--config={folder}/kubelet.yaml",
            f"--kubeconfig={folder}/kubelet.kubeconfig",
            f"--hostname-override={machine.name}",
            f"--node-ip={yaml.safe_load((folder / 'kubelet.yaml').read_text())['address']}",
        ],
        "kube-proxy": [str(BINARIES["kube-proxy"].path), f"--config={folder}/kube-proxy.yaml"],
    }


def _configure(layout: Layout, machine: Machine) -> None:
    folder, address = machine.folder, node_address(layout.address, machine.number)
    authority = certificates.load(layout.pki("ca.crt").read_bytes(), layout.pki("ca.key").read_bytes())
    user = f"system:node:{machine.name}"
    kubelet = certificates.issue(authority, user, ("system:nodes",), hosts=(machine.name, address))
    write_kubeconfig(folder / "kubelet.kubeconfig", layout, user, kubelet)
    (folder / "kubelet.crt").write_bytes(kubelet.certificate_pem)
    write_secret(folder / "kubelet.key", kubelet.key_pem)
    write_kubeconfig(folder / "proxy.kubeconfig", layout, PROXY_USER, certificates.issue(authority, PROXY_USER))
    (folder / "resolv.conf").write_text("")  # this machine's name servers are none of the pods'
    (folder / "containerd.toml").write_text(configuration.CONTAINERD)
    networks = folder / configuration.CNI_FOLDER.removeprefix("/var/")
    networks.mkdir(parents=True, exist_ok=True)
    (networks / "pods.conflist").write_text(configuration.cni(machine.number))
    proxy = configuration.kube_proxy(f"{folder}/proxy.kubeconfig", machine.name, address)
    (folder / "kube-proxy.yaml").write_text(yaml.safe_dump(proxy))
    settings = configuration.kubelet(address, cgroup(machine), str(layout.pki("ca.crt")), str(folder))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(settings))


def _wait(machine: Machine, name: str, works: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            works()
        except ClusterError:
            if time.monotonic() > deadline:
                silent = f"{name} of {machine.name} is not ready after {START_SECONDS:.0f} s"
                raise ClusterError(f"{silent}\n{end_of_log(machine, name)}") from None
            time.sleep(0.1)
        else:
            return


def end_of_log(machine: Machine, name: str) -> str:
    """Of a program, for a person."""
    log = machine.cluster / "logs" / f"{machine.name}-{name}.log"
    last = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
    return "\n".join([f"the end of {log}:", *last])
