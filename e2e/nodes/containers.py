"""Containers of pods, as containerd on their node has them: ended without the kubelet's leave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.nodes.configuration import SOCKET
from e2e.nodes.machine import PREFIX, Machine
from e2e.nodes.store import NAMESPACE


@dataclass(frozen=True, slots=True)
class Container:
    """number: of its node. id: containerd's."""

    number: int
    id: str


def running(pods: Sequence[dict[str, Any]], name: str) -> Iterator[Container]:
    """Containers of that name which run now, by the status of their pods."""
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses", ()):
            if status["name"] == name and "running" in status.get("state", {}):
                node: str = pod["spec"]["nodeName"]
                yield Container(int(node.removeprefix(PREFIX)), status["containerID"].removeprefix("containerd://"))


def kill(cluster: Path, container: Container) -> None:
    """SIGKILL to all of its processes, without preStop and SIGTERM. The pod stays, and gets another container.

    cluster: its folder. Raises ClusterError where the container has ended, or the node is off.
    """
    ctr = ("ctr", f"--address={SOCKET}", f"--namespace={NAMESPACE}")
    Machine(cluster, container.number).run(*ctr, "tasks", "kill", "--all", "--signal=SIGKILL", container.id)
