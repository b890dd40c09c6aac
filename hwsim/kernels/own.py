"""Kernels of your own: write one in Python, register it under a name, and run it like any other.

    @register_kernel("reverse")
    def reverse(workload, setting):
        kernel = LoopKernel(…)
        …
        return kernel

A workload file then says ``op: python`` and ``kernel: reverse``.
"""

from __future__ import annotations

from collections.abc import Callable

from hwsim.errors import InputError
from hwsim.kernels.kernel import Kernel, Setting
from hwsim.spec.fields import did_you_mean
from hwsim.spec.ops.own import PythonWorkload

KernelMaker = Callable[[PythonWorkload, Setting], Kernel]

_MAKERS: dict[str, KernelMaker] = {}


def register_kernel(name: str) -> Callable[[KernelMaker], KernelMaker]:
    """Decorates a function (or a class) that makes a kernel from a workload and the setting of a run."""

    def register(maker: KernelMaker) -> KernelMaker:
        _MAKERS[name] = maker
        return maker

    return register


def make_own_kernel(workload: PythonWorkload, setting: Setting) -> Kernel:
    maker = _MAKERS.get(workload.kernel)
    if maker is None:
        known = ", ".join(sorted(_MAKERS)) or "none so far"
        raise InputError(
            f"no kernel '{workload.kernel}' is registered{did_you_mean(workload.kernel, _MAKERS)}; "
            f"registered: {known}. Import the module with its @register_kernel first"
        )
    return maker(workload, setting)
