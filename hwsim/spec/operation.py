"""The operations that a workload file may ask for, each with its sizes and its schedule."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Spec
from hwsim.spec.workload import WorkloadSpec
from hwsim.units import Bytes

Extent = Annotated[int, Field(ge=1, le=10**9)]
IndexName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class ParallelSchedule(Spec):
    """How a loop is shared out among cores."""

    parallel: Literal["none", "rows"] = Field(
        "none", description="rows: the outermost loop over the output is shared out among the cores."
    )
    split: Literal["static", "dynamic"] = Field(
        "static",
        description="static: an equal share for each core; dynamic: smaller shares, taken when free.",
    )
    cores: Extent | None = Field(None, description="Cores to use; all that the machine has if not given.")


class MatmulSizes(Spec):
    """C[m, n] = A[m, k] B[k, n]; with `n` alone, all three are n."""

    n: Extent = Field(256, description="Columns of B and C; rows and inner length too where not given.")
    m: Extent | None = Field(None, description="Rows of A and C.")
    k: Extent | None = Field(None, description="Columns of A and rows of B.")


class MatmulSchedule(ParallelSchedule):
    """Loop order, layout, and tiles for registers and caches."""

    order: Literal["ijk", "ikj", "jik", "jki", "kij", "kji"] = Field(
        "ijk", description="Loops from the outermost to the innermost; i rows, j columns, k inner length."
    )
    b_layout: Literal["kj", "jk"] = Field("kj", description="B stored as [k][j], or transposed as [j][k].")
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
    packed: bool = Field(False, description="Store each tile in one piece.")
    ld: Extent | None = Field(
        None, description="Leading dimension of all matrices, in elements: distance from one row to the next."
    )

    @model_validator(mode="after")
    def _strips_or_tiles(self) -> Self:
        if self.tile is not None and (self.b1 is not None or self.b2 is not None):
            raise ValueError("give either tile (square tiles) or b1 and b2 (strips), not both")
        if self.packed and self.ld is not None:
            raise ValueError("packed tiles have no leading dimension; leave out ld or packed")
        if self.packed and not self.tiled and max(self.v1, self.v2 or 1, self.v3) == 1:
            raise ValueError("packed needs tiles to store: give tile, b1 and b2, or v1 and v2")
        return self

    @property
    def tiled(self) -> bool:
        return any(size is not None for size in (self.tile, self.tile_k, self.b1, self.b2))


class MatmulWorkload(WorkloadSpec):
    """The product of two matrices."""

    op: Literal["matmul"] = Field(description="Matrix product.")
    sizes: MatmulSizes = Field(MatmulSizes(), description="Extents of the matrices.")
    schedule: MatmulSchedule = Field(MatmulSchedule(), description="How the product is computed.")

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        columns = max(self.sizes.n, self.k)
        if self.schedule.ld is not None and self.schedule.ld < columns:
            raise ValueError(f"ld {self.schedule.ld} is less than the {columns} elements of the longest row")
        return self

    @property
    def m(self) -> int:
        return self.sizes.m or self.sizes.n

    @property
    def k(self) -> int:
        return self.sizes.k or self.sizes.n


class VectorSizes(Spec):
    """Vectors of equal length."""

    n: Extent = Field(65536, description="Elements of each vector.")


class VectorSchedule(ParallelSchedule):
    """A single loop."""

    vector: bool = Field(False, description="Use the machine's vector unit.")


class ElementwiseWorkload(WorkloadSpec):
    """One pass over vectors: add C = A + B, mul C = A * B, triad A = B + s * C, copy C = A."""

    op: Literal["add", "mul", "triad", "copy"] = Field(description="What is done with each element.")
    sizes: VectorSizes = Field(VectorSizes(), description="Length of the vectors.")
    schedule: VectorSchedule = Field(VectorSchedule(), description="How the loop runs.")


class FusedSchedule(VectorSchedule):
    """One loop, or one for each operation."""

    fused: bool = Field(True, description="One pass; otherwise three passes, with two vectors between them.")


class FusedWorkload(WorkloadSpec):
    """E = D + (A + B) * C over vectors."""

    op: Literal["fused_add_mul"] = Field(description="E = D + (A + B) * C.")
    sizes: VectorSizes = Field(VectorSizes(), description="Length of the vectors.")
    schedule: FusedSchedule = Field(FusedSchedule(), description="How the loops run.")


class ArraySizes(Spec):
    """A row-major array."""

    n: Extent = Field(512, description="Columns; rows too where m is not given.")
    m: Extent | None = Field(None, description="Rows.")


class SumSchedule(ParallelSchedule):
    """In which order the elements are added."""

    order: Literal["rows", "columns"] = Field("rows", description="Row after row, or column after column.")
    result: Literal["total", "each"] = Field("total", description="One sum, or one for each row (or column).")
    vector: bool = Field(False, description="Use the machine's vector unit.")
    ld: Extent | None = Field(None, description="Distance from one row to the next, in elements.")


class SumWorkload(WorkloadSpec):
    """The sum of a two-dimensional array."""

    op: Literal["sum2d"] = Field(description="Sum of a two-dimensional array.")
    sizes: ArraySizes = Field(ArraySizes(), description="Extents of the array.")
    schedule: SumSchedule = Field(SumSchedule(), description="How the sum runs.")

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        if self.schedule.ld is not None and self.schedule.ld < self.sizes.n:
            raise ValueError(f"ld {self.schedule.ld} is less than the {self.sizes.n} elements of a row")
        return self


class ViewSchedule(Spec):
    """Which view of the array is read, and how often."""

    view: Literal["whole", "slice", "transpose", "broadcast"] = Field(
        "whole",
        description="slice: every `step`-th column from `offset` on; transpose: rows as columns; "
        "broadcast: one row of n elements seen as m rows.",
    )
    offset: int = Field(1, ge=0, description="First column of a slice.")
    step: Extent = Field(2, description="Columns from one element of a slice to the next.")
    contiguous: bool = Field(False, description="Copy the view into contiguous memory, and read the copy.")
    reuses: Extent = Field(1, description="How often all elements are read.")
    vector: bool = Field(False, description="Use the machine's vector unit.")


class ViewWorkload(WorkloadSpec):
    """Reads all elements of a strided view, row by row of the view, and adds them up."""

    op: Literal["view"] = Field(description="Reading through a strided view.")
    sizes: ArraySizes = Field(ArraySizes(), description="Extents of the array.")
    schedule: ViewSchedule = Field(ViewSchedule(), description="Which view is read.")

    @model_validator(mode="after")
    def _slice_fits(self) -> Self:
        if self.schedule.view == "slice" and self.schedule.offset >= self.sizes.n:
            raise ValueError(f"offset {self.schedule.offset} is outside a row of {self.sizes.n} elements")
        return self


class ChaseSizes(Spec):
    """A ring of pointers."""

    bytes: Bytes = Field(64 * 1024, description="Memory that the ring covers.", examples=["64 KiB"])
    stride: Bytes = Field(64, description="Distance between pointers in memory.", examples=["64 B"])
    steps: Extent = Field(100_000, description="How many pointers are followed.")


class NoSchedule(Spec):
    """Nothing to choose."""


class ChaseWorkload(WorkloadSpec):
    """Follows pointers around a ring in random order: each load waits for the one before."""

    op: Literal["pointer_chase"] = Field(description="Dependent loads in random order.")
    sizes: ChaseSizes = Field(ChaseSizes(), description="The ring.")
    schedule: NoSchedule = Field(NoSchedule(), description="Nothing to choose.")

    @model_validator(mode="after")
    def _ring_fits(self) -> Self:
        if self.sizes.stride > self.sizes.bytes or self.sizes.stride < 8:
            raise ValueError(f"stride must be between 8 B and the {self.sizes.bytes} B of the ring")
        return self


class StreamSizes(Spec):
    """A stretch of memory."""

    bytes: Bytes = Field(1024 * 1024, description="Memory that is read.", examples=["1 MiB"])
    passes: Extent = Field(4, description="How often it is read from end to end.")


class StreamSchedule(ParallelSchedule):
    """A single loop."""

    vector: bool = Field(True, description="Use the machine's vector unit.")


class StreamWorkload(WorkloadSpec):
    """Reads a stretch of memory again and again in unit stride."""

    op: Literal["stream_read"] = Field(description="Unit-stride reads.")
    sizes: StreamSizes = Field(StreamSizes(), description="What is read.")
    schedule: StreamSchedule = Field(StreamSchedule(), description="How the loop runs.")


class FormulaSchedule(ParallelSchedule):
    """Loop order and tiles."""

    order: tuple[IndexName, ...] = Field(
        (), description="Loops, outermost first; in the order of the formula if not given."
    )
    tile: dict[IndexName, Extent] = Field({}, description="Extent of a cache tile along an index.")
    unroll: dict[IndexName, Extent] = Field({}, description="Extent of the register tile along an index.")
    vector: bool = Field(False, description="Use the machine's vector unit on the innermost loop.")


class FormulaWorkload(WorkloadSpec):
    """Any operation whose indices are sums of loop counters."""

    op: Literal["formula"] = Field(description="An operation given as a formula.")
    formula: str = Field(
        description="What is computed for each point of the loops.", examples=["C[i,j] += A[i,k] * B[k,j]"]
    )
    sizes: dict[IndexName, Extent] = Field(description="Extent of each index.", examples=[{"i": 64, "j": 64}])
    schedule: FormulaSchedule = Field(FormulaSchedule(), description="How the loops run.")


class PythonWorkload(WorkloadSpec):
    """A kernel written in Python and registered under a name."""

    op: Literal["python"] = Field(description="A kernel of your own.")
    kernel: str = Field(description="The name under which the kernel was registered.")
    sizes: dict[str, int] = Field({}, description="Extents, as the kernel calls them.")
    schedule: dict[str, bool | int | str] = Field({}, description="Whatever the kernel lets you choose.")


Operation = (
    MatmulWorkload
    | ElementwiseWorkload
    | FusedWorkload
    | SumWorkload
    | ViewWorkload
    | ChaseWorkload
    | StreamWorkload
    | FormulaWorkload
    | PythonWorkload
)
AnyWorkload = Annotated[Operation, Field(discriminator="op")]
"""For the JSON Schema of all operations."""
