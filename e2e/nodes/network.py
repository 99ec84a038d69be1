"""The nodes' wires.

    this machine   bridge    198.18.N.1     the API server listens there
    node-0         eth0      198.18.N.10    pods 10.244.0.0/24
    node-1         eth0      198.18.N.11    pods 10.244.1.0/24

198.18.0.0/15 is set aside for tests of networks (RFC 2544), so no real addresses are hidden. Nodes route pods'
packets to each other; those that leave for the API server get their node's address. This machine forwards nothing.
"""

import ipaddress
import json
import sys
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.nodes.machine import Machine, mark, output

PODS = "10.244.0.0/16"

NETWORKS = [ipaddress.ip_network(f"198.18.{number}.0/24") for number in range(256)]

FIRST_NODE = 10

MOST_NODES = 8

BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""1 where br_netfilter is loaded and this machine's iptables also see what a bridge passes on from wire to wire."""


def free_address() -> str:
    """For a new cluster's bridge."""
    links = json.loads(output("ip", "-json", "-4", "address"))
    used = {ipaddress.ip_address(each["local"]) for link in links for each in link["addr_info"] if "local" in each}
    for network in NETWORKS:
        if not any(address in network for address in used):
            return str(network[1])
    raise ClusterError("198.18.0.0/16 has no network left: take some cluster down")


def node_address(address: str, number: int) -> str:
    """Of a node. address: the bridge's."""
    return str(ipaddress.ip_address(address) - 1 + FIRST_NODE + number)


def pod_network(number: int) -> str:
    return f"10.244.{number}.0/24"


def make_bridge(cluster: Path, address: str) -> None:
    name = mark(cluster)
    if not _exists(name):
        output("ip", "link", "add", name, "type", "bridge")
    output("ip", "address", "replace", f"{address}/24", "dev", name)
    output("ip", "link", "set", name, "up")
    warn_of_dropping(name)


def warn_of_dropping(bridge: str) -> None:
    """Docker has this machine drop what no rule lets pass, which may be what one node sends to another."""
    if not BRIDGED.exists() or BRIDGED.read_text().strip() != "1":
        return
    rules = output("iptables", "--list-rules", "FORWARD").splitlines()
    if "-P FORWARD DROP" in rules and f"-A FORWARD -i {bridge} -o {bridge} -j ACCEPT" not in rules:
        print(
            "iptables may drop packets between the nodes; if pods do not reach each other:"
            f" iptables --insert FORWARD --in-interface {bridge} --out-interface {bridge} --jump ACCEPT",
            file=sys.stderr,
        )


def remove_bridge(cluster: Path) -> None:
    if _exists(name := mark(cluster)):
        output("ip", "link", "delete", name)


def plug(machine: Machine, init: int, address: str) -> None:
    """Connect a node that has just been started. init: its first process."""
    wire = f"{mark(machine.cluster)}n{machine.number}"
    if _exists(wire):  # of the node's former life: the kernel takes its time
        output("ip", "link", "delete", wire)
    output("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", str(init))
    output("ip", "link", "set", wire, "master", mark(machine.cluster), "up")
    machine.run("ip", "address", "add", f"{node_address(address, machine.number)}/24", "dev", "eth0")
    machine.run("ip", "link", "set", "eth0", "up")
    machine.run("ip", "route", "add", "default", "via", address)
    for other in range(MOST_NODES):
        if other != machine.number:
            machine.run("ip", "route", "add", pod_network(other), "via", node_address(address, other))
    leaving = ("--source", PODS, "!", "--destination", PODS)
    machine.run("iptables", "--table", "nat", "--append", "POSTROUTING", *leaving, "--jump", "MASQUERADE")


def _exists(interface: str) -> bool:
    return Path("/sys/class/net", interface).exists()
