"""A collective with real data: the messages of a schedule moved between NumPy arrays.

This is how algorithms are checked, and how work that was split over devices is put together again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hwsim.systems.collective import SWITCH, Schedule, even

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
