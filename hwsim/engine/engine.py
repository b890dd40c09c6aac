"""The whole run: a kernel is computed for real while a model of the machine's units says what it costs and time passes.

What a unit is decides how: CPU cores replay accesses through caches, arrays move tiles through scratchpads, GPUs start
kernels whose blocks fill their SMs. Each way is one file, and gives the same kind of outcome.
"""

from __future__ import annotations

from hwsim.engine.array_run import simulate_array
from hwsim.engine.cpu_run import simulate_cores
from hwsim.engine.gpu_run import simulate_gpu
from hwsim.engine.grid_run import simulate_grid
from hwsim.engine.outcome import Outcome
from hwsim.hardware.hierarchy import Hierarchy
from hwsim.kernels.kernel import Kernel
from hwsim.spec.gpu import GpuSpec
from hwsim.spec.grid import GridSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.mapping import MappingSpec
from hwsim.spec.systolic import SystolicSpec
from hwsim.spec.threads import ThreadSchedule


def simulate(
    machine: MachineSpec,
    kernel: Kernel,
    *,
    seed: int = 0,
    timeline: bool = False,
    hierarchy: Hierarchy | None = None,
    mapping: MappingSpec | None = None,
    threads: ThreadSchedule | None = None,
) -> Outcome:
    """Run a kernel on a machine.

    A run starts with cold caches, unless it is given the hierarchy that an earlier run left behind. `mapping` is for
    machines with arrays, whose tiles are moved by software; `threads` for matrix products written by hand for a GPU.
    """
    match machine.compute[0]:
        case SystolicSpec():
            return simulate_array(machine, kernel, mapping, timeline=timeline)
        case GpuSpec():
            return simulate_gpu(machine, kernel, threads, timeline=timeline)
        case GridSpec():
            return simulate_grid(machine, kernel, timeline=timeline)
        case _:
            return simulate_cores(machine, kernel, seed=seed, timeline=timeline, hierarchy=hierarchy)
