"""On which of Ray's nodes a job's workers live: each rank on its node, each engine beside its ranks, none on the head.

    head pod        driver, agent
    worker pod 0    rank-0 rank-1   engine-0 engine-1   rewards
    worker pod 1    rank-2 rank-3   engine-2 engine-3

Ray alone would send a worker that asks for no GPU anywhere, also to the head. On one machine there is no choice.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rljob_api import ResolvedSpec
from rljob_trainer.errors import InfrastructureError

NODES_SECONDS = 120.0
"""How long worker pods may take to join a Ray cluster whose head is there."""

SURPLUS_SECONDS = 60.0
"""How long to wait where Ray counts more nodes than the job has: for a quarter of a minute, or longer where a machine
is gone, it believes that a worker pod lives which has died, and what is sent there dies too."""

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Placement:
    """nodes: Ray's numbers of the nodes that train, in the order of their ranks; empty where there is but one."""

    nodes: tuple[str, ...] = ()
    ranks_per_node: int = 1

    def of_rank(self, rank: int) -> str:
        """Its node; empty where there is but one."""
        return self.nodes[rank // self.ranks_per_node] if self.nodes else ""


def options(node: str) -> Mapping[str, Any]:
    """What Ray is told to start a worker on that node."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)} if node else {}


def find_nodes(spec: ResolvedSpec) -> Placement:
    """The nodes of a job whose Ray cluster is there. Raises InfrastructureError where some do not join it in time."""
    wanted, begin = spec.cluster.nodes, time.monotonic()
    while len(found := _able(ray.nodes())) != wanted:
        waited = time.monotonic() - begin
        if len(found) > wanted and waited > SURPLUS_SECONDS:
            break
        if waited > NODES_SECONDS:
            raise InfrastructureError(
                f"{len(found)} of {wanted} worker nodes are part of the Ray cluster after {NODES_SECONDS:.0f} s"
            )
        time.sleep(_LOOK_SECONDS)
    if len(ray.nodes()) == 1:
        return Placement()
    return Placement(tuple(found[:wanted]), spec.cluster.ranks_per_node)


def _able(nodes: list[dict[str, Any]]) -> list[str]:
    """Those that train: the head of a cluster of pods has neither a CPU nor a GPU to give. Equal for every driver."""
    able = [node for node in nodes if node["Alive"] and any(node["Resources"].get(kind) for kind in ("CPU", "GPU"))]
    return sorted(str(node["NodeID"]) for node in able)
