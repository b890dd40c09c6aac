"""All operations that a workload file may ask for; each family has a file in `hwsim/spec/ops`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hwsim.spec.ops.elementwise import ElementwiseWorkload, FusedWorkload
from hwsim.spec.ops.layout import SumWorkload, ViewWorkload
from hwsim.spec.ops.matmul import MatmulWorkload
from hwsim.spec.ops.own import FormulaWorkload, PythonWorkload
from hwsim.spec.ops.probe import ChaseWorkload, StreamWorkload

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
