"""Attention, softmax(Q Kᵀ / √d) V, and its backward pass: with the matrix of scores in memory, or tile by tile.

The indices are those of `hwsim.ops.attention_shape`. `offset` is how far behind its own position a query sees keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, isfinite, prod
from textwrap import indent
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.ops.attention_shape import AttentionShape, HeadLayout, Room, scratch_bytes
from hwsim.ops.norm import in_vectors
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopPlan
from hwsim.program.operation import Measured, Operation, Operator, Parameter, operation, wide_format
from hwsim.program.tiling import Group, LoopCuts
from hwsim.spec.base import Bytes, Extent, ParallelSchedule, Spec

# Statements ----------------------------------------------------------------------------------------------------------

SCORES = """
scores: S[b,g,r,i,j] += Q[b,g,r,i,d] * K[b,g,j,d]
        S[b,g,r,i,j] = where(j <= i + offset, S[b,g,r,i,j] * scale, -inf)
"""
PASSES = """
max:         max[b,g,r,i] max= S[b,g,r,i,j]
exp and sum: P[b,g,r,i,j] = exp(S[b,g,r,i,j] - max[b,g,r,i])
             sum[b,g,r,i] += P[b,g,r,i,j]
divide:      P[b,g,r,i,j] = P[b,g,r,i,j] / sum[b,g,r,i]
"""
ROWS = """
for b by 1:
  for g by 1:
    for r by 1:
      for i by br:
""" + indent(PASSES, "        ")
ONLINE = """
max and sum: before = max[b,g,r,i]
             max[b,g,r,i] max= S[b,g,r,i,j]
             sum[b,g,r,i] = sum[b,g,r,i] * exp(before - max[b,g,r,i]) + exp(S[b,g,r,i,j] - max[b,g,r,i])
normalise:   P[b,g,r,i,j] = exp(S[b,g,r,i,j] - max[b,g,r,i]) / sum[b,g,r,i]
"""
WEIGH = "weigh: O[b,g,r,i,e] += P[b,g,r,i,j] * V[b,g,j,e]"
NAIVE = {how: SCORES + text + WEIGH for how, text in {"plain": PASSES, "rows": ROWS, "online": ONLINE}.items()}

FUSED = """
for b by 1:
  for g by 1:
    for i by br:
      start: sum[b,g,r,i] = 0
             max[b,g,r,i] = -inf
      clear: acc[b,g,r,i,e] = 0
      for j by bc while j <= i + offset:
        scores:      S[b,g,r,i,j] += Q[b,g,r,i,d] * K[b,g,j,d]
                     S[b,g,r,i,j] = where(j <= i + offset, S[b,g,r,i,j] * scale, -inf)
        max:         new_max[b,g,r,i] max= S[b,g,r,i,j]
                     new_max[b,g,r,i] = max(new_max[b,g,r,i], max[b,g,r,i])
        age:         before = max[b,g,r,i]
                     max[b,g,r,i] = new_max[b,g,r,i]
                     shrink[b,g,r,i] = exp(before - new_max[b,g,r,i])
        exp and sum: P[b,g,r,i,j] = exp(S[b,g,r,i,j] - max[b,g,r,i])
                     more[b,g,r,i] += P[b,g,r,i,j]
                     sum[b,g,r,i] = sum[b,g,r,i] * shrink[b,g,r,i] + more[b,g,r,i]
        rescale:     acc[b,g,r,i,e] = acc[b,g,r,i,e] * shrink[b,g,r,i]
        weigh:       acc[b,g,r,i,e] += P[b,g,r,i,j] * V[b,g,j,e]
      finish: O[b,g,r,i,e] = acc[b,g,r,i,e] / sum[b,g,r,i]
"""

GRADIENTS = """
dP:       dS[b,g,r,i,j] += dO[b,g,r,i,d] * V[b,g,j,d]
row sums: D[b,g,r,i] += P[b,g,r,i,j] * dS[b,g,r,i,j]
dS:       dS[b,g,r,i,j] = P[b,g,r,i,j] * (dS[b,g,r,i,j] - D[b,g,r,i]) * scale
dQ:       dQ[b,g,r,i,e] += dS[b,g,r,i,j] * K[b,g,j,e]
dK:       dK[b,g,j,e] += dS[b,g,r,i,j] * Q[b,g,r,i,e]
dV:       dV[b,g,j,e] += P[b,g,r,i,j] * dO[b,g,r,i,e]
"""
RECOMPUTE = (SCORES + PASSES).replace("S[", "P[") + GRADIENTS

FUSED_GRADIENTS = """
row sums: D[b,g,r,i] += dO[b,g,r,i,e] * O[b,g,r,i,e]
clear dQ: sum_dQ[b,g,r,i,e] = 0
for b by 1:
  for g by 1:
    for j by bc:
      clear dK: sum_dK[b,g,j,e] = 0
      clear dV: sum_dV[b,g,j,e] = 0
      for i by br while j <= i + offset:
        scores: P[b,g,r,i,j] += Q[b,g,r,i,d] * K[b,g,j,d]
                P[b,g,r,i,j] = exp(where(j <= i + offset, P[b,g,r,i,j] * scale - L[b,g,r,i], -inf))
        dV:     sum_dV[b,g,j,e] += P[b,g,r,i,j] * dO[b,g,r,i,e]
        dP:     dS[b,g,r,i,j] += dO[b,g,r,i,d] * V[b,g,j,d]
                dS[b,g,r,i,j] = P[b,g,r,i,j] * (dS[b,g,r,i,j] - D[b,g,r,i]) * scale
        dQ:     sum_dQ[b,g,r,i,e] += dS[b,g,r,i,j] * K[b,g,j,e]
        dK:     sum_dK[b,g,j,e] += dS[b,g,r,i,j] * Q[b,g,r,i,e]
      finish dK: dK[b,g,j,e] = sum_dK[b,g,j,e]
      finish dV: dV[b,g,j,e] = sum_dV[b,g,j,e]
finish dQ: dQ[b,g,r,i,e] = sum_dQ[b,g,r,i,e]
"""

# Workload files ------------------------------------------------------------------------------------------------------


class AttentionSizes(Spec):
    """Q and O are [batch, heads, queries, d], K and V [batch, kv_heads, n, d]."""

    n: Extent = Field(512, description="Keys: length of the sequence.")
    d: Extent = Field(64, description="Length of a query, key or value vector of one head.")
    queries: Extent | None = Field(None, description="Queries; as many as keys if not given, 1 when decoding.")
    heads: Extent = Field(1, description="Heads of Q and O.")
    kv_heads: Extent | None = Field(
        None, description="Heads of K and V, each shared by heads / kv_heads query heads; one for each if not given."
    )
    batch: Extent = Field(1, description="Independent sequences.")
    causal: bool = Field(False, description="A query sees no key behind its own position; the last query sees all.")
    scale: float | None = Field(None, gt=0, description="Factor of Q Kᵀ; 1/√d if not given.")

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly; "
                "kv_heads must divide heads"
            )
        if self.causal and self.queries is not None and self.queries > self.n:
            raise ValueError(
                f"with causal, the first of {self.queries} queries would see none of {self.n} keys; "
                "give at most n queries"
            )
        return self


class AttentionProductSchedule(ParallelSchedule):
    """Tiles of the matrix products."""

    br: Extent = Field(32, description="Queries in a tile, of each query head that shares K and V.")
    bc: Extent = Field(32, description="Keys in a tile.")
    vector: bool = Field(True, description="Use the machine's vector unit.")


class AttentionSchedule(AttentionProductSchedule):
    """With or without the matrix of scores in memory."""

    variant: Literal["naive", "fused"] = Field(
        "fused",
        description="naive: S = Q Kᵀ and P = softmax(S) are stored whole; fused: tile by tile with a running maximum "
        "and sum, and no more than a tile of S is ever stored.",
    )
    softmax: Literal["plain", "rows", "online"] | None = Field(
        None,
        description="plain (naive only): each of the passes maximum, exponential and sum, division runs over all of S; "
        "rows (naive only): over br rows at a time; online: maximum and sum in one pass, rescaled when the maximum "
        "grows. If not given, plain for naive and online for fused.",
    )
    scratch: Bytes | None = Field(
        None,
        description="Scratch space that a fused tile has to fit: its pieces of Q, K, V, S, P and O, and four numbers "
        "for each row. Not checked if not given.",
        examples=["32 KiB"],
    )

    @model_validator(mode="after")
    def _whole_rows_need_all_of_s(self) -> Self:
        if self.variant == "fused" and self.softmax in ("plain", "rows"):
            raise ValueError(
                f"softmax: {self.softmax} needs the maximum and the sum of a whole row of S before it can divide, and "
                "a fused tile has seen only a part of the row; take softmax: online, which rescales what it has summed "
                "when the maximum grows, or variant: naive"
            )
        if self.variant == "naive" and self.scratch is not None:
            raise ValueError("scratch is the space of a fused tile; variant: naive stores all of S and P in memory")
        return self


class BackwardSchedule(AttentionProductSchedule):
    """With or without the matrices of probabilities and their gradients in memory."""

    variant: Literal["naive", "fused"] = Field(
        "naive",
        description="naive: P and dS are stored whole; fused: tile by tile, P computed again from Q, K and the "
        "statistics L = log Σ exp S of each row, which the forward pass has kept beside O.",
    )
    probabilities: Literal["recompute", "stored"] = Field(
        "recompute",
        description="recompute: P is computed again from Q and K; stored: P is an input, kept from the forward pass.",
    )

    @model_validator(mode="after")
    def _tiles_recompute(self) -> Self:
        if self.variant == "fused" and self.probabilities == "stored":
            raise ValueError(
                "variant: fused has no matrix P in memory; take probabilities: recompute, or variant: naive"
            )
        return self


# How the loops run ---------------------------------------------------------------------------------------------------

DOTS = ("scores", "dP")
"""Products of rows with rows, such as Q Kᵀ."""
SUMS = ("weigh", "dQ", "dK", "dV")
"""Products of rows with columns, such as P V."""


SCRATCH = ("S", "P", "acc", "max", "new_max", "sum", "shrink")
"""As it lies in memory."""


def _text(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: AttentionSchedule) -> Measured:
    text = FUSED if schedule.variant == "fused" else NAIVE[schedule.softmax or "plain"]
    return Measured(text, over={name: name for name in SCRATCH}, formats=_formats(schedule))


def _backward_text(
    shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: BackwardSchedule
) -> Measured:
    stored = GRADIENTS if schedule.probabilities == "stored" else RECOMPUTE
    return Measured(FUSED_GRADIENTS if schedule.variant == "fused" else stored, formats=_formats(schedule))


def _formats(schedule: AttentionSchedule | BackwardSchedule) -> dict[str, str]:
    """Statistics of rows and sums that go on are kept wide; a narrow format would lose whole matrices of scores."""
    names = ["max", "new_max", "sum", "more", "shrink", "acc", "D", "sum_dQ", "sum_dK", "sum_dV"]
    wide = dict.fromkeys(names, "wide")
    if schedule.variant == "naive":
        return {**wide, **dict.fromkeys(("S", "P", "dS"), "half")}
    return {**wide, "L": "sums", **({"S": "wide"} if isinstance(schedule, AttentionSchedule) else {})}


def _layout(operator: Operator, schedule: AttentionSchedule | BackwardSchedule, lanes: int) -> LoopCuts:
    """Products in register tiles, everything else in vectors; cores share the index that has most pieces."""
    shape, (br, bc) = shape_of(operator), tile_of(operator)
    lanes, fused = lanes if schedule.vector else 1, schedule.variant == "fused"
    row = "r" if shape.queries == 1 and shape.repeat > 1 else "i"
    tile = {} if fused else {**dict.fromkeys(shape.outer, 1), "i": br, "j": bc}

    def plan(group: Group, extents: Mapping[str, int], operands: Sequence[Any]) -> LoopPlan:
        order = tuple(extents)
        if group.name not in (*DOTS, *SUMS):
            return in_vectors(group, extents, operands, lanes)
        if group.name in DOTS:  # vectors along the length; 2 x 4 sums with 2 + 4 operands are 14 registers
            unroll, along = {row: 2, "j": 4}, order[-1]
        else:  # vectors along the columns; 4 x 2 vectors of sums with 4 + 2 operands are 14 registers
            unroll, along = {"j" if group.name in ("dK", "dV") else row: 4, "e": 2 * lanes}, "e"
        return LoopPlan(order, tile=tile, unroll=unroll, vector=along if lanes > 1 else None, lanes=lanes)

    queries = {**shape.row_indices, "i": ceil(shape.queries / br)}
    keys = {**shape.outer, "j": ceil(shape.keys / schedule.bc)}
    rows = max(("i", *queries), key=lambda index: queries[index])
    columns = max(("j", *keys), key=lambda index: keys[index])
    stages = {**dict.fromkeys(("S", "P", "dS", "max", "D"), ("", rows)), "dK": ("dK and dV", columns)}
    if fused and operator.name == "attention_backward":
        stages = {"D": ("", rows), "sum_dK": ("dK and dV", columns), "dQ": ("dQ", rows)}
    return LoopCuts(plan=plan, stages=stages, narrow=fused, whole_sums=True)


def shape_of(operator: Operator) -> AttentionShape:
    """The shape of an operator that is attention or its backward pass, from the extents of its indices."""
    b, g, r, i, j = (operator.program.extents[index] for index in "bgrij")
    parameters = operator.parameters
    d = operator.program.extents.get("e", 0) or operator.program.extents["d"]
    return AttentionShape(i, j, d, g * r, g, b, isfinite(parameters["offset"]), parameters["scale"])


def is_fused(operator: Operator) -> bool:
    """Whether attention runs tile by tile."""
    schedule: Any = operator.schedule
    return bool(schedule.variant == "fused")


def tile_of(operator: Operator) -> tuple[int, int]:
    """Br and Bc, cut down to what there is."""
    schedule: Any = operator.schedule
    return min(schedule.br, operator.program.extents["i"]), min(schedule.bc, operator.program.extents["j"])


def _check_room(operator: Operator, fmt: Format) -> None:
    schedule: Any = operator.schedule
    if schedule.scratch is not None:
        Room(shape_of(operator), fmt, schedule.scratch).check(*tile_of(operator))


# Closed forms --------------------------------------------------------------------------------------------------------

MATRIX_READS = {"plain": 6, "rows": 4, "online": 5}
MATRIX_WRITES = {"plain": 3, "rows": 2, "online": 2}
"""How often the elements of S and P come from memory and go there.

Plain: S is allocated, read for the maximum and again for the exponentials; P is allocated, read for the division and
again for P V. Rows: neither is read again while its rows are worked on. Online: S is read for maximum and sum, and
again for the result; P is allocated, and read for P V.
"""


def _key_passes(shape: AttentionShape, br: int) -> int:
    """Keys that all tiles of queries of one head go through."""
    return sum(
        min(shape.keys, start + br + int(shape.offset)) if shape.causal else shape.keys
        for start in range(0, shape.queries, br)
    )


def _traffic(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    """Traffic with main memory where neither K and V nor S fit a cache, but a tile does: docs/explanation/attention.md.

    A written element is read too, since a write-back cache brings its line in first.
    """
    shape, (br, bc) = shape_of(operator), tile_of(operator)
    schedule: Any = operator.schedule
    fused = schedule.variant == "fused"
    passes = _key_passes(shape, br) if fused else shape.keys * ceil(shape.queries / br)
    rows, size = shape.batch * shape.heads * shape.queries * shape.d, fmt.element_bytes
    reads = (2 * rows + 2 * shape.batch * shape.kv_heads * passes * shape.d) * size
    writes = rows * size
    read, written = "Q + O + (K + V)·⌈queries/br⌉", "O"
    if fused:
        reads += scratch_bytes(shape, fmt, br, bc)
        read = "Q + O + (seen parts of K + V)·⌈queries/br⌉ + tile" if shape.causal else f"{read} + tile"
    else:
        how = schedule.softmax or "plain"
        read, written = f"{read} + {MATRIX_READS[how]}·S", f"{written} + {MATRIX_WRITES[how]}·S"
        kept = fmt if fmt.bits >= 16 and fmt.has_infinity else wide_format(fmt)
        matrix = shape.batch * shape.heads * shape.queries * shape.keys * kept.element_bytes
        reads += MATRIX_READS[how] * matrix
        writes += MATRIX_WRITES[how] * matrix
    into, out = (
        "bytes from main memory, K and V larger than the caches",
        "bytes to main memory, all results written back",
    )
    return (
        Formula(into, read, ceil(reads), "B", "dram.bytes_read"),
        Formula(out, written, ceil(writes), "B", "dram.bytes_written"),
    )


# Operations ----------------------------------------------------------------------------------------------------------


def _make(
    operation: Operation, shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any
) -> Operator:
    """On tensors whose heads are apart, or side by side in the columns of matrices."""
    return attend(
        operation, _find_shape(tuple(shapes["Q"]), tuple(shapes["K"]), tuple(shapes["V"]), parameters), schedule
    )


def attend(operation: Operation, shape: AttentionShape, schedule: Any = None) -> Operator:
    """Attention of a shape, or its backward pass."""
    views = shape.views()
    numbers = {"scale": shape.factor, "offset": shape.offset}
    return Operator(operation, {name: view.port for name, view in views.items()}, numbers, schedule, views=views)


def _find_shape(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], parameters: Mapping[str, Any]
) -> AttentionShape:
    causal, scale = parameters["causal"], parameters["scale"]
    if len(q) == 4:
        return AttentionShape(q[2], k[2], q[3], q[1], k[1], q[0], causal, scale)
    heads = parameters["heads"]
    kv_heads = parameters["kv_heads"] or heads
    if len(q) not in (2, 3) or k != v or len(k) != len(q) or q[:-2] != k[:-2]:
        raise ShapeError(f"q {q}, k {k} and v {v} do not belong together")
    if q[-1] % heads or k[-1] % kv_heads or q[-1] // heads != k[-1] // kv_heads:
        raise ShapeError(f"{q[-1]} columns in {heads} heads and {k[-1]} in {kv_heads} are not heads of one size")
    layout: HeadLayout = "columns" if len(q) == 3 else "matrix"
    batch = q[0] if len(q) == 3 else 1
    return AttentionShape(q[-2], k[-2], q[-1] // heads, heads, kv_heads, batch, causal, scale, layout)


PARAMETERS: dict[str, Any] = {
    "heads": Parameter(1, "Heads of Q and O; where they lie side by side, the columns are divided into them."),
    "kv_heads": Parameter(None, "Heads of K and V; as many as of Q if not given.", int | None),
    "causal": Parameter(False, "A query sees no key behind its own position; the last query sees all."),
    "scale": Parameter(None, "Factor of Q Kᵀ; 1/√d if not given.", float | None),
}
_Q, _K = "[batch,heads,queries|n,d]", "[batch,kv_heads|heads,n,d]"


MOST_SCORES = 1 << 21
"""Scores that are held at once: of larger attention, some rows of one head at a time."""


def _pieces(Q: Array, K: Array) -> Iterator[tuple[slice, slice, slice, slice]]:
    """All rows of queries, in pieces of few scores, over (batch, kv_heads, heads of one kv_head, queries)."""
    *heads, queries = Q.shape[:-1]
    keys = K.shape[-2]
    if prod(heads) * queries * keys <= MOST_SCORES:
        yield slice(None), slice(None), slice(None), slice(0, queries)
        return
    rows = max(1, MOST_SCORES // keys)
    for place in product(*map(range, heads)):
        b, g, r = (slice(number, number + 1) for number in place)
        for start in range(0, queries, rows):
            yield b, g, r, slice(start, start + rows)


def _attended(Q: Array, K: Array, V: Array, scale: float, offset: float) -> tuple[Array, Array]:
    """softmax(Q Kᵀ * scale) V, and the logarithms of what its rows were divided by."""
    output, statistics = np.empty((*Q.shape[:-1], V.shape[-1])), np.empty(Q.shape[:-1])
    for b, g, r, i in _pieces(Q, K):
        p, statistics[b, g, r, i] = _probabilities(Q[b, g, r, i], K[b, g], scale, offset + i.start)
        output[b, g, r, i] = np.einsum("bgrij,bgje->bgrie", p, V[b, g])
    return output, statistics


def _probabilities(Q: Array, K: Array, scale: float, offset: float) -> tuple[Array, Array]:
    """softmax(Q Kᵀ * scale) by definition, and the logarithms of what its rows were divided by."""
    scores = np.einsum("bgrid,bgjd->bgrij", Q, K) * scale
    queries, keys = np.arange(Q.shape[-2]), np.arange(K.shape[-2])
    scores = np.where(keys > queries[:, None] + offset, -np.inf, scores)
    highest = scores.max(axis=-1, keepdims=True)
    grown = np.exp(scores - highest)
    total = grown.sum(axis=-1, keepdims=True)
    return grown / total, (highest + np.log(total))[..., 0]


@operation(
    f"Q{_Q} K{_K} V{_K} -> O{_Q}",
    _text,
    sizes=AttentionSizes,
    schedule=AttentionSchedule,
    scheduled=("variant", "br", "bc"),
    layout=_layout,
    over={"P": "S"},
    thin=("b", "g", "r"),
    make=_make,
    fits=_check_room,
    formulas=_traffic,
    **PARAMETERS,
)
def attention(Q: Array, K: Array, V: Array, scale: float, offset: float) -> Array:
    """O = softmax(Q Kᵀ / √d) V for each head."""
    return _attended(Q, K, V, scale, offset)[0]


def _forward(operator: Operator, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """What the forward pass has left: O, and the statistics of its rows."""
    if "L" not in tensors:
        return {}
    views, (scale, offset) = operator.views, (operator.parameters["scale"], operator.parameters["offset"])
    q, k, v = (views[name].values(np.asarray(tensors[name], np.float64)) for name in "QKV")
    output, statistics = _attended(q, k, v, scale, offset)
    return {"O": views["O"].stored(output), "L": views["L"].stored(statistics)}


@operation(
    f"Q{_Q} K{_K} V{_K} dO{_Q} P[batch,heads,queries|n,n] O{_Q} L[batch,heads,queries|n] -> dV{_K} dK{_K} dQ{_Q}",
    _backward_text,
    sizes=AttentionSizes,
    schedule=BackwardSchedule,
    layout=_layout,
    positive=frozenset({"P"}),
    thin=("b", "g", "r"),
    make=_make,
    follow=_forward,
    **PARAMETERS,
)
def attention_backward(
    Q: Array,
    K: Array,
    V: Array,
    dO: Array,
    scale: float,
    offset: float,
    P: Array | None = None,
    O: Array | None = None,  # noqa: E741 - the name that everyone gives it
    L: Array | None = None,
) -> dict[str, Array]:
    """dQ, dK and dV from dO: with the matrices P and dS stored whole, or tile by tile.

    With P = softmax(S) and S = scale * Q Kᵀ: dV = Pᵀ dO; dP = dO Vᵀ; dS = P * (dP - D), where D is the sum of P * dP
    along a row, which is that of dO * O; dQ = scale * dS K; dK = scale * dSᵀ Q.
    """
    dV, dK, dQ = np.zeros(V.shape), np.zeros(K.shape), np.empty(Q.shape)
    for b, g, r, i in _pieces(Q, K):
        q, do = Q[b, g, r, i], dO[b, g, r, i]
        p = P[b, g, r, i] if P is not None else _probabilities(q, K[b, g], scale, offset + i.start)[0]
        dp = np.einsum("bgrie,bgje->bgrij", do, V[b, g])
        ds = scale * p * (dp - (p * dp).sum(axis=-1, keepdims=True))
        dV[b, g] += np.einsum("bgrij,bgrie->bgje", p, do)
        dK[b, g] += np.einsum("bgrij,bgrid->bgjd", ds, q)
        dQ[b, g, r, i] = np.einsum("bgrij,bgjd->bgrid", ds, K[b, g])
    return {"dV": dV, "dK": dK, "dQ": dQ}
