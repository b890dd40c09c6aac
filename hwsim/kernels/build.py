"""From a workload to its kernel."""

from __future__ import annotations

from collections.abc import Mapping

from hwsim.errors import InputError
from hwsim.kernels.elementwise import Elementwise
from hwsim.kernels.formula import FormulaKernel
from hwsim.kernels.kernel import Kernel, Setting
from hwsim.kernels.matmul import Matmul
from hwsim.kernels.own import make_own_kernel
from hwsim.kernels.pointer_chase import PointerChase
from hwsim.kernels.stream_read import StreamRead
from hwsim.kernels.sum2d import Sum2d
from hwsim.kernels.views import ViewReader
from hwsim.numerics.format import Array
from hwsim.spec.operation import (
    ChaseWorkload,
    ElementwiseWorkload,
    FormulaWorkload,
    FusedWorkload,
    MatmulWorkload,
    PythonWorkload,
    StreamWorkload,
    SumWorkload,
    ViewWorkload,
)
from hwsim.spec.workload import WorkloadSpec


def build_kernel(
    workload: WorkloadSpec,
    *,
    seed: int = 0,
    lanes: int = 1,
    cores: int = 1,
    math: bool = True,
    line_bytes: int = 64,
    inputs: Mapping[str, Array] | None = None,
) -> Kernel:
    """The kernel of a workload, for a machine with `lanes` elements in a vector and `cores` cores.

    `inputs` replaces random tensors by given ones, by name.
    """
    setting = Setting(seed, lanes, cores, math, line_bytes)
    match workload:
        case MatmulWorkload():
            return Matmul(workload, setting, inputs)
        case ElementwiseWorkload() | FusedWorkload():
            return Elementwise(workload, setting, inputs)
        case SumWorkload():
            return Sum2d(workload, setting, inputs)
        case ViewWorkload():
            return ViewReader(workload, setting, inputs)
        case ChaseWorkload():
            return PointerChase(workload, setting)
        case StreamWorkload():
            return StreamRead(workload, setting, inputs)
        case FormulaWorkload():
            return FormulaKernel(workload, setting, inputs)
        case PythonWorkload():
            return make_own_kernel(workload, setting)
        case _:
            raise InputError(f"there is no kernel for op '{workload.op}'")
