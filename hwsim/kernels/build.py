"""From a workload to its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hwsim.errors import InputError
from hwsim.kernels.attention.attention import make_attention
from hwsim.kernels.attention.backward import make_attention_backward
from hwsim.kernels.attention.softmax import make_softmax
from hwsim.kernels.chain.chain import ChainKernel
from hwsim.kernels.conv.build import make_batch_norm, make_conv, make_pool
from hwsim.kernels.course.elementwise import Elementwise
from hwsim.kernels.course.formula import FormulaKernel
from hwsim.kernels.course.pointer_chase import PointerChase
from hwsim.kernels.course.stream_read import StreamRead
from hwsim.kernels.course.sum2d import Sum2d
from hwsim.kernels.course.views import ViewReader
from hwsim.kernels.data import load_inputs
from hwsim.kernels.kernel import Kernel, Numbers, Setting
from hwsim.kernels.matmul.matmul import Matmul
from hwsim.kernels.operator_build import OPERATORS, operator_kernel
from hwsim.kernels.own import make_own_kernel
from hwsim.numerics.format import Array
from hwsim.spec.compute import CoreFormatSpec
from hwsim.spec.ops.attention import AttentionBackwardWorkload, AttentionWorkload
from hwsim.spec.ops.chain import ChainWorkload
from hwsim.spec.ops.conv import BatchNormWorkload, ConvWorkload, PoolWorkload
from hwsim.spec.ops.elementwise import ElementwiseWorkload, FusedWorkload
from hwsim.spec.ops.layout import SumWorkload, ViewWorkload
from hwsim.spec.ops.matmul import MatmulWorkload
from hwsim.spec.ops.own import FormulaWorkload, PythonWorkload
from hwsim.spec.ops.probe import ChaseWorkload, StreamWorkload
from hwsim.spec.ops.softmax import SoftmaxWorkload
from hwsim.spec.workload import WorkloadSpec

Inputs = Mapping[str, Array] | None

KERNELS: dict[type[WorkloadSpec], Callable[[Any, Setting, Inputs], Kernel]] = {
    MatmulWorkload: Matmul,
    ConvWorkload: make_conv,
    PoolWorkload: make_pool,
    BatchNormWorkload: make_batch_norm,
    ElementwiseWorkload: Elementwise,
    FusedWorkload: Elementwise,
    SumWorkload: Sum2d,
    ViewWorkload: ViewReader,
    ChaseWorkload: lambda workload, setting, _: PointerChase(workload, setting),
    StreamWorkload: StreamRead,
    ChainWorkload: ChainKernel,
    FormulaWorkload: FormulaKernel,
    SoftmaxWorkload: make_softmax,
    AttentionWorkload: make_attention,
    AttentionBackwardWorkload: make_attention_backward,
    PythonWorkload: lambda workload, setting, _: make_own_kernel(workload, setting),
    **dict.fromkeys(OPERATORS, operator_kernel),
}
"""What makes the kernel of each kind of workload."""


def build_kernel(
    workload: WorkloadSpec,
    *,
    seed: int = 0,
    lanes: int = 1,
    cores: int = 1,
    math: bool = True,
    line_bytes: int = 64,
    inputs: Inputs = None,
    compute: str = "",
    sums: CoreFormatSpec | None = None,
) -> Kernel:
    """The kernel of a workload, for a machine with `lanes` elements in a vector and `cores` cores.

    `inputs` replaces random tensors by given ones, by name. `compute` is the format that arithmetic runs in, where that
    is not the format of the tensors; `sums` is how the machine keeps sums in it, where the workload does not say.
    """
    make = KERNELS.get(type(workload))
    if make is None:
        raise InputError(f"there is no kernel for op '{workload.op}'")
    given: dict[str, Any] = {"seed": seed, "lanes": lanes, "cores": cores, "math": math, "line_bytes": line_bytes}
    given |= {"compute": compute, "sums": sums}
    if inputs is None and workload.inputs:
        inputs = load_inputs(workload.inputs)
    if workload.scale == "auto":
        tried = workload.model_copy(update={"scale": "tensor"})
        with suppress(InputError):
            return build_kernel(tried, **given, inputs=inputs)
        return build_kernel(workload.model_copy(update={"scale": "none"}), **given, inputs=inputs)
    own = Numbers(workload.accumulate, workload.chunk, workload.scale, workload.scale_block, workload.distribution)
    numbers = own
    if sums is not None:
        accumulate, chunk = own.accumulate or sums.accumulate, own.chunk or sums.chunk
        numbers = replace(own, accumulate=accumulate, chunk=chunk)
    kernel = make(workload, Setting(seed, lanes, cores, math, line_bytes, numbers, compute), inputs)
    unread = [name for name in own.asked() if name not in kernel.reads]
    if unread:
        raise InputError(f"{unread[0]} means nothing to op '{workload.op}'; leave it out")
    return kernel


def exact_kernel(workload: WorkloadSpec, *, seed: int = 0, inputs: Inputs = None) -> Kernel:
    """The same workload in float64, with its inputs as they were before any rounding: for its reference."""
    plain = {"precision": "fp64", "accumulate": None, "chunk": None, "scale": "none"}
    return build_kernel(workload.model_copy(update=plain), seed=seed, inputs=inputs)
