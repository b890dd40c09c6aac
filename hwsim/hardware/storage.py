"""Storage: what lies behind main memory. A run finds its inputs there; each page of them is staged into DRAM once.

Tensors that a run writes are made in DRAM and cost nothing here. Results stay in DRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hwsim.errors import CapacityError
from hwsim.hardware.core import ZERO, CpuCore, Transfer
from hwsim.spec.memory import StorageSpec
from hwsim.trace.nest import Nest
from hwsim.units import format_bytes

PAGE_BYTES = 4096


class Storage:
    """Which pages are in DRAM already, and what it takes to bring others in."""

    def __init__(self, spec: StorageSpec, needed_bytes: int, storage_hz: int) -> None:
        if spec.size is not None and needed_bytes > spec.size:
            has = format_bytes(spec.size)
            raise CapacityError(f"the run needs {format_bytes(needed_bytes)} from {spec.name}, which has {has}")
        self.spec = spec
        self.staged_pages = 0
        self._hz = storage_hz
        self._present: set[int] = set()

    def stage(self, nests: Sequence[Nest]) -> int:
        """Bytes that these nests read for the first time, in whole pages; from now on they are in DRAM."""
        before = self.staged_pages
        for nest in nests:
            made = {access.tensor for access in nest.accesses if access.write}
            for access in nest.accesses:
                low, high = nest.span(access)
                pages = set(range(low // PAGE_BYTES, (high - 1) // PAGE_BYTES + 1)) - self._present
                self._present |= pages
                self.staged_pages += 0 if access.tensor in made else len(pages)
        return (self.staged_pages - before) * PAGE_BYTES

    def transfer(self, nbytes: int, core: CpuCore) -> Transfer:
        """The latency once, since staging reads ahead, and then the bytes."""
        cycles = self.spec.latency.seconds(self._hz) * core.clock_hz if self.spec.latency else ZERO
        limits = [limit for limit in (self.spec.bandwidth, self.spec.unit_bandwidth) if limit is not None]
        rates = [rate for limit in limits if (rate := limit.bytes_per_cycle(self._hz)) is not None]
        if rates:
            cycles += Fraction(nbytes) / (min(rates) * self._hz / core.clock_hz)
        return Transfer(f"staging from {self.spec.name}", self.spec.name, cycles, nbytes)
