"""The `work` of a run on an array: operations, rate and peak, and how its cells were used."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from typing import Any

from hwsim.engine.outcome import FEMTOSECONDS, Outcome
from hwsim.kernels.kernel import Kernel


def array_work(kernel: Kernel, outcome: Outcome) -> dict[str, Any]:
    """The same keys as for cores, and `array`."""
    used = outcome.array
    assert used is not None, "only for runs on arrays"
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
        "array": used,
    }
