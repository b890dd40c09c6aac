"""Collectives as algorithms: who sends which piece to whom, round by round.

A buffer is cut into pieces. A message carries some neighbouring pieces from one rank to another, which adds them to its
own or keeps them. A rank goes into its next round when what it sent and what it was sent in this one has arrived; so an
algorithm is data, which is played on links for its time and on arrays for its answer.

    all_reduce      everybody has a buffer; everybody gets the sum
    reduce_scatter  everybody has a buffer; rank r gets piece r of the sum
    all_gather      rank r has piece r; everybody gets all pieces
    all_to_all      rank r has a piece for everybody; everybody gets the pieces meant for it
    broadcast       rank 0 has a buffer; everybody gets it
    send            rank 0 has a buffer; rank 1 gets it

Played on arrays, the messages of a schedule check an algorithm, and put work together that was split over devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hwsim.engine import seconds_to_fs

SWITCH = -1
"""The rank of a switch that adds and copies by itself."""


@dataclass(frozen=True)
class Message:
    """Pieces `first` to `last` (not included) from one rank to another; `adds` where the target sums them up."""

    source: int
    target: int
    first: int
    last: int
    adds: bool = False


Round = tuple[Message, ...]


@dataclass(frozen=True)
class Schedule:
    """All messages of a collective, and into how many pieces the buffer is cut."""

    ranks: int
    pieces: int
    rounds: tuple[Round, ...]

    def sizes(self, nbytes: int) -> tuple[int, ...]:
        """The bytes of each piece: as equal as whole bytes can be, larger ones first."""
        return even(nbytes, self.pieces)


def even(total: int, parts: int) -> tuple[int, ...]:
    """So many parts of a whole, as equal as whole numbers can be, larger ones first."""
    least, more = divmod(total, parts)
    return tuple(least + (number < more) for number in range(parts))


def _one_each(n: int, piece: Callable[[int], int], adds: bool) -> Round:
    """Everybody sends a piece to its right neighbour."""
    return tuple(Message(i, (i + 1) % n, piece(i), piece(i) + 1, adds) for i in range(n))


def ring_reduce_scatter(n: int) -> Schedule:
    return Schedule(n, n, tuple(_one_each(n, lambda i, k=k: (i - k - 1) % n, True) for k in range(n - 1)))  # type: ignore[misc]


def ring_all_gather(n: int) -> Schedule:
    return Schedule(n, n, tuple(_one_each(n, lambda i, k=k: (i - k) % n, False) for k in range(n - 1)))  # type: ignore[misc]


def ring_all_reduce(n: int) -> Schedule:
    """Reduced on the way round, then handed on: each link carries 2 (n-1) / n of the buffer."""
    return Schedule(n, n, ring_reduce_scatter(n).rounds + ring_all_gather(n).rounds)


def tree_broadcast(n: int) -> Schedule:
    """Those who have it hand it on to as many again in each round: ⌈log2 n⌉ rounds."""
    return Schedule(n, 1, tuple(reversed(_tree_edges(n, lambda child, parent: Message(parent, child, 0, 1)))))


def tree_all_reduce(n: int) -> Schedule:
    """Up a binomial tree, then down again: few rounds, the whole buffer in each."""
    up = _tree_edges(n, lambda child, parent: Message(child, parent, 0, 1, True))
    return Schedule(n, 1, up + tree_broadcast(n).rounds)


def _tree_edges(n: int, message: Callable[[int, int], Message]) -> tuple[Round, ...]:
    rounds, reach = [], 1
    while reach < n:
        rounds.append(tuple(message(i + reach, i) for i in range(0, n - reach, 2 * reach)))
        reach *= 2
    return tuple(rounds)


def one_shot_all_reduce(n: int) -> Schedule:
    """Everybody sends all of it to everybody: one round, n-1 times the bytes."""
    return Schedule(n, 1, (tuple(Message(i, j, 0, 1, True) for i in range(n) for j in range(n) if i != j),))


def direct_reduce_scatter(n: int) -> Schedule:
    return Schedule(n, n, (tuple(Message(i, j, j, j + 1, True) for i in range(n) for j in range(n) if i != j),))


def direct_all_gather(n: int) -> Schedule:
    return Schedule(n, n, (tuple(Message(i, j, i, i + 1) for i in range(n) for j in range(n) if i != j),))


def two_shot_all_reduce(n: int) -> Schedule:
    """Everybody sums up a piece, then everybody fetches all pieces: two rounds, bytes as in a ring."""
    return Schedule(n, n, direct_reduce_scatter(n).rounds + direct_all_gather(n).rounds)


def direct_all_to_all(n: int) -> Schedule:
    """Piece j of rank i goes to rank j, which keeps it as its piece i."""
    return Schedule(n, n, (tuple(Message(i, j, j, j + 1) for i in range(n) for j in range(n) if i != j),))


def switch_all_reduce(n: int) -> Schedule:
    """The switch adds up what all ports send, then copies the sum to all: the buffer once out and once in."""
    up = tuple(Message(i, SWITCH, 0, n, True) for i in range(n))
    down = tuple(Message(SWITCH, i, 0, n) for i in range(n))
    return Schedule(n, n, (up, down))


def send(n: int) -> Schedule:
    return Schedule(n, 1, ((Message(0, 1, 0, 1),),))


def hierarchical_all_reduce(nodes: int, size: int) -> Schedule:
    """Reduced and scattered inside each node, all-reduced between nodes by those of equal place, gathered inside."""
    parts = size * nodes

    def inside(rounds: Sequence[Round]) -> tuple[Round, ...]:
        """The same in every node at once, with pieces of `nodes` parts."""
        return tuple(
            tuple(
                Message(node * size + m.source, node * size + m.target, m.first * nodes, m.last * nodes, m.adds)
                for node in range(nodes)
                for m in each
            )
            for each in rounds
        )

    between = tuple(
        tuple(
            Message(m.source * size + r, m.target * size + r, r * nodes + m.first, r * nodes + m.last, m.adds)
            for r in range(size)
            for m in each
        )
        for each in ring_all_reduce(nodes).rounds
    )
    first, last = inside(ring_reduce_scatter(size).rounds), inside(ring_all_gather(size).rounds)
    return Schedule(nodes * size, parts, first + between + last)


FLAT: dict[tuple[str, str], Callable[[int], Schedule]] = {
    ("ring", "all_reduce"): ring_all_reduce,
    ("ring", "reduce_scatter"): ring_reduce_scatter,
    ("ring", "all_gather"): ring_all_gather,
    ("tree", "all_reduce"): tree_all_reduce,
    ("tree", "broadcast"): tree_broadcast,
    ("one_shot", "all_reduce"): one_shot_all_reduce,
    ("two_shot", "all_reduce"): two_shot_all_reduce,
    ("direct", "reduce_scatter"): direct_reduce_scatter,
    ("direct", "all_gather"): direct_all_gather,
    ("direct", "all_to_all"): direct_all_to_all,
    ("direct", "send"): send,
    ("switch", "all_reduce"): switch_all_reduce,
}
"""By algorithm and collective, for so many ranks."""


def build_schedule(algorithm: str, op: str, ranks: int, nodes: int = 1) -> Schedule | None:
    """The messages of a collective; None where the algorithm cannot do it."""
    if algorithm == "hierarchical":
        fits = op == "all_reduce" and nodes > 1 and ranks % nodes == 0 and ranks > nodes
        return hierarchical_all_reduce(nodes, ranks // nodes) if fits else None
    make = FLAT.get((algorithm, op))
    return make(ranks) if make is not None else None


Array = NDArray[np.generic]


def exchange(schedule: Schedule, op: str, buffers: Sequence[Array]) -> list[Array]:
    """What each rank has when all rounds are over; every rank starts with a flat buffer of its own.

    A round reads what was there before it: messages of one round do not see each other.
    """
    edges = (0, *accumulate(even(buffers[0].size, schedule.pieces)))
    held = [np.array(buffer) for buffer in buffers]
    fresh = [np.array(buffer) for buffer in buffers] if op == "all_to_all" else held
    switch = np.zeros_like(held[0])
    for messages in schedule.rounds:
        before = [buffer.copy() for buffer in held]
        sums = switch.copy()
        for message in messages:
            part = slice(edges[message.first], edges[message.last])
            sent = sums[part] if message.source == SWITCH else before[message.source][part]
            if op == "all_to_all":
                part = slice(edges[message.source], edges[message.source + 1])
            target = switch if message.target == SWITCH else fresh[message.target]
            if message.adds:
                target[part] = target[part] + sent  # type: ignore[operator]
            else:
                target[part] = sent
    return fresh


def pieces_of(buffer: Array, parts: int) -> list[Array]:
    """A flat buffer, cut as schedules cut it."""
    edges = (0, *accumulate(even(buffer.size, parts)))
    return [buffer[first:last] for first, last in pairwise(edges)]


def wire_fs(nbytes: int, bytes_per_s: Fraction) -> int:
    """Bytes over a bandwidth, rounded up once."""
    return seconds_to_fs(nbytes / bytes_per_s)
