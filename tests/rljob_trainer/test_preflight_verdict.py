"""The preflight's formulas, its order within its time, and whom it blames; no process is started."""

import dataclasses
import time

import pytest

from rljob_trainer.preflight import check
from rljob_trainer.preflight.bandwidth import COLLECTIVES, Operation, speed
from rljob_trainer.preflight.measured import Measured, Suspect
from rljob_trainer.preflight.rounds import MIB, Shape, rounds, sizes
from rljob_trainer.preflight.table import lines
from rljob_trainer.preflight.verdict import Verdict, explanation, judge
from tests.rljob_trainer.preflight_members import Told

LIMITS = check.Limits(MIB, 64 * MIB, 4 * MIB, 60.0, minimum=1.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch):
    """Measures with the clock of the members."""

    def run(members: Told, **limits) -> Measured:
        monkeypatch.setattr(time, "monotonic", lambda: members.clock)
        return check.measure(members, members.shape, dataclasses.replace(LIMITS, **limits), 1.0)

    return run


# Worked by hand from nccl-tests' doc/PERFORMANCE.md: 1 GB in 0.01 s is an algorithm bandwidth of 100 GB/s.
@pytest.mark.parametrize(
    ("operation", "ranks", "bus"),
    [
        (Operation.ALL_REDUCE, 2, 100.0),
        (Operation.ALL_REDUCE, 4, 150.0),
        (Operation.ALL_REDUCE, 8, 175.0),
        (Operation.ALL_GATHER, 4, 75.0),
        (Operation.ALL_GATHER, 8, 87.5),
        (Operation.REDUCE_SCATTER, 2, 50.0),
        (Operation.RING, 8, 100.0),
        (Operation.PAIR, 2, 100.0),
    ],
)
def test_bus_bandwidth(operation: Operation, ranks: int, bus: float) -> None:
    found = speed(operation, 10**9, 0.01, ranks)
    assert (found.algorithm, found.bus) == (pytest.approx(100.0), pytest.approx(bus))


@pytest.mark.parametrize("nodes", range(1, 10))
@pytest.mark.parametrize("per_node", [1, 2, 3, 8])
def test_rounds_pair_all_nodes_and_all_ranks_of_a_node_once(nodes: int, per_node: int) -> None:
    shape = Shape(nodes, per_node)
    found = [pair for each in rounds(shape) for pair in each.pairs(shape)]
    same_place = [(a, b) for b in range(shape.ranks) for a in range(b) if (b - a) % per_node == 0]
    same_node = [(a, b) for b in range(shape.ranks) for a in range(b) if shape.node_of(a) == shape.node_of(b)]
    assert sorted(found) == sorted(same_place + same_node)


def test_the_first_rounds_measure_each_node_with_log_n_others() -> None:
    assert [each.node for each in rounds(Shape(8, 1))] == [1, 2, 4, 3, 5, 6, 7]


def test_sizes_double() -> None:
    assert sizes(1, 9) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("collective", "left_out"), [(10.0, None), (0.03, 64 * MIB), (0.0001, 2 * MIB)], ids=["fast", "slow", "very slow"]
)
def test_sizes_that_do_not_fit_the_time_are_left_out(measured, collective: float, left_out: int | None) -> None:
    found = measured(Told(Shape(1, 2), collective=collective))
    assert found.left_out == left_out
    assert {row.operation for row in found.rows if row.nbytes == MIB} == {*COLLECTIVES}


def test_pairs_get_half_of_the_time_and_at_least_one_round(measured) -> None:
    shape = Shape(8, 1)
    slow = {pair: [0.001] for each in rounds(shape) for pair in each.pairs(shape)}
    found = measured(Told(shape, slow), seconds=1.0)
    assert (len(found.pairs), found.pairs_left_out) == (4, 6)


def test_a_slow_pair_is_measured_again_and_its_best_counts(measured) -> None:
    members = Told(Shape(4, 1), {(0, 1): [0.1, 5.0], (2, 3): [0.1, 0.2, 0.3]})
    assert {pair.ranks: round(pair.bus, 6) for pair in measured(members).pairs if pair.bus < 9} == {
        (0, 1): 5.0, (2, 3): 0.3,
    }  # fmt: skip


SLOW = [0.1]


@pytest.mark.parametrize(
    ("shape", "slow", "memory", "nodes"),
    [
        (Shape(4, 1), {}, [], ()),
        (Shape(4, 1), {(0, 2): SLOW, (1, 2): SLOW, (2, 3): SLOW}, [], (2,)),  # all links of one node
        (Shape(4, 1), {(1, 3): SLOW}, [], (1, 3)),  # one link
        (Shape(4, 1), {(1, 3): SLOW, (0, 3): [2.0]}, [], (3,)),  # one link, and one end is slower elsewhere too
        (Shape(2, 1), {(0, 1): SLOW}, [], (0, 1)),
        (Shape(2, 1), {(0, 1): SLOW}, [10, 1], (1,)),  # its host is slow as a whole
        (Shape(2, 2), {(2, 3): SLOW}, [], (1,)),  # two GPUs of a node
        (Shape(2, 2), {(0, 2): SLOW}, [10, 10, 10, 1], (1,)),
        (Shape(6, 1), {(0, 1): SLOW, (0, 2): SLOW, (3, 4): SLOW, (4, 5): SLOW}, [], (0, 4)),
    ],
)
def test_the_fewest_nodes_that_explain_the_slow_pairs(measured, shape, slow, memory, nodes) -> None:
    found = measured(Told(shape, slow, memory=memory))
    verdict = judge(found, shape, 1.0)
    assert sorted(fault.ranks for fault in verdict.faults) == sorted(pair for pair in slow if slow[pair] is SLOW)
    assert sorted(verdict.nodes) == sorted(nodes)
    assert verdict.passed is not bool(nodes)


def test_an_explanation_of_many_faults_is_short(measured) -> None:
    shape = Shape(64, 1)
    found = measured(Told(shape))
    text = explanation(judge(found, shape, 1e6), found, shape, 1e6)
    assert len(text) < 2000 < len(found.pairs)


def test_ranks_that_hang_name_their_pairs(measured) -> None:
    members = Told(Shape(4, 1), hangs=[2])
    found = measured(members)
    verdict = judge(found, members.shape, 0.0)
    assert [(fault.ranks, fault.bus) for fault in verdict.faults] == [((2, 3), 0.0)]
    assert not found.rows
    assert "did not end" in "\n".join(lines(found, members.shape))


def test_a_collective_that_hangs_fails_without_a_pair(measured) -> None:
    members = Told(Shape(4, 1))
    found = measured(members)
    found.hung = members.asked[-1]
    assert judge(found, members.shape, 0.0) == Verdict((), (), hung=True)


@pytest.mark.parametrize(
    ("source", "ranks", "nodes"), [(0, (0, 3), (0, 3)), (None, (3, 3), (3,))], ids=["sent by a rank", "a sum"]
)
def test_wrong_elements_name_who_sent_and_who_received(measured, source, ranks, nodes) -> None:
    members = Told(Shape(4, 1))
    found = measured(members)
    found.suspects = [Suspect(Operation.ALL_GATHER, MIB, 3, source, 2)] * 2
    verdict = judge(found, members.shape, 0.0)
    assert verdict.wrong
    assert [(fault.ranks, fault.wrong, fault.bus) for fault in verdict.faults] == [(ranks, 4, None)]
    assert verdict.nodes == nodes
    assert all(f"pod-{node}" in explanation(verdict, found, members.shape, 0.0) for node in nodes)


@pytest.mark.parametrize(
    ("nodes", "observers", "source", "blamed"),
    [
        (4, range(4), None, ()),  # one wrong part is in every sum
        (4, (0, 1, 3), None, (0, 1, 3)),
        (4, range(4), 2, (2,)),  # what rank 2 sent to others is wrong too
        (1, range(1), None, (0,)),
    ],
)
def test_sums_that_are_wrong_everywhere_blame_no_node_by_themselves(measured, nodes, observers, source, blamed) -> None:
    shape = Shape(nodes, 1)
    found = measured(Told(shape))
    found.suspects = [Suspect(Operation.ALL_REDUCE, MIB, rank, None, 5) for rank in observers]
    found.suspects += [Suspect(Operation.ALL_GATHER, MIB, rank, source, 5) for rank in (0, 1) if source is not None]
    verdict = judge(found, shape, 0.0)
    assert (verdict.wrong, sorted(verdict.nodes)) == (True, sorted(blamed))
    assert ("check the fabric and its software" in explanation(verdict, found, shape, 0.0)) is not bool(blamed)
