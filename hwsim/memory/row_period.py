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
from dataclasses import dataclass
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from hwsim.jit import compiled, inlined
from hwsim.memory.dram import BANK, BURST, CHANNEL, COUNT, OPEN_PAGE, RANK, ROW, SHIFT, SHIFTS, WEIGHT, Dram
from hwsim.trace.nest import KIND, LINE_SHIFT, U0, U1

_NEVER = 1 << 60
"""The step of a bank that no request has come to."""
_TAKEN = -2
"""Instead of the row that was open at first: a request has come."""
_MOST_PIECES = 1 << 22
"""Pieces of periods that hits are kept for; for more, the stream is replayed."""


@dataclass(frozen=True, eq=False)
class RowRounds:
    """What the requests of each piece of each period find, over all rounds."""

    periods: int
    """P: periods in a round."""
    requests: NDArray[np.int64]
    writes: NDArray[np.int64]
    """Of each piece of a period."""
    hits: NDArray[np.int64]
    """By period of a round and piece: those that every round but the first has."""
    meetings: NDArray[np.int64]
    """By round, period and piece: those that one round alone has; of the first round, how many more than `hits`."""
    closed: NDArray[np.int64]
    """By period and piece: requests of the first round that find no row open."""

    def count(self, dram: Dram, start: int, last: int, pieces: slice, grain: int) -> None:
        """Count some pieces of the periods `start` … `last`, from 1."""
        if start == last:
            turn, place = divmod(start - 1, self.periods)
            found = int(self.hits[place, pieces].sum() + self.meetings[turn, place, pieces].sum())
            closed = int(self.closed[place, pieces].sum()) if turn == 0 else 0
        else:
            turns, places = np.divmod(np.arange(start - 1, last), self.periods)
            found = int(self.hits[places, pieces].sum() + self.meetings[turns, places, pieces].sum())
            closed = int(self.closed[places[turns == 0], pieces].sum())
        periods = last - start + 1
        requests, writes = periods * int(self.requests[pieces].sum()), periods * int(self.writes[pieces].sum())
        reads = requests - writes
        counted = (reads, writes, reads * grain, writes * grain, found, closed, requests - found - closed)
        dram.counts[:] += np.array(counted, np.uint64)  # in the order of the columns


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
    The rows that are open after the last period are open from now on.
    """
    geometry = dram.geometry
    if not (geometry[SHIFTS] and geometry[OPEN_PAGE] and geometry[BURST] == grain):
        return None
    below = 1 << int(geometry[ROW + SHIFT])
    length = lcm(*(below // gcd(below, int(moved)) for moved in tensors[2]))
    rounds = -(-periods // length)
    pieces = len(cuts) - 1
    if rounds < 2 or rounds * length * pieces > _MOST_PIECES:
        return None
    hits, closed = np.zeros((2, length, pieces), np.int64)
    meetings = np.zeros((rounds, length, pieces), np.int64)
    writes = np.zeros(pieces, np.int64)
    edges = np.asarray(cuts, np.int64)

    def last_rows(last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each bank, after that period of the first round, or in the round before where it has not come there yet;
        and by how much it moves in a round."""
        rows, steps = np.zeros(len(dram.open_rows), np.int64), np.full(len(dram.open_rows), _NEVER, np.int64)
        _last_rows(tap, geometry, *tensors, length, last, rows, steps)
        return rows, steps

    rows, steps = last_rows(length)
    before = dram.open_rows.copy()
    _meet(tap, edges, geometry, *tensors, hits, meetings, writes, closed, before, rows - steps, steps)
    rows, steps = last_rows(periods - (rounds - 1) * length)
    dram.open_rows[:] = np.where(steps == _NEVER, dram.open_rows, rows + (rounds - 1) * steps)
    return RowRounds(length, np.diff(edges), writes, hits, meetings, closed)


@inlined
def _place(geometry, line):  # type: ignore[no-untyped-def]
    """The bank of a line."""
    channel = (line >> geometry[CHANNEL + SHIFT]) & (geometry[CHANNEL + COUNT] - 1)
    rank = (line >> geometry[RANK + SHIFT]) & (geometry[RANK + COUNT] - 1)
    bank = (line >> geometry[BANK + SHIFT]) & (geometry[BANK + COUNT] - 1)
    return channel * geometry[CHANNEL + WEIGHT] + rank * geometry[RANK + WEIGHT] + bank * geometry[BANK + WEIGHT]


@inlined
def _step(line, first, end, moved):  # type: ignore[no-untyped-def]
    """By how much a period moves a line."""
    step = np.int64(0)
    for tensor in range(len(first)):
        if first[tensor] <= line < end[tensor]:
            step = moved[tensor]
    return step


@compiled
def _last_rows(tap, geometry, first, end, moved, periods, last, rows, steps):  # type: ignore[no-untyped-def]
    """Found from the end on, so that one period is enough where it comes to every bank."""
    shift = geometry[ROW + SHIFT]
    left = len(rows)
    for back in range(periods):
        period, before = last - back, np.int64(0)
        if period <= 0:
            period, before = period + periods, np.int64(1)
        for number in range(len(tap) - 1, -1, -1):
            line = np.int64(tap[number] >> LINE_SHIFT)
            step = _step(line, first, end, moved)
            line += period * step
            bank = _place(geometry, line)
            if steps[bank] == _NEVER:
                steps[bank] = (step * periods) >> shift
                rows[bank] = (line >> shift) - before * steps[bank]
                left -= 1
                if left == 0:
                    return


@compiled
def _meet(tap, cuts, geometry, first, end, moved, hits, meetings, writes, closed, opened, rows, steps):  # type: ignore[no-untyped-def]
    """Go through the first round. Each request finds the row of the request before it in its bank: in the first round,
    in all further ones, or in one of them. `opened` are the rows open at first, `rows` those that the round before has
    left, were there one, with their steps."""
    periods, pieces = hits.shape
    rounds = len(meetings)
    shift = geometry[ROW + SHIFT]
    for period in range(periods):
        for piece in range(pieces):
            always, once, none, stores = np.int64(0), np.int64(0), np.int64(0), U0
            for number in range(cuts[piece], cuts[piece + 1]):
                line = np.int64(tap[number] >> LINE_SHIFT)
                stores += ((tap[number] & KIND) + U1) >> U1 & U1
                step = _step(line, first, end, moved)
                line += (period + 1) * step
                step = (step * periods) >> shift
                bank = _place(geometry, line)
                row = line >> shift
                apart, closing = rows[bank] - row, step - steps[bank]
                if closing == 0:
                    always += apart == 0
                else:
                    if closing < 0:
                        apart, closing = -apart, -closing
                    if closing <= apart < rounds * closing and apart % closing == 0:
                        meetings[apart // closing, period, piece] += 1
                if opened[bank] == _TAKEN:
                    once += apart == 0
                else:
                    once += opened[bank] == row
                    none += opened[bank] < 0
                    opened[bank] = _TAKEN
                rows[bank], steps[bank] = row, step
            hits[period, piece] += always
            meetings[0, period, piece] += once - always
            closed[period, piece] += none
            writes[piece] = np.int64(stores)
