"""Which pairs of nodes are slow or wrong, and which nodes are to blame. Light: no torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rljob_trainer.preflight.measured import Measured, Pair
from rljob_trainer.preflight.rounds import Shape

LISTED = 8
"""Faults that an explanation lists; more follow from them."""

CLEARLY = 2.0
"""A node whose host memory is this many times slower than the other one's is to blame for their pair."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Two ranks between which data is wrong or slow. bus: GB/s, 0 if they did not finish; None if it was not measured.

    The two are the same for a sum that one rank received wrong: the sender is then unknown.
    """

    ranks: tuple[int, int]
    bus: float | None
    wrong: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """faults: worst first. nodes: numbers of those to blame, most suspicious first; more than one if it is unclear, and
    none if the faults do not tell nodes apart.

    hung: whether a collective of all ranks did not end, although every pair did.
    """

    faults: tuple[Fault, ...]
    nodes: tuple[int, ...]
    hung: bool = False

    @property
    def passed(self) -> bool:
        return not self.faults and not self.hung

    @property
    def wrong(self) -> bool:
        return any(fault.wrong for fault in self.faults)


def judge(measured: Measured, shape: Shape, minimum: float) -> Verdict:
    """minimum: bus bandwidth of a pair in GB/s; 0 accepts every speed."""
    slow = [Fault(pair.ranks, pair.bus, pair.wrong) for pair in measured.pairs if _is_faulty(pair, minimum)]
    faults = sorted([*slow, *_wrong_collectives(measured)], key=lambda each: (-each.wrong, each.bus or 0.0))
    hung = measured.hung is not None and not faults
    return Verdict(tuple(faults), _to_blame(faults, measured, shape), hung)


def _is_faulty(pair: Pair, minimum: float) -> bool:
    return pair.wrong > 0 or pair.bus < minimum or pair.bus == 0.0


def _wrong_collectives(measured: Measured) -> list[Fault]:
    wrong: Counter[tuple[int, int]] = Counter()
    for each in measured.suspects:
        source = each.observer if each.source is None else each.source
        wrong[min(source, each.observer), max(source, each.observer)] += each.elements
    return [Fault(ranks, None, elements) for ranks, elements in wrong.items()]


def _to_blame(faults: Sequence[Fault], measured: Measured, shape: Shape) -> tuple[int, ...]:
    """The fewest nodes that explain all faults: again and again the one with most of the faults that are left.

    If two have as many, the one that is slower with all others; if there are no others, the one whose host memory is
    clearly slower; else both. Sums that are wrong on every node name none: one wrong part is in all of them, and faulty
    switches or software make every sum wrong.
    """
    sums = {shape.node_of(fault.ranks[0]) for fault in faults if _is_sum(fault)}
    everywhere = shape.nodes > 1 and len(sums) == shape.nodes
    left = [{*map(shape.node_of, fault.ranks)} for fault in faults if not (everywhere and _is_sum(fault))]
    found: list[int] = []
    while left:
        counts = Counter(node for pair in left for node in pair)
        most = max(counts.values())
        tied = sorted(node for node, count in counts.items() if count == most)
        worst = _worst(tied, measured, shape)
        found += worst
        left = [pair for pair in left if not pair & {*worst}]
    return tuple(found)


def _is_sum(fault: Fault) -> bool:
    return fault.ranks[0] == fault.ranks[1]


def _worst(tied: Sequence[int], measured: Measured, shape: Shape) -> list[int]:
    if len(tied) == 1:
        return [*tied]
    speeds, memory = _mean_speeds(measured, shape), _memory(measured, shape)
    slowest = min(tied, key=lambda node: speeds.get(node, 0.0))
    if all(speeds.get(slowest, 0.0) < speeds.get(node, 0.0) for node in tied if node != slowest):
        return [slowest]
    slowest = min(tied, key=lambda node: memory.get(node, 0.0))
    if all(memory.get(slowest, 0.0) * CLEARLY < memory.get(node, 0.0) for node in tied if node != slowest):
        return [slowest]
    return [*tied]


def _mean_speeds(measured: Measured, shape: Shape) -> Mapping[int, float]:
    """Of each node with all others."""
    speeds: dict[int, list[float]] = {}
    for pair in measured.pairs:
        one, other = map(shape.node_of, pair.ranks)
        if one != other:
            speeds.setdefault(one, []).append(pair.bus)
            speeds.setdefault(other, []).append(pair.bus)
    return {node: fmean(each) for node, each in speeds.items()}


def _memory(measured: Measured, shape: Shape) -> Mapping[int, float]:
    """Host memory of each node, GB/s: of its slowest rank."""
    found: dict[int, float] = {}
    for each in measured.health:
        node = shape.node_of(each.rank)
        found[node] = min(found.get(node, each.memory), each.memory)
    return found


def explanation(verdict: Verdict, measured: Measured, shape: Shape, minimum: float) -> str:
    """The faults for a person, one sentence each without a period; "" if the fabric passed."""
    sentences = [_sentence(fault, measured, minimum) for fault in verdict.faults[:LISTED]]
    if len(verdict.faults) > LISTED:
        sentences.append(f"{len(verdict.faults) - LISTED} more pairs")
    if verdict.hung and measured.hung is not None:
        sentences.append(f"{measured.hung.operation} of {measured.hung.nbytes} B over all ranks did not end")
    if verdict.nodes:
        hosts = " and ".join(measured.places[node * shape.per_node].host for node in verdict.nodes[:LISTED])
        sentences.append(f"check {hosts}")
    elif verdict.faults:
        sentences.append("sums are wrong on every node, so none is to blame: check the fabric and its software")
    return "; ".join(sentences)


def _sentence(fault: Fault, measured: Measured, minimum: float) -> str:
    one, other = (f"rank {rank} on {measured.places[rank].host}" for rank in fault.ranks)
    if fault.wrong and _is_sum(fault):
        return f"{one} received {fault.wrong} wrong elements of a sum"
    if fault.wrong:
        return f"{one} and {other} exchanged {fault.wrong} wrong elements"
    if not fault.bus:
        return f"{one} and {other} did not finish an exchange"
    return f"{one} and {other} exchange {fault.bus:.3g} GB/s, below the minimum of {minimum:g} GB/s"
