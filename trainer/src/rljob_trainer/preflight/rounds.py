"""Which ranks exchange data with which, and at which sizes. Light: no torch.

A round pairs every rank with one partner by XOR. With 2 nodes of 2 ranks:

    Round(0, 1)     0-1  2-3      ranks of one node
    Round(1, 0)     0-2  1-3      nodes, each rank with the rank of the same place

The rounds of all masks measure each pair of ranks of a node, and each pair of nodes. Masks that are powers of two come
first: after log2(N) rounds each node has been measured with log2(N) others, even if the time ends there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """How the ranks are spread: rank = node x per_node + place."""

    nodes: int
    per_node: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def node_of(self, rank: int) -> int:
        return rank // self.per_node


@dataclass(frozen=True, slots=True)
class Round:
    """node, place: XOR masks; one of them is 0."""

    node: int
    place: int

    def partner(self, rank: int, shape: Shape) -> int | None:
        """None if the partner does not exist, because a number is no power of two."""
        node, place = rank // shape.per_node ^ self.node, rank % shape.per_node ^ self.place
        if node >= shape.nodes or place >= shape.per_node:
            return None
        return node * shape.per_node + place

    def pairs(self, shape: Shape) -> list[tuple[int, int]]:
        """(lower rank, higher rank)."""
        partners = ((rank, self.partner(rank, shape)) for rank in range(shape.ranks))
        return [(rank, partner) for rank, partner in partners if partner is not None and rank < partner]


def rounds(shape: Shape) -> list[Round]:
    """Each pair of ranks of a node, and each pair of nodes, in exactly one round."""
    within = [Round(0, mask) for mask in _masks(shape.per_node)]
    between = [Round(mask, 0) for mask in _masks(shape.nodes)]
    return sorted(within + between, key=lambda each: (each.node | each.place).bit_count() > 1)


def _masks(count: int) -> Iterator[int]:
    """All masks that lead from one of `count` numbers to another."""
    return iter(range(1, 1 << (count - 1).bit_length()))


def sizes(smallest: int, largest: int) -> list[int]:
    """Bytes: smallest, twice as many, ... up to largest."""
    found = [smallest]
    while found[-1] * 2 <= largest:
        found.append(found[-1] * 2)
    return found
