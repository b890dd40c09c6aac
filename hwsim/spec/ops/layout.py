"""Two-dimensional arrays: sums in either order, and strided views."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


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
