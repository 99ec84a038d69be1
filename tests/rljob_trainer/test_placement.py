"""Workers on a Ray cluster of several nodes: a head that trains nothing, and two worker pods, as KubeRay makes them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.workers import placement
from rljob_trainer.workers.placement import Placement, find_nodes, options
from tests.rljob_trainer.checkpoint_support import make_spec


class Somebody:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    """Ray's numbers of the two that live, a moment after a third has died."""
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    sooner = {"health_check_period_ms": 1000}  # of those that died
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": sooner, **small})
    try:
        nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(3)]
        ray.init(address=cluster.address, namespace="placement", log_to_driver=False, logging_level="error")
        dead = nodes.pop()
        cluster.remove_node(dead, allow_graceful=False)
        assert dead.node_id in {node["NodeID"] for node in ray.nodes() if node["Alive"]}, "Ray knows it already"
        yield [node.node_id for node in nodes]
    finally:
        ray.shutdown()
        cluster.shutdown()


def cluster_of(nodes: int, ranks: int):
    return make_spec(cluster={"nodes": nodes, "gpusPerNode": 0, "ranksPerNode": ranks})


@pytest.mark.slow
def test_each_rank_has_the_living_node_that_its_number_says(workers):
    """The first to ask: Ray still counts one that has died."""
    found = find_nodes(cluster_of(nodes=2, ranks=2))

    assert found == Placement(tuple(sorted(workers)), ranks_per_node=2)
    with_cpus = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    assert with_cpus == {*workers}, "it has waited until Ray knew"
    assert [found.of_rank(rank) for rank in range(4)] == [each for each in sorted(workers) for _ in range(2)]


@pytest.mark.slow
def test_a_worker_starts_where_it_is_sent_though_it_asks_for_no_cpu(workers):
    somebody: Any = ray.remote(Somebody)
    there = [somebody.options(num_cpus=0, **options(node)).remote().node.remote() for node in workers]

    assert ray.get(there, timeout=150) == workers


def played(*looks: str) -> Callable[[], list[dict[str, Any]]]:
    """Ray's answers, of which the last one stays: names of nodes, a head's with ! and a dead one's with x."""
    left = [*looks]

    def listed() -> list[dict[str, Any]]:
        names = (left.pop(0) if len(left) > 1 else left[0]).split()
        return [{"NodeID": name, "Alive": "x" not in name, "Resources": {"CPU": "!" not in name}} for name in names]

    return listed


@pytest.mark.parametrize(
    ("nodes", "looks", "found"),
    [
        (2, ["! b a"], ("a", "b")),
        (2, ["! a", "! b a c", "! b a xc"], ("a", "b")),  # one is late, and one is dead before Ray knows
        (1, ["a"], ()),  # a machine alone
        (1, ["! a b"], ("a",)),  # a surplus that stays
    ],
)
def test_the_jobs_nodes_are_those_that_live_and_train(monkeypatch, nodes, looks, found):
    monkeypatch.setattr(placement, "SURPLUS_SECONDS", 1.0)
    assert find_nodes(cluster_of(nodes, ranks=2), played(*looks)).nodes == found


def test_a_worker_pod_that_does_not_join_is_an_infrastructure_error(monkeypatch):
    monkeypatch.setattr(placement, "NODES_SECONDS", 0.1)
    with pytest.raises(InfrastructureError, match=r"2 of 3 worker nodes"):
        find_nodes(cluster_of(nodes=3, ranks=1), played("! a b"))


def test_on_one_machine_there_is_nothing_to_choose():
    assert (Placement().of_rank(1), options(Placement().of_rank(1))) == ("", {})
