"""The product of two matrices."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


class MatmulSizes(Spec):
    """C[m, n] = A[m, k] B[k, n]; with `n` alone, all three are n."""

    n: Extent = Field(256, description="Columns of B and C; rows and inner length too where not given.")
    m: Extent | None = Field(None, description="Rows of A and C.")
    k: Extent | None = Field(None, description="Columns of A and rows of B.")

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.m or self.n, self.n, self.k or self.n


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

    @model_validator(mode="after")
    def _strips_or_tiles(self) -> Self:
        if self.tile is not None and (self.b1 is not None or self.b2 is not None):
            raise ValueError("give either tile (square tiles) or b1 and b2 (strips), not both")
        return self

    @property
    def tiled(self) -> bool:
        return any(size is not None for size in (self.tile, self.tile_k, self.b1, self.b2))


class MatmulSchedule(ProductSchedule):
    """Loop order, layout, and tiles for registers and caches."""

    b_layout: Literal["kj", "jk"] = Field("kj", description="B stored as [k][j], or transposed as [j][k].")
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
        return self.sizes.extents[0]

    @property
    def k(self) -> int:
        return self.sizes.extents[2]
