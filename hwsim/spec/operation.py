"""All operations that a workload file may ask for; each family has a file in `hwsim/spec/ops`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hwsim.spec.ops.attention import AttentionBackwardWorkload, AttentionWorkload
from hwsim.spec.ops.chain import ChainWorkload
from hwsim.spec.ops.conv import BatchNormWorkload, ConvWorkload, PoolWorkload
from hwsim.spec.ops.elementwise import ElementwiseWorkload, FusedWorkload
from hwsim.spec.ops.layout import SumWorkload, ViewWorkload
from hwsim.spec.ops.matmul import MatmulWorkload
from hwsim.spec.ops.own import FormulaWorkload, PythonWorkload
from hwsim.spec.ops.pointwise import PointwiseWorkload
from hwsim.spec.ops.probe import ChaseWorkload, StreamWorkload
from hwsim.spec.ops.product import (
    BatchedMatmulWorkload,
    LowRankWorkload,
    MatmulBackwardWorkload,
    MatvecWorkload,
    QkvWorkload,
    StrassenWorkload,
)
from hwsim.spec.ops.softmax import SoftmaxWorkload
from hwsim.spec.ops.tensor import (
    CrossEntropyWorkload,
    EmbeddingWorkload,
    MseWorkload,
    NormWorkload,
    ReduceWorkload,
    TransposeWorkload,
)

Operation = (
    MatmulWorkload
    | ConvWorkload
    | PoolWorkload
    | BatchNormWorkload
    | ElementwiseWorkload
    | FusedWorkload
    | SumWorkload
    | ViewWorkload
    | ChaseWorkload
    | StreamWorkload
    | SoftmaxWorkload
    | AttentionWorkload
    | AttentionBackwardWorkload
    | ChainWorkload
    | FormulaWorkload
    | PythonWorkload
    | PointwiseWorkload
    | BatchedMatmulWorkload
    | MatvecWorkload
    | LowRankWorkload
    | StrassenWorkload
    | MatmulBackwardWorkload
    | QkvWorkload
    | NormWorkload
    | ReduceWorkload
    | TransposeWorkload
    | EmbeddingWorkload
    | CrossEntropyWorkload
    | MseWorkload
)
AnyWorkload = Annotated[Operation, Field(discriminator="op")]
"""For the JSON Schema of all operations."""
