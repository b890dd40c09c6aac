"""The power cap: what a kernel would draw at full clock, and how far the clock is lowered to stay within the limit.

Power is idle power plus the energy of what was done, over time. Where that exceeds the limit, the time is stretched
until it does not: energy per operation is taken not to depend on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwsim.hardware.gpu.device import Device


@dataclass(frozen=True)
class Activity:
    """What a kernel did, as far as it costs energy."""

    fma: float
    unit: str
    """Where: `tensor` or `lanes`."""
    precision: str
    dram_bytes: float
    special: float = 0.0

    def joules(self, device: Device) -> float:
        """Energy beyond idle power."""
        name = device.sm.name
        action = f"{name}.tensor.{self.precision}" if self.unit == "tensor" else f"{name}.fma.{self.precision}"
        picojoules = (
            self.fma * device.picojoules(action)
            + self.dram_bytes * device.picojoules(f"{device.dram.name}.read")
            + self.special * device.picojoules(f"{name}.special")
        )
        return picojoules * 1e-12


@dataclass(frozen=True)
class Power:
    """What a kernel draws while it runs."""

    watts: float
    limited: bool
    """Whether the clock had to be lowered."""
    clock_hz: float
    """Mean clock over the kernel."""


def under_cap(device: Device, seconds: float, joules: float) -> tuple[float, Power]:
    """The time that the kernel takes within the power limit, and what it then draws."""
    limit = device.sm.power_limit
    room = float(limit) - device.idle_watts if limit is not None else float("inf")
    capped = max(seconds, joules / room) if room > 0 else seconds
    watts = device.idle_watts + (joules / capped if capped else 0.0)
    clock = device.clock_hz * (seconds / capped if capped else 1.0)
    return capped, Power(watts, capped > seconds, clock)
