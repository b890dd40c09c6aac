"""Rows of DRAM over the periods of a warped loop: what they find open repeats as well, after a round of periods. Exact.

Where every cache is warped, each period sends the same stream to DRAM, with the lines of tensor r moved by q_r. Whether
a request finds its row open is decided by the request before it in the same bank. Banks repeat after as many lines as
lie below the row in an address; in a round of P periods, P * q_r is a multiple of that for every tensor. So in each
round every request falls into the bank of the round before, and the rows of tensor r have moved by a whole number.
Two requests of tensors that move alike compare as before. Two that move differently meet in the same row in one round
at the most, and a division tells in which.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from hwsim.data import dataclass
from hwsim.jit import compiled, inlined
from hwsim.memory.counters import DRAM_BYTES_READ, DRAM_BYTES_WRITTEN, DRAM_READS, DRAM_WRITES, ROW_CONFLICTS, ROW_HITS
from hwsim.memory.dram import BANK, BURST, CHANNEL, COUNT, OPEN_PAGE, RANK, ROW, SHIFT, SHIFTS, WEIGHT, Dram
from hwsim.trace.event import KIND, LINE_SHIFT, U1

_MOST_PIECES = 1 << 22
"""Pieces of periods that hits are kept for; for more, the stream is replayed."""


@dataclass(frozen=True, eq=False)
class RowRounds:
    """Hits of each piece of each period, from the second round to the last whole one; the first has to be replayed."""

    periods: int
    """P: periods in a round."""
    rounds: int
    """K: rounds after the first."""
    requests: NDArray[np.int64]
    writes: NDArray[np.int64]
    """Of each piece of a period."""
    hits: NDArray[np.int64]
    """By period of a round and piece: those that every round has."""
    meetings: NDArray[np.int64]
    """By round, period and piece: those that one round alone has."""
    last_rows: NDArray[np.int64]
    """The row that each bank has open after the last round; -1 where the stream does not come."""

    @property
    def first(self) -> int:
        """The first period that is counted here, from 1."""
        return self.periods + 1

    @property
    def last(self) -> int:
        return self.periods * (1 + self.rounds)

    def count(self, dram: Dram, start: int, last: int, pieces: slice, grain: int) -> None:
        """Count some pieces of the periods `start` … `last`, which must be among those kept here."""
        numbers = np.arange(start - 1, last)
        turn, place = numbers // self.periods, numbers % self.periods
        found = int(self.hits[place, pieces].sum() + self.meetings[turn - 1, place, pieces].sum())
        requests = len(numbers) * int(self.requests[pieces].sum())
        writes = len(numbers) * int(self.writes[pieces].sum())
        for column, more in (
            (DRAM_READS, requests - writes),
            (DRAM_WRITES, writes),
            (DRAM_BYTES_READ, (requests - writes) * grain),
            (DRAM_BYTES_WRITTEN, writes * grain),
            (ROW_HITS, found),
            (ROW_CONFLICTS, requests - found),
        ):
            dram.counts[column] += np.uint64(more)

    def leave(self, dram: Dram) -> None:
        """The open rows after the last period that is counted here."""
        dram.open_rows[:] = np.where(self.last_rows < 0, dram.open_rows, self.last_rows)


def find_rounds(
    dram: Dram,
    grain: int,
    tap: NDArray[np.uint64],
    cuts: Sequence[int],
    tensors: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    periods: int,
) -> RowRounds | None:
    """What the rows of a recorded period find over so many further periods; None where they have to be replayed.

    The period is cut into pieces at `cuts`; `tensors` are the first and last lines and the moves of a `Period`.
    """
    geometry = dram.geometry
    if not (geometry[SHIFTS] and geometry[OPEN_PAGE] and geometry[BURST] == grain):
        return None
    below = 1 << int(geometry[ROW + SHIFT])
    length = lcm(*(below // gcd(below, int(moved)) for moved in tensors[2]))
    rounds = periods // length - 1
    pieces = len(cuts) - 1
    if rounds < 2 or (rounds + 1) * length * pieces > _MOST_PIECES:
        return None
    hits = np.zeros((length, pieces), np.int64)
    meetings = np.zeros((rounds, length, pieces), np.int64)
    rows = np.full(len(dram.open_rows), -1, np.int64)
    steps = np.zeros(len(dram.open_rows), np.int64)
    edges = np.asarray(cuts, np.int64)
    _meet(tap, edges, geometry, *tensors, rounds, hits, meetings, rows, steps, False)
    ahead = np.where(rows < 0, 0, steps)
    _meet(tap, edges, geometry, *tensors, rounds, hits, meetings, rows - ahead, steps, True)
    writes = ((tap & KIND) + U1) >> U1 & U1
    return RowRounds(
        length,
        rounds,
        np.diff(edges),
        np.array([int(writes[a:b].sum()) for a, b in pairwise(edges)], np.int64),
        hits,
        meetings,
        np.where(rows < 0, rows, rows + rounds * steps),
    )


@inlined
def _place(geometry, line):  # type: ignore[no-untyped-def]
    """The bank of a line."""
    channel = (line >> geometry[CHANNEL + SHIFT]) & (geometry[CHANNEL + COUNT] - 1)
    rank = (line >> geometry[RANK + SHIFT]) & (geometry[RANK + COUNT] - 1)
    bank = (line >> geometry[BANK + SHIFT]) & (geometry[BANK + COUNT] - 1)
    return channel * geometry[CHANNEL + WEIGHT] + rank * geometry[RANK + WEIGHT] + bank * geometry[BANK + WEIGHT]


@compiled
def _meet(tap, cuts, geometry, first, end, moved, rounds, hits, meetings, rows, steps, counted):  # type: ignore[no-untyped-def]
    """Go through the first round, as it would be moved by no round, and leave the last row of each bank and its step.

    `counted`: for each request, the rounds 1 … `rounds` in which it finds the row of the request before it in its bank;
    `rows` are then those that the round before has left.
    """
    periods, pieces = hits.shape
    shift = geometry[ROW + SHIFT]
    for period in range(periods):
        for piece in range(pieces):
            for number in range(cuts[piece], cuts[piece + 1]):
                line = np.int64(tap[number] >> LINE_SHIFT)
                step = np.int64(0)
                for tensor in range(len(first)):
                    if first[tensor] <= line < end[tensor]:
                        step = moved[tensor]
                line += (period + 1) * step
                step = (step * periods) >> shift
                bank = _place(geometry, line)
                row = line >> shift
                if counted:
                    apart, closing = rows[bank] - row, step - steps[bank]
                    if closing == 0:
                        hits[period, piece] += apart == 0
                    elif apart % closing == 0 and 1 <= apart // closing <= rounds:
                        meetings[apart // closing - 1, period, piece] += 1
                rows[bank], steps[bank] = row, step
