"""Softmax over the rows of a matrix."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hwsim.spec.base import Spec
from hwsim.spec.ops.common import Extent, ParallelSchedule
from hwsim.spec.workload import WorkloadSpec


class SoftmaxSizes(Spec):
    """A row-major matrix."""

    n: Extent = Field(512, description="Columns, which are summed over; rows too where m is not given.")
    m: Extent | None = Field(None, description="Rows.")


class SoftmaxSchedule(ParallelSchedule):
    """How many passes are made over the rows, and over how many rows at a time."""

    variant: Literal["passes", "online"] = Field(
        "passes",
        description="passes: maximum, then exponentials and their sum, then division; online: maximum and sum in one "
        "pass, then exponentials over the sum.",
    )
    block: Extent | None = Field(
        None, description="Rows that go through all passes before the next ones; all of them if not given."
    )
    vector: bool = Field(True, description="Use the machine's vector unit.")


class SoftmaxWorkload(WorkloadSpec):
    """Y[i,j] = exp(X[i,j] - max_j X[i,j]) / sum_j exp(X[i,j] - max_j X[i,j])."""

    op: Literal["softmax"] = Field(description="Softmax along the rows.")
    sizes: SoftmaxSizes = Field(SoftmaxSizes(), description="Extents of the matrix.")
    schedule: SoftmaxSchedule = Field(SoftmaxSchedule(), description="How the passes run.")
