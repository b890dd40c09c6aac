"""Kinds of memory chips by name: what one channel of them is made of, how fast it is, and how long it takes.

A machine file that says `device: ddr4_3200` need not repeat these figures, and may overrule any of them. Timing is that
of common speed grades; where a standard leaves it to the vendor, the source says whose figures stand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

DeviceName = Literal[
    "ddr4_3200", "ddr5_4800", "lpddr5_6400", "lpddr5x_8533", "gddr6_16", "gddr7_32", "hbm2e", "hbm3", "hbm3e"
]


@dataclass(frozen=True)
class DramDevice:
    """One channel of a kind of memory chip. Times in nanoseconds."""

    gigabytes: float
    """What one channel delivers in a second at best, in 10^9 bytes."""
    banks: int
    row: int
    burst: int
    cl: float
    trcd: float
    trp: float
    tras: float
    trefi: float
    trfc: float
    source: str

    def fields(self, channels: int) -> dict[str, Any]:
        """The fields of a memory of so many channels, as a machine file would write them."""
        times = {name: f"{getattr(self, name)} ns" for name in ("cl", "trcd", "trp", "tras", "trefi", "trfc")}
        shape = {"banks": self.banks, "row": f"{self.row} B", "burst": f"{self.burst} B", "timing": times}
        return {"bandwidth": f"{channels * self.gigabytes} GB/s", **shape}


_LPDDR = "organisation and times in ns as Ramulator 2 has LPDDR5-6400 (JESD209-5)"
_HBM = "organisation JESD238; times as DRAMsim3 has HBM2, because vendors do not publish those of HBM3"
DEVICES: Mapping[str, DramDevice] = {
    "ddr4_3200": DramDevice(
        25.6, 16, 8192, 64, 13.75, 13.75, 13.75, 32, 7800, 350, "JESD79-4, DDR4-3200AA, 8 Gb chips x8, one rank"
    ),
    "ddr5_4800": DramDevice(
        19.2,
        32,
        4096,
        64,
        16.67,
        16.67,
        16.67,
        32,
        3900,
        295,
        "JESD79-5, DDR5-4800B, 16 Gb chips x8, 32-bit sub-channel",
    ),
    "lpddr5_6400": DramDevice(12.8, 16, 2048, 32, 25, 18.75, 18.75, 42.5, 3906, 280, f"{_LPDDR}, 16-bit channel"),
    "lpddr5x_8533": DramDevice(
        17.066, 16, 2048, 32, 25, 18.75, 18.75, 42.5, 3906, 280, f"8.533 GT/s on 16 bits (JESD209-5C); {_LPDDR}"
    ),
    "gddr6_16": DramDevice(
        32, 16, 2048, 32, 13.7, 14.8, 14.8, 30.2, 1900, 120, "16 Gb/s on a 16-bit channel (JESD250); times Ramulator 2"
    ),
    "gddr7_32": DramDevice(
        32,
        16,
        1024,
        32,
        13.7,
        14.8,
        14.8,
        30.2,
        1900,
        120,
        "32 Gb/s on an 8-bit channel, four of them in a chip (JESD239); assumption: times and banks as GDDR6, row half",
    ),
    "hbm2e": DramDevice(
        28.8, 16, 1024, 32, 14, 14, 14, 34, 3900, 350, "3.6 Gb/s on a 64-bit pseudo-channel (JESD235); times DRAMsim3"
    ),
    "hbm3": DramDevice(25.6, 16, 1024, 32, 14, 14, 14, 34, 3900, 350, f"6.4 Gb/s on a 32-bit pseudo-channel; {_HBM}"),
    "hbm3e": DramDevice(38.4, 16, 1024, 32, 14, 14, 14, 34, 3900, 350, f"9.6 Gb/s on a 32-bit pseudo-channel; {_HBM}"),
}
