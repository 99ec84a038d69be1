"""Place a job's workers on Ray's nodes: each rank on its node, each engine beside its ranks, none on the head.

    head pod        driver, agent
    worker pod 0    rank-0 rank-1   engine-0 engine-1   rewards
    worker pod 1    rank-2 rank-3   engine-2 engine-3

Without a placement, Ray puts a worker without GPUs on any node, also on the head.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rljob_api import ResolvedSpec
from rljob_trainer.errors import InfrastructureError

NODES_SECONDS = 120.0
"""Deadline of worker pods to join the Ray cluster after its head started."""

SURPLUS_SECONDS = 60.0
"""How long to wait if Ray counts more nodes than the job has: it reports a dead pod as alive for 15 s or longer, and
workers placed there die."""

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Placement:
    """nodes: Ray's IDs of the training nodes, in the order of their ranks; empty if there is one node."""

    nodes: tuple[str, ...] = ()
    ranks_per_node: int = 1

    def of_rank(self, rank: int) -> str:
        """The rank's node ID; empty if there is one node."""
        return self.nodes[rank // self.ranks_per_node] if self.nodes else ""


def options(node: str) -> Mapping[str, Any]:
    """Ray options that start a worker on that node."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)} if node else {}


def find_nodes(spec: ResolvedSpec, listed: Callable[[], list[dict[str, Any]]] = ray.nodes) -> Placement:
    """The job's training nodes in the Ray cluster. Raises InfrastructureError if some do not join in time.

    listed: returns Ray's nodes.
    """
    wanted, begin = spec.cluster.nodes, time.monotonic()
    while len(found := _able(listed())) != wanted:
        waited = time.monotonic() - begin
        if len(found) > wanted and waited > SURPLUS_SECONDS:
            break
        if waited > NODES_SECONDS:
            raise InfrastructureError(
                f"{len(found)} of {wanted} worker nodes have joined the Ray cluster after {NODES_SECONDS:.0f} s"
            )
        time.sleep(_LOOK_SECONDS)
    if len(listed()) == 1:
        return Placement()
    return Placement(tuple(found[:wanted]), spec.cluster.ranks_per_node)


def _able(nodes: list[dict[str, Any]]) -> list[str]:
    """Sorted IDs of the training nodes; a head pod offers neither CPUs nor GPUs."""
    able = [node for node in nodes if node["Alive"] and any(node["Resources"].get(kind) for kind in ("CPU", "GPU"))]
    return sorted(str(node["NodeID"]) for node in able)
