"""Products of matrices: one, a batch, with a vector, of low rank, backward, and for queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.program.bind import statement_indices
from hwsim.program.evaluate import Product, find_product
from hwsim.program.kernel import Formula, Setting
from hwsim.program.loops import LoopOperation, LoopPlan, Operand
from hwsim.program.operation import Operator, Parameter, operation
from hwsim.program.tensors import Storage
from hwsim.program.tiling import Group, LoopCuts
from hwsim.spec.base import Extent, ParallelSchedule, Spec

ROWS = 1024
"""Of the left matrix that a reference turns into float64 at a time."""

# Sizes and schedules -------------------------------------------------------------------------------------------------


class MatmulSizes(Spec):
    """C[m, n] = A[m, k] B[k, n]; with `n` alone, all three are n."""

    n: Extent = Field(256, description="Columns of B and C; rows and inner length too where not given.")
    m: Extent | None = Field(None, description="Rows of A and C.")
    k: Extent | None = Field(None, description="Columns of A and rows of B.")


class BatchSizes(MatmulSizes):
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n]."""

    n: Extent = Field(64, description="Columns of B and C; rows and inner length too where not given.")
    batch: Extent = Field(16, description="Pairs of matrices.")


class LowRankSizes(MatmulSizes):
    """C[m, n] = (A[m, k] U[k, r]) V[r, n]."""

    rank: Extent = Field(32, description="Columns of U and rows of V.")


class QkvSizes(Spec):
    """W[d, d] (three of them) and H[d, n]."""

    d: Extent = Field(64, description="Width of the model: rows of H.")
    n: Extent = Field(128, description="Tokens: columns of H.")

    @property
    def stacked(self) -> int:
        """Rows of three matrices, one above the other."""
        return 3 * self.d


class ProductSchedule(ParallelSchedule):
    """Loop order, and tiles for registers and caches: of one matrix product, or of each that an operation makes."""

    order: Literal["ijk", "ikj", "jik", "jki", "kij", "kji"] = Field(
        "ijk", description="Loops from the outermost to the innermost; i rows, j columns, k inner length."
    )
    accumulate: Literal["register", "memory"] = Field(
        "register", description="Where the sum lives while k is the innermost loop."
    )
    vector: bool = Field(False, description="Use the machine's vector unit.")
    v1: Extent = Field(1, description="Rows of the register tile.")
    v2: Extent | None = Field(
        None, description="Columns of the register tile; if not given, two vectors where v1 > 1, else 1."
    )
    v3: Extent = Field(1, description="Steps of k whose operands are loaded together.")
    tile: Extent | None = Field(None, description="Side of a square cache tile.")
    tile_k: Extent | None = Field(None, description="Extent of the cache tile along k, where not `tile`.")
    b1: Extent | None = Field(None, description="Rows of the strip of A that is kept in cache.")
    b2: Extent | None = Field(None, description="Columns of the strip of B that is kept in cache.")
    c1: Extent | None = Field(None, description="Rows of the tile for the cache behind, around those of b1 or tile.")
    c2: Extent | None = Field(None, description="Columns of the tile for the cache behind, around those of b2 or tile.")

    @model_validator(mode="after")
    def _strips_or_tiles(self) -> Self:
        for large, small in (("c1", "b1"), ("c2", "b2")):
            inside, around = getattr(self, small) or self.tile, getattr(self, large)
            if around is not None and (inside is None or inside > around):
                raise ValueError(f"{large}={around} goes around {small} or tile: give one that is not larger")
        if self.tile is not None and (self.b1 is not None or self.b2 is not None):
            raise ValueError("give either tile (square tiles) or b1 and b2 (strips), not both")
        return self

    @property
    def tiled(self) -> bool:
        return any(size is not None for size in (self.tile, self.tile_k, self.b1, self.b2))


class BatchSchedule(ProductSchedule):
    """How each product of a batch is computed."""

    b_layout: Literal["kj", "jk"] = Field("kj", description="B stored as [k][j], or transposed as [j][k].")


class MatmulSchedule(BatchSchedule):
    """Loop order, layout, and tiles for registers and caches."""

    packed: bool = Field(False, description="Store each tile in one piece.")
    ld: Extent | None = Field(
        None, description="Leading dimension of all matrices, in elements: distance from one row to the next."
    )

    @model_validator(mode="after")
    def _layouts_agree(self) -> Self:
        if self.packed and self.ld is not None:
            raise ValueError("packed tiles have no leading dimension; leave out ld or packed")
        if self.packed and not self.tiled and max(self.v1, self.v2 or 1, self.v3) == 1:
            raise ValueError("packed needs tiles to store: give tile, b1 and b2, or v1 and v2")
        return self


class MatvecSchedule(ParallelSchedule):
    """Two loops."""

    order: Literal["ik", "ki"] = Field("ik", description="ik: row after row of A; ki: column after column.")
    a_layout: Literal["ik", "ki"] = Field("ik", description="A stored row after row, or column after column.")
    v1: Extent = Field(1, description="Rows whose sums are kept in registers together.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


# Loops ---------------------------------------------------------------------------------------------------------------


def product_layout(operator: Operator, schedule: ProductSchedule, lanes: int) -> LoopCuts:
    """Every product by the schedule, one after the other; what finishes its values does so in registers or, where no
    value is finished there, after each tile of the result (or each row)."""
    extents = operator.program.extents
    products = [
        product for each in operator.program.statements if (product := find_product(each, statement_indices(each)))
    ]
    storage = _matrices(products[0], schedule, lanes, extents) if isinstance(schedule, BatchSchedule) else {}
    cuts: Mapping[str, int] = {}

    def plan(group: Group, own: Mapping[str, int], operands: Sequence[Operand]) -> LoopPlan | None:
        product = find_product(group.main, group.indices)
        if product is None:
            return None
        found = product_plan(product, schedule, extents, lanes, storage)
        if not cuts:
            return found
        return replace(found, tile={index: size for index, size in found.tile.items() if index not in cuts})

    if len(products) == 1 < len(operator.program.statements):
        cuts = _outer_cuts(products[0], product_plan(products[0], schedule, extents, lanes, storage))
    batch = sorted((i for each in products for i in _outer(each)), key=lambda index: -extents[index])[:1]
    share = (*batch, *(each.rows[-1] for each in products))
    return LoopCuts(
        vector=schedule.vector, together=cuts, plan=plan, share=share, phases=len(products) > 1, storage=storage
    )


def _outer(product: Product) -> tuple[str, ...]:
    """Indices of a batch, also where every matrix of it is multiplied by the same one."""
    return (*product.batch, *product.rows[:-1])


def product_plan(
    product: Product, schedule: ProductSchedule, extents: Mapping[str, int], lanes: int, storage: Mapping[str, Storage]
) -> LoopPlan:
    """The loops of a product; a tile that is larger than its extent is cut down to it.

    Those of a batch run outside, one product after the other.
    """
    s = schedule
    names = {"i": product.rows[-1], "j": product.columns[0], "k": product.inner[0]}
    asked = {"i": s.tile or s.b1, "j": s.tile or s.b2, "k": s.tile_k or s.tile}
    tile = {names[each]: min(size, extents[names[each]]) for each, size in asked.items() if size}
    if tile:
        tile = dict.fromkeys(_outer(product), 1) | tile
    lanes = lanes if s.vector else 1
    places = product.right.positions
    innermost = storage.get(product.right.tensor, Storage()).order(len(places))[-1]
    b_transposed = names["k"] in places[innermost].indices
    columns = s.v2 or (1 if s.v1 == 1 or not s.vector else 2 if b_transposed else 2 * lanes)
    unroll = {"i": s.v1, "j": columns, "k": s.v3}
    vector = names["j" if columns > 1 and not b_transposed else s.order[-1]]
    shortest = tile.get(vector, lanes)
    if columns == 1 and shortest < lanes:  # a row of a tile that is shorter than a vector takes a narrower one
        lanes = 1 << (shortest.bit_length() - 1)
    return LoopPlan(
        order=(*_outer(product), *(names[each] for each in s.order)),
        tile=tile,
        outer={names[each]: size for each, size in {"i": s.c1, "j": s.c2}.items() if size},
        unroll={names[each]: min(size, extents[names[each]]) for each, size in unroll.items() if size > 1},
        vector=vector if lanes > 1 else None,
        lanes=lanes,
        accumulate=s.accumulate,
    )


def _matrices(product: Product, schedule: BatchSchedule, lanes: int, extents: Mapping[str, int]) -> dict[str, Storage]:
    """How the three matrices lie in memory: B transposed, rows padded, or tiles (else register tiles) in one piece."""
    rank = len(product.right.positions)
    swapped = (*range(rank - 2), rank - 1, rank - 2) if schedule.b_layout == "jk" else ()
    found = {product.right.tensor: Storage(axes=swapped)}
    if not isinstance(schedule, MatmulSchedule) or (schedule.ld is None and not schedule.packed):
        return found
    plan = product_plan(product, schedule, extents, lanes, found)
    output = (*product.batch, *product.rows, *product.columns)
    for name, indices in {
        product.left.tensor: product.left.indices,
        product.right.tensor: product.right.indices,
        "C": output,
    }.items():
        blocks = [plan.tile.get(i, extents[i]) if schedule.tiled else plan.step(i) for i in indices]
        kept = found.get(name, Storage())
        found[name] = replace(kept, ld=schedule.ld, blocks=tuple(blocks) if schedule.packed else ())
    return found


def _outer_cuts(product: Product, plan: LoopPlan) -> dict[str, int]:
    """The loops over tiles of the result that run outside all loops of its sums, outermost first; none where every
    value is finished in a register."""
    output = (*product.batch, *product.rows, *product.columns)
    if plan.completes(LoopOperation((), Operand("", 0, 1, dict.fromkeys(output, 1)))):
        return {}
    cuts = dict.fromkeys(_outer(product), 1)
    tiled = [index for index in plan.order if index in plan.tile and index not in cuts]
    for index in tiled or plan.order[len(cuts) : len(cuts) + 1]:
        if index in product.inner:
            break
        cuts[index] = plan.tile.get(index) or plan.step(index)
    return cuts


def _matvec_layout(operator: Operator, schedule: MatvecSchedule, lanes: int) -> LoopCuts:
    lanes = lanes if schedule.vector else 1
    rows = min(schedule.v1, operator.program.extents["i"])
    unroll, vector = {"i": rows} if rows > 1 else {}, schedule.order[-1] if lanes > 1 else None
    plan = LoopPlan(tuple(schedule.order), unroll=unroll, vector=vector, lanes=lanes)
    storage = {"A": Storage(axes=(1, 0))} if schedule.a_layout == "ki" else {}
    return LoopCuts(plan=lambda group, extents, operands: plan, share=("i",), storage=storage)


# Closed forms --------------------------------------------------------------------------------------------------------


def _course_formulas(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    """The course's closed forms, for the schedules that they are about."""
    (product,) = (find_product(group.main, group.indices) for group in operator.groups)
    schedule = operator.schedule
    assert product is not None and isinstance(schedule, ProductSchedule)
    storage = operator.layout(setting.lanes).storage
    plan = product_plan(product, schedule, operator.program.extents, setting.lanes, storage)
    counts = tuple(_register_counts(operator, schedule, plan)) if plan.lanes == 1 else ()
    return (
        *counts,
        *_line_counts(operator, schedule, plan, setting),
        _intensity(operator, "2n³/(3n² · bytes per element)"),
    )


def _extents(operator: Operator) -> tuple[int, int, int]:
    """m, n and k of a single product."""
    extents = operator.program.extents
    return extents["i"], extents["j"], extents["k"]


def _register_counts(operator: Operator, schedule: ProductSchedule, plan: LoopPlan) -> Iterator[Formula]:
    """Loads into registers and stores out of them: 2n³ and n², or n³/v2 + n³/v1 with a register tile."""
    if schedule.order not in ("ijk", "jik") or schedule.accumulate == "memory":
        return
    m, n, k = _extents(operator)
    v1, v2 = plan.unroll.get("i", 1), plan.unroll.get("j", 1)
    passes = -(-k // plan.tile["k"]) if "k" in plan.tile else 0
    a = m * k * _blocks(n, plan.tile.get("j"), v2)
    b = k * n * _blocks(m, plan.tile.get("i"), v1)
    tiled = v1 > 1 or v2 > 1
    yield Formula("loads of A", "n³/v2" if tiled else "n³", a, "elements", "loads.A")
    yield Formula("loads of B", "n³/v1" if tiled else "n³", b, "elements", "loads.B")
    if not passes:
        both = "n³/v2 + n³/v1" if tiled else "2n³"
        yield Formula("loads, memory to registers", both, a + b, "elements", "loads")
        yield Formula("stores", "n²", m * n, "elements", "stores")
    else:
        both = "n³/v2 + n³/v1 + n³/b" if tiled else "2n³ + n³/b"
        yield Formula("loads, memory to registers", both, a + b + passes * m * n, "elements", "loads")
        yield Formula("stores", "n³/b", passes * m * n, "elements", "stores")


def _blocks(extent: int, tile: int | None, unroll: int) -> int:
    """Register tiles along an index, where a cache tile may cut some of them short."""
    size = min(tile or extent, extent)
    whole, rest = divmod(extent, size)
    return whole * -(-size // unroll) + -(-rest // unroll)


def _line_counts(operator: Operator, schedule: ProductSchedule, plan: LoopPlan, setting: Setting) -> Iterator[Formula]:
    """Lines brought into a cache that holds the tiles: 2n³/(L·b) + n²/L for square tiles, (n² + n³/b1)/L for strips.

    L is the number of elements in a line. C counts once; with tiles along k it is found in the cache again.
    """
    sizes = operator.element_bytes
    a, b, c = (setting.line_bytes / sizes[name] for name in "ABC")
    m, n, k = _extents(operator)
    if {"i", "j", "k"} <= set(plan.tile) and schedule.order in ("ijk", "jik"):
        value = m * k / a * -(-n // plan.tile["j"]) + k * n / b * -(-m // plan.tile["i"]) + m * n / c
        yield Formula("lines into L1, square tiles", "2n³/(L·b) + n²/L", round(value), "lines", "l1.fills")
    elif "i" in plan.tile and schedule.order == "ijk":
        value = m * k / a + k * n / b * -(-m // plan.tile["i"])
        yield Formula("lines of A and B into L1, strips", "(n² + n³/b1)/L", round(value), "lines", "l1.fills")
        # The course's whole model: what comes from DRAM and what comes from L1, one after the other.
        far = m * k * sizes["A"] + k * n * sizes["B"] * -(-m // plan.tile["i"])
        near = m * k * sizes["A"] * _blocks(n, plan.tile.get("j"), plan.unroll.get("j", 1))
        near += k * n * sizes["B"] * _blocks(m, plan.tile.get("i"), plan.unroll.get("i", 1))
        expression = "(n² + n³/b1)·t(dram→L1) + (n³/v1 + n³/v2)·t(L1→reg)"
        yield Formula("time, transfers alone", expression, 0, "s", "time_s", far=int(far), near=int(near))


def _intensity(operator: Operator, expression: str, name: str = "each element moved once") -> Formula:
    """The best that any schedule can reach: each element moved once by each product."""
    moved, work = 0.0, 0
    ports = (*operator.inputs, *operator.outputs)
    for group in operator.groups:
        used = {element.tensor for element in (*group.reads, group.target)}
        moved += float(sum(prod(port.shape) * operator.element_bytes[port.name] for port in ports if port.name in used))
        work += 2 * prod(operator.program.extents[index] for index in group.indices)
    return Formula(f"arithmetic intensity, {name}", expression, work / moved, "flop/B", "intensity.far")


def _macs(expression: str) -> Any:
    """So many multiply-adds."""

    def formulas(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
        total = sum(prod(operator.program.extents[i] for i in group.indices) for group in operator.groups)
        return (Formula("multiply-adds", expression, total, "operations", "macs"),)

    return formulas


def _moved(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    return (_intensity(operator, "2mnk/bytes"),)


def _matvec_formulas(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    """Two operations for each element of A: about half an operation per byte in fp32, whatever the size."""
    return (*_macs("m·k")(operator, setting, fmt), _intensity(operator, "2mk/(mk + m + k)/bytes"))


def _qkv_formulas(expression: str) -> Any:
    """Operations per byte where each product moves each element once, and 3dn results are written."""

    def formulas(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
        ports = {port.name: prod(port.shape) for port in (*operator.inputs, *operator.outputs)}
        elements = sum(ports[e.tensor] for group in operator.groups for e in (*group.reads, group.target))
        return (_intensity(operator, f"6d²n/({expression})/bytes", f"{elements:,} elements moved"),)

    return formulas


# Operations ----------------------------------------------------------------------------------------------------------


def _rows_fit(workload: Any) -> str:
    ld, columns = workload.schedule.ld, max(workload.sizes.n, workload.sizes.k or workload.sizes.n)
    if ld is not None and ld < columns:
        return f"ld {ld} is less than the {columns} elements of the longest row"
    return ""


def _exact(text: str, *factors: Array) -> Array:
    return np.asarray(np.einsum(text, *factors, optimize=True))


def _product(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: object) -> str:
    a = "k,i" if parameters.get("transpose_a") else "i,k"
    b = "j,k" if parameters.get("transpose_b") else "k,j"
    _check_shapes(tuple(shapes["A"]), tuple(shapes["B"]), parameters)
    return f"matmul: C[...,i,j] += A[...,{a}] * B[...,{b}]"


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...], parameters: Mapping[str, Any]) -> None:
    """Matrices, or batches of as many, or a batch and one matrix for all, whose inner lengths are equal."""
    if len(a) < 2 or len(b) not in (2, len(a)) or (len(b) > 2 and a[:-2] != b[:-2]):
        raise ShapeError(f"{a} and {b} are not matrices, nor batches of as many")
    k = a[-2] if parameters.get("transpose_a") else a[-1]
    rows = b[-1] if parameters.get("transpose_b") else b[-2]
    if k != rows:
        raise ShapeError(
            f"{a} cannot be multiplied by {b}: the columns of the first, {k}, must be the rows of the second, {rows}"
        )


@operation(
    "A[m|n,k|n] B[k|n,n] -> C[m|n,n]",
    _product,
    transpose_a=Parameter(False, "Whether A is given with its last two axes swapped.", alone=False),
    transpose_b=Parameter(False, "Whether B is given with its last two axes swapped.", alone=False),
    sizes=MatmulSizes,
    schedule=MatmulSchedule,
    layout=product_layout,
    formats={"C": "sums"},
    formulas=_course_formulas,
    check=_rows_fit,
    widens=True,
)
def matmul(A: Array, B: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """The product of two matrices, or of two stacks of them."""
    a = A.swapaxes(-1, -2) if transpose_a else A
    b = B.swapaxes(-1, -2) if transpose_b else B
    if a.ndim == b.ndim == 2:
        return _by_rows(a, b)
    letters = "abcdefgh"[: a.ndim - 2]
    own = letters if b.ndim > 2 else ""
    return _exact(f"{letters}ik,{own}kj->{letters}ij", *(each.astype(np.float64, copy=False) for each in (a, b)))


def _by_rows(a: Array, b: Array) -> Array:
    """Rows of the left matrix are made float64 some at a time: at once they would take as much as the answer."""
    wide = b.astype(np.float64, copy=False)
    found = np.empty((a.shape[0], b.shape[1]))
    for first in range(0, a.shape[0], ROWS):
        rows = slice(first, first + ROWS)
        np.matmul(a[rows].astype(np.float64, copy=False), wide, out=found[rows])
    return found


def _one_b(workload: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return shapes | ({"B": shapes["B"][1:]} if workload.shared_b else {})


@operation(
    "A[batch,m|n,k|n] B[batch,k|n,n] -> C[batch,m|n,n]",
    _product,
    shared_b=Parameter(False, "Whether every A is multiplied by the same B."),
    sizes=BatchSizes,
    schedule=BatchSchedule,
    layout=product_layout,
    formats={"C": "sums"},
    formulas=_moved,
    reshape=_one_b,
)
def matmul_batched(A: Array, B: Array) -> Array:
    """The products of many pairs of matrices, or of many matrices with the same one."""
    return np.asarray(matmul.reference(A, B))


@operation(
    "A[m|n,n] x[n] -> y[m|n]",
    "matvec: y[i] += A[i,k] * x[k]",
    sizes="y[m] = A[m, n] x[n].",
    n=(1024, "Columns of A and length of x; rows too where m is not given."),
    m=(None, "Rows of A and length of y."),
    schedule=MatvecSchedule,
    layout=_matvec_layout,
    formats={"y": "sums"},
    formulas=_matvec_formulas,
)
def matvec(A: Array, x: Array) -> Array:
    """A matrix times a vector: each element of the matrix is used once, so that memory decides."""
    return np.asarray(np.einsum("ik,k->i", A, x))


@operation(
    "A[m|n,k|n] U[k|n,rank] V[rank,n] -> C[m|n,n]",
    """
    A U:     AU[i,r] += A[i,k] * U[k,r]
    (A U) V: C[i,j] += AU[i,r] * V[r,j]
    """,
    sizes=LowRankSizes,
    schedule=ProductSchedule,
    layout=product_layout,
    formats={"AU": "sums", "C": "sums"},
    formulas=_macs("m·r·(k + n)"),
)
def matmul_lowrank(A: Array, U: Array, V: Array) -> Array:
    """(A U) V instead of A W, where W = U V is a matrix of low rank: r(m k + m n) multiply-adds instead of m k n."""
    return np.asarray(A @ (U @ V))


@operation(
    "dC[m|n,n] B[k|n,n] A[m|n,k|n] -> dA[m|n,k|n] dB[k|n,n]",
    """
    dA = dC Bᵀ: dA[i,k] += dC[i,j] * B[k,j]
    dB = Aᵀ dC: dB[k,j] += A[i,k] * dC[i,j]
    """,
    sizes=MatmulSizes,
    schedule=ProductSchedule,
    layout=product_layout,
    formats={"dA": "sums", "dB": "sums"},
    formulas=_macs("2·m·n·k"),
)
def matmul_backward(dC: Array, B: Array, A: Array) -> tuple[Array, Array]:
    """The backward pass of C = A B: dA = dC Bᵀ and dB = Aᵀ dC, twice the work of the product itself."""
    return _exact("ij,kj->ik", dC, B), _exact("ik,ij->kj", A, dC)


@operation(
    "W[stacked,d] H[d,n] -> QKV[stacked,n]",
    "qkv_merged: QKV[i,j] += W[i,k] * H[k,j]",
    sizes=QkvSizes,
    schedule=ProductSchedule,
    layout=product_layout,
    formats={"QKV": "sums"},
    formulas=_qkv_formulas("3d² + 4dn"),
)
def qkv_merged(W: Array, H: Array) -> Array:
    """Queries, keys and values in one product with three matrices stacked: their input is read once."""
    return _exact("ik,kj->ij", W, H)


@operation(
    "Wq[d,d] H[d,n] Wk[d,d] Wv[d,d] -> Q[d,n] K[d,n] V[d,n]",
    """
    Q: Q[i,j] += Wq[i,k] * H[k,j]
    K: K[i,j] += Wk[i,k] * H[k,j]
    V: V[i,j] += Wv[i,k] * H[k,j]
    """,
    sizes=QkvSizes,
    schedule=ProductSchedule,
    layout=product_layout,
    formats={"Q": "sums", "K": "sums", "V": "sums"},
    formulas=_qkv_formulas("3(d² + 2dn)"),
)
def qkv_separate(Wq: Array, H: Array, Wk: Array, Wv: Array) -> tuple[Array, ...]:
    """Queries, keys and values in three products, each of which reads their input."""
    return tuple(_exact("ik,kj->ij", weights, H) for weights in (Wq, Wk, Wv))
