"""Closed forms of attention: what it computes, and what it moves where nothing but a tile stays in the caches.

docs/explanation/attention.md derives them.
"""

from __future__ import annotations

from math import ceil, prod

from hwsim.kernels.attention.naive import matrix_format
from hwsim.kernels.attention.room import scratch_bytes
from hwsim.kernels.attention.shape import AttentionShape
from hwsim.kernels.kernel import Formula
from hwsim.numerics.format import Format
from hwsim.spec.ops.attention import AttentionSchedule
from hwsim.trace.nest import Size

MATRIX_READS = {"plain": 6, "rows": 4, "online": 5}
MATRIX_WRITES = {"plain": 3, "rows": 2, "online": 2}
"""How often the elements of S and P come from memory and go there.

Plain: S is allocated, read for the maximum and again for the exponentials; P is allocated, read for the division and
again for P V. Rows: neither is read again while its rows are worked on. Online: S is read for maximum and sum, and
again for the result; P is allocated, and read for P V.
"""


def key_passes(shape: AttentionShape, br: int) -> int:
    """Keys that all tiles of queries of one head go through."""
    return sum(
        min(shape.keys, start + br + shape.offset) if shape.causal else shape.keys
        for start in range(0, shape.queries, br)
    )


def streamed_elements(shape: AttentionShape, schedule: AttentionSchedule, br: int) -> tuple[int, int]:
    """Elements read from memory and written to it when neither K and V nor S fit a cache, but a tile does.

    A written element is read too, since a write-back cache brings its line in first.
    """
    groups, heads = shape.batch * shape.kv_heads, shape.batch * shape.heads
    passes = key_passes(shape, br) if schedule.variant == "fused" else shape.keys * -(-shape.queries // br)
    rows = prod(shape.q_shape)
    reads, writes = 2 * rows + 2 * groups * passes * shape.d, rows
    if schedule.variant == "naive":
        matrix, how = heads * shape.queries * shape.keys, schedule.softmax or "plain"
        reads += MATRIX_READS[how] * matrix
        writes += MATRIX_WRITES[how] * matrix
    return reads, writes


def attention_formulas(
    shape: AttentionShape, schedule: AttentionSchedule, br: int, bc: int, fmt: Format
) -> tuple[Formula, ...]:
    """Traffic with main memory once K and V are too large for the last cache."""
    reads, writes = (count * fmt.element_bytes for count in streamed_elements(shape, schedule, br))
    read, written = "Q + O + (K + V)·⌈queries/br⌉", "O"
    if schedule.variant == "fused":
        reads += scratch_bytes(shape, fmt, br, bc)
        read = "Q + O + (seen parts of K + V)·⌈queries/br⌉ + tile" if shape.causal else f"{read} + tile"
    else:
        how = schedule.softmax or "plain"
        read, written = f"{read} + {MATRIX_READS[how]}·S", f"{written} + {MATRIX_WRITES[how]}·S"
        wider = matrix_format(fmt).element_bytes - fmt.element_bytes  # S and P of a narrow format are kept wide
        matrix = shape.batch * shape.heads * shape.queries * shape.keys
        reads += MATRIX_READS[how] * matrix * wider
        writes += MATRIX_WRITES[how] * matrix * wider
    return (
        _bytes("bytes from main memory, K and V larger than the caches", read, reads, "dram.bytes_read"),
        _bytes("bytes to main memory, all results written back", written, writes, "dram.bytes_written"),
    )


def _bytes(name: str, expression: str, value: Size, compare: str) -> Formula:
    return Formula(name, expression, ceil(value), "B", compare)
