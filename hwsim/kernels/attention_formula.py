"""Closed forms of attention: what it computes, and what it moves where nothing but a tile stays in the caches.

docs/explanation/attention.md derives them.
"""

from __future__ import annotations

from math import prod

from hwsim.kernels.attention_room import scratch_bytes
from hwsim.kernels.attention_shape import AttentionShape
from hwsim.kernels.kernel import Formula
from hwsim.numerics.format import Format
from hwsim.spec.ops.attention import AttentionSchedule

MATRIX_READS = {"plain": 6, "rows": 4, "online": 5}
MATRIX_WRITES = {"plain": 3, "rows": 2, "online": 2}
"""How often the elements of S and P come from memory and go there. Plain: S is allocated, read for the maximum and again
for the exponentials; P is allocated, read for the division and again for P V. Rows: neither is read again while its row
is worked on. Online: S is read for maximum and sum and again for the result; P is allocated and read for P V."""


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
    reads, writes = streamed_elements(shape, schedule, br)
    size = fmt.element_bytes
    read, written = "Q + O + (K + V)·⌈queries/br⌉", "O"
    scratch = 0
    if schedule.variant == "fused":
        scratch = scratch_bytes(shape, fmt, br, bc)
        read = "Q + O + (seen parts of K + V)·⌈queries/br⌉ + tile" if shape.causal else f"{read} + tile"
    else:
        how = schedule.softmax or "plain"
        read, written = f"{read} + {MATRIX_READS[how]}·S", f"{written} + {MATRIX_WRITES[how]}·S"
    name = "bytes from main memory, K and V larger than the caches"
    return (
        Formula(name, read, reads * size + scratch, "B", "dram.bytes_read"),
        Formula("bytes to main memory, all results written back", written, writes * size, "B", "dram.bytes_written"),
    )
