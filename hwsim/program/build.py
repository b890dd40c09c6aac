"""From a workload to its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hwsim.errors import InputError
from hwsim.numerics.datapath import SumRule, find_datapath
from hwsim.numerics.format import Array
from hwsim.numerics.quantize import can_be_scaled_integers
from hwsim.program.kernel import Kernel, Numbers, Setting
from hwsim.program.tensors import load_inputs
from hwsim.spec.workload import WorkloadSpec

Inputs = Mapping[str, Array] | None


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
    sums: SumRule | None = None,
) -> Kernel:
    """The kernel of a workload, for a machine with `lanes` elements in a vector and `cores` cores.

    `inputs` replaces random tensors by given ones, by name. `compute` is the format that arithmetic runs in, where that
    is not the format of the tensors; `sums` is how the machine keeps sums in it, where the workload does not say.
    """
    if workload.operation is None:
        raise InputError(f"there is no kernel for op '{workload.op}'")
    given: dict[str, Any] = {"seed": seed, "lanes": lanes, "cores": cores, "math": math, "line_bytes": line_bytes}
    given |= {"compute": compute, "sums": sums}
    if inputs is None and workload.inputs:
        inputs = load_inputs(workload.inputs)
    if workload.scale is None:
        return build_kernel(with_usual_scale(workload, inputs), **given, inputs=inputs)
    if workload.scale == "auto":
        tried = workload.model_copy(update={"scale": "tensor"})
        with suppress(InputError):
            return build_kernel(tried, **given, inputs=inputs)
        return build_kernel(workload.model_copy(update={"scale": "none"}), **given, inputs=inputs)
    own = Numbers(workload.accumulate, workload.chunk, workload.scale, workload.scale_block, workload.distribution)
    numbers = own
    if sums is not None:
        accumulate, chunk = own.accumulate or sums.accumulate, own.chunk or sums.chunk
        numbers = replace(own, accumulate=accumulate, chunk=chunk, at_tiles=sums.at_tiles)
    kernel: Kernel = workload.operation.kernel(
        workload, Setting(seed, lanes, cores, math, line_bytes, numbers, compute), inputs
    )
    unread = [name for name in own.asked() if name not in kernel.reads]
    if unread:
        raise InputError(f"{unread[0]} means nothing to op '{workload.op}'; leave it out")
    return kernel


def with_usual_scale(workload: WorkloadSpec, inputs: Inputs = None) -> WorkloadSpec:
    """Where nobody chose: integers stand for fractions by a scale for each tensor, if the operation can have scales.

    What an operation does not compute in whole numbers stays refused: then another format is the better choice.
    """
    if workload.scale is not None:
        return workload
    plain = workload.model_copy(update={"scale": "none"})
    if inputs or workload.inputs or not can_be_scaled_integers(find_datapath(workload.precision).a):
        return plain
    scaled = workload.model_copy(update={"scale": "tensor"})
    try:
        build_kernel(plain, math=False)
        build_kernel(scaled, math=False)
    except InputError:
        return plain
    return scaled


def exact_kernel(workload: WorkloadSpec, *, seed: int = 0, inputs: Inputs = None) -> Kernel:
    """The same workload in float64, with its inputs as they were before any rounding: for its reference."""
    plain = {"precision": "fp64", "accumulate": None, "chunk": None, "scale": "none"}
    return build_kernel(workload.model_copy(update=plain), seed=seed, inputs=inputs)
