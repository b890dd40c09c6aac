"""Blocks of different length on equal slots: each slot takes the next block when it becomes free.

Blocks are handed out in groups of equal ones, and slots that become free at the same moment are one entry, so a
million blocks cost as much as there are different lengths.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """So many blocks that take equally long."""

    count: int
    cycles: float


def makespan(groups: Iterable[Group], slots: int) -> float:
    """Cycles until the last block ends, when groups are handed out in the given order."""
    times, counts = [0.0], [slots]
    for group in groups:
        left = group.count
        while left:
            if len(times) == 1 and left >= slots:
                times[0] += group.cycles * (left // slots)
                left %= slots
                continue
            taken = min(counts[0], left)
            _put(times, counts, times[0] + group.cycles, taken)
            counts[0] -= taken
            left -= taken
            if not counts[0]:
                del times[0], counts[0]
    return times[-1]


def _put(times: list[float], counts: list[int], time: float, count: int) -> None:
    """Slots that become free at a time join those that do so already."""
    place = bisect_left(times, time)
    if place < len(times) and times[place] == time:
        counts[place] += count
    else:
        times.insert(place, time)
        counts.insert(place, count)
