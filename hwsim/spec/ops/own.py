"""Operations of your own: a formula in the file, or a kernel in Python."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.ops.common import Extent, IndexName, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


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
