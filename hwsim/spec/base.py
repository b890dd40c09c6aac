"""What all parts of a machine or workload file have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
"""Names of machines, levels, units and clocks: lower case, as paths such as ``l1.size`` are made of them."""


class Spec(BaseModel):
    """Frozen, strict, and closed: a field that is not declared is an error, never ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", validate_default=False)


class Sourced(Spec):
    """A group of physical numbers that tells where they come from."""

    source: str | dict[str, str] | None = Field(
        None,
        description="Where the numbers of this group come from: one text for all, or one for each field. "
        "Start an unsourced choice with 'assumption:', a fitted number with 'fitted:'.",
        examples=[
            "data sheet, table 3",
            {"size": "data sheet, table 3", "latency": "assumption: as in zen3"},
        ],
    )
