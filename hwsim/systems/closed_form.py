"""Textbook formulas of collectives, for links that nobody shares: a step is α, a byte costs 1/B.

They know nothing of messages and rounds; the simulation has to agree with them to the femtosecond.
"""

from __future__ import annotations

from fractions import Fraction

FEMTOSECONDS = 10**15


def all_reduce_fs(
    algorithm: str, ranks: int, nbytes: int, start_fs: int, step_fs: int, bytes_per_s: Fraction
) -> int | None:
    """The time of an all-reduce; None for algorithms that have no such formula."""
    levels = (ranks - 1).bit_length()
    part = -(-nbytes // ranks)
    if algorithm == "ring":
        return start_fs + 2 * (ranks - 1) * (step_fs + wire_fs(part, bytes_per_s))
    if algorithm == "tree":
        return start_fs + 2 * levels * (step_fs + wire_fs(nbytes, bytes_per_s))
    if algorithm == "one_shot":
        return start_fs + (ranks - 1) * step_fs + wire_fs((ranks - 1) * nbytes, bytes_per_s)
    if algorithm == "two_shot":
        return start_fs + 2 * ((ranks - 1) * step_fs + wire_fs((ranks - 1) * part, bytes_per_s))
    if algorithm == "switch":
        return start_fs + step_fs + 2 * wire_fs(nbytes, bytes_per_s)
    return None


def ring_pass_fs(ranks: int, nbytes: int, start_fs: int, step_fs: int, bytes_per_s: Fraction) -> int:
    """Once around: an all-gather or a reduce-scatter."""
    return start_fs + (ranks - 1) * (step_fs + wire_fs(-(-nbytes // ranks), bytes_per_s))


def hierarchical_fs(
    nodes: int, size: int, nbytes: int, start_fs: int, inside: tuple[int, Fraction], between: tuple[int, Fraction]
) -> int:
    """Once around inside, an all-reduce of a part between, once around inside; `inside`, `between`: step and rate."""
    within = 2 * (size - 1) * (inside[0] + wire_fs(nbytes // size, inside[1]))
    across = 2 * (nodes - 1) * (between[0] + wire_fs(nbytes // (size * nodes), between[1]))
    return start_fs + within + across


def wire_fs(nbytes: int, bytes_per_s: Fraction) -> int:
    """Bytes over a bandwidth, rounded up once."""
    exact = Fraction(nbytes * FEMTOSECONDS) / bytes_per_s
    return -(-exact.numerator // exact.denominator)
