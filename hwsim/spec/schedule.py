"""What several operations have in common: extents, index names, and how a loop is shared out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwsim.spec.base import Spec

Extent = Annotated[int, Field(ge=1, le=10**9)]
IndexName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
TensorName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=80)]


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


class NoSchedule(Spec):
    """Nothing to choose."""
