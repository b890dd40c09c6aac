"""The `work` of a run on an array or a GPU: operations, rate and peak, and how the unit was used."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from typing import Any

from hwsim.engine.outcome import FEMTOSECONDS, Outcome
from hwsim.kernels.kernel import Kernel


def accelerator_work(kernel: Kernel, outcome: Outcome) -> dict[str, Any]:
    """The same keys as for cores, and `array` or `gpu`."""
    name, used = ("array", outcome.array) if outcome.array is not None else ("gpu", outcome.gpu)
    assert used is not None, "only for runs on arrays and GPUs"
    seconds = Fraction(outcome.elapsed_fs, FEMTOSECONDS)
    return {
        "flops": outcome.flops,
        "useful_flops": kernel.useful_flops,
        "macs": outcome.macs,
        "loads": outcome.loads,
        "stores": outcome.stores,
        "instructions": asdict(outcome.instructions),
        "cores": len(outcome.agents),
        "flops_per_s": float(outcome.flops / seconds) if seconds else 0.0,
        "peak_flops_per_s": 2 * used["peak_macs_per_cycle"] * outcome.clock_hz,
        name: used,
    }
