"""A GPU as its kernels see it: its rates, the blocks that an SM holds, what blocks, waves and kernels cost, power.

Times are cycles of the SMs' clock, rates are per cycle of the whole GPU unless they say otherwise.

A block is a loop of steps: each step loads a tile of operands and multiplies it. Loads of later steps run while this
one is multiplied, so a wave's loop takes the longest of its products, its traffic from the L2 and its traffic from
DRAM. What a block does before its first and after its last product does not overlap with its own loop.

Power is idle power plus the energy of what was done, over time. Where that exceeds the limit, the time is stretched
until it does not; below the limit that prices are fitted within, energy falls with the voltage (under_cap).

A kernel's time is that of its blocks on SMs that share the L2 and DRAM (agent.py), its traffic that of a replay
(replay.py). What closed forms say stands beside both, as a check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NoReturn, TypeVar

from hwsim.catalog import load_machine, shipped_folder
from hwsim.engine import voltage
from hwsim.errors import CapacityError, InputError
from hwsim.numerics.datapath import SumRule, sums_in
from hwsim.spec.machine import CacheSpec, DramSpec, Level, MachineSpec, RegistersSpec, ScratchpadSpec
from hwsim.targets.gpu.spec import GpuSpec
from hwsim.units import format_bytes

if TYPE_CHECKING:
    from hwsim.targets.gpu.agent import BlockGrid


def element_bytes(precision: str) -> float:
    """`fp16` 2, `fp8_e4m3` 1, `int4` 0.5: the first number of a format's name is its bits."""
    found = re.match(r"[a-z]+(\d+)", precision)
    if found is None:
        raise InputError(f"'{precision}' is no number format: its name has no number of bits, as in fp16 or int8")
    return int(found[1]) / 8


L = TypeVar("L", bound=Level)

MMA_BYTES = 32
"""Of each row and column that one tensor-core instruction multiplies: 16 numbers of 16 bits."""
_FAR = 1e18
"""Bytes per cycle of a level that states no bandwidth."""


@dataclass(frozen=True)
class Device:
    """A GPU of a machine file."""

    machine: MachineSpec
    sm: GpuSpec
    registers: RegistersSpec
    shared: ScratchpadSpec
    l2: CacheSpec
    dram: DramSpec

    @classmethod
    def of(cls, machine: MachineSpec) -> Device:
        unit = machine.compute[0]
        if not isinstance(unit, GpuSpec):
            raise InputError(f"machine {machine.name} is no GPU: its {unit.name} is a {unit.kind}")
        return cls(
            machine,
            unit,
            _only(machine, RegistersSpec, "a register file (kind: registers)"),
            _only(machine, ScratchpadSpec, "shared memory (kind: scratchpad)"),
            machine.caches[-1] if machine.caches else _missing(machine, "an L2 (kind: cache, shared_by: all)"),
            _only(machine, DramSpec, "DRAM (kind: dram)"),
        )

    @cached_property
    def clock_hz(self) -> int:
        return self.machine.clock_hz(self.sm.clock)

    @property
    def count(self) -> int:
        """Number of SMs."""
        return self.sm.count

    @cached_property
    def register_words(self) -> int:
        """Registers of an SM as kernels count them, 32 bits each."""
        return self.registers.count * self.registers.bits // 32

    @cached_property
    def dram_rate(self) -> float:
        """Bytes per cycle, as the data sheet has it."""
        return self._rate(self.dram)

    @cached_property
    def tile_rate(self) -> float:
        return self.dram_rate * self.sm.library.tile_bandwidth

    @cached_property
    def stream_rate(self) -> float:
        return self.dram_rate * self.sm.library.stream_bandwidth

    @cached_property
    def l2_stream(self) -> float:
        """Bytes per cycle of the L2, which long rows reach."""
        return self._rate(self.l2)

    @cached_property
    def l2_rate(self) -> float:
        """Bytes per cycle that tiles reach."""
        return self._rate(self.l2) * self.sm.library.l2_bandwidth

    @cached_property
    def kept_bytes(self) -> float:
        """Bytes of data that all SMs read which the L2 keeps."""
        return self.l2.size * self.sm.library.l2_kept

    @cached_property
    def flight_latency(self) -> float:
        """Cycles of a load from DRAM while tiles keep many under way."""
        return max(1.0, self.memory_latency * self.sm.library.loaded_latency)

    @cached_property
    def sm_rate(self) -> float:
        """Bytes per cycle that one SM can draw from the L2."""
        drawn = self.l2.unit_bandwidth
        per_cycle = None if drawn is None else drawn.bytes_per_cycle(self.clock_hz)
        return self.l2_rate if per_cycle is None else float(per_cycle)

    @cached_property
    def store_rate(self) -> float:
        """Bytes per cycle of results that leave one SM."""
        return min(self.sm_rate, float(self.sm.library.store_rate or self.sm_rate))

    def stores(self, block: BlockCost) -> float:
        """The same for a kernel of its own rate."""
        return self.store_rate if block.store_rate is None else min(self.sm_rate, block.store_rate)

    @cached_property
    def l1(self) -> CacheSpec:
        """The cache of one SM, in front of the L2."""
        if len(self.machine.caches) < 2:
            _missing(self.machine, "an L1 of each SM (kind: cache) in front of its L2")
        return self.machine.caches[0]

    @cached_property
    def l1_rate(self) -> float:
        """Bytes per cycle that the L1 of one SM delivers."""
        return self._rate(self.l1)

    @cached_property
    def shared_rate(self) -> float:
        """Bytes per cycle that the shared memory of one SM delivers."""
        return self._rate(self.shared)

    @cached_property
    def memory_latency(self) -> float:
        """Cycles of a load that goes to DRAM."""
        return self.latency_of(self.dram)

    def latency_of(self, level: CacheSpec | ScratchpadSpec | DramSpec) -> float:
        """Cycles of a load that is found in a level."""
        return 0.0 if level.latency is None else float(level.latency.cycles(self.clock_hz))

    def fma_rate(self, precision: str, unit: str) -> float:
        """Fused multiply-adds per cycle of one SM."""
        rates = self.sm.tensor if unit == "tensor" else self.sm.lanes
        if precision not in rates:
            known = ", ".join(sorted({*self.sm.tensor, *self.sm.lanes}))
            raise InputError(f"{self.machine.name} has no {unit} rate for {precision}; it multiplies {known}")
        return rates[precision]

    def unit_for(self, precision: str) -> str:
        """Where the library multiplies matrices of a format: `tensor` or `lanes`."""
        chosen = self.sm.library.units.get(precision)
        if chosen is None:
            chosen = "tensor" if precision in self.sm.tensor else "lanes"
        self.fma_rate(precision, chosen)
        return chosen

    def drain(self, unit: str, *, special: bool = False) -> int:
        """Cycles from the last operands of a block to its results: one instruction, and an exponential behind it."""
        latency = self.sm.latency
        return (latency.tensor if unit == "tensor" else latency.fma) + (latency.special if special else 0)

    def sums(self, precision: str) -> SumRule:
        """How sums of products of a format are kept: in the accumulators that the file names, all through k.

        One tensor-core instruction sums products of 32 bytes of each operand; a lane adds one product at a time.
        """
        chunk = max(1, round(MMA_BYTES / element_bytes(precision))) if self.unit_for(precision) == "tensor" else 1
        return sums_in(precision, self.sm.accumulate.get(precision, precision), chunk)

    def launch_seconds(self, timing: str) -> float:
        """Time around a kernel: started in a `graph`, in a `stream`, by the `host`, or `following` another."""
        launch = self.sm.launch
        times = {
            "graph": launch.graph,
            "stream": launch.stream,
            "host": launch.host or launch.stream,
            "following": launch.following or launch.graph,
        }
        if timing not in times:
            raise InputError(f"timing {timing!r} is not one of {', '.join(times)}")
        return float(times[timing].seconds(self.clock_hz))

    def picojoules(self, action: str) -> float:
        """The price of an action, per byte where the file prices bits; 0 where it has none."""
        prices = self.machine.energy.actions if self.machine.energy else {}
        if action not in prices:
            return 0.0
        price = prices[action].energy
        return float(price.picojoules) * (8 if price.per == "bit" else 1)

    @cached_property
    def idle_watts(self) -> float:
        static = self.machine.energy.static if self.machine.energy else {}
        return float(sum(entry.power for entry in static.values()))

    @cached_property
    def own_limit(self) -> float:
        """The limit that prices and times are held to: that of the machine as it is shipped, or its own."""
        shipped, limit = _shipped_limit(self.machine.name), self.sm.power_limit
        if limit is None:
            return float("inf")
        return float(limit) if shipped is None else max(shipped, float(limit))

    def _rate(self, level: Level) -> float:
        if level.bandwidth is None:
            return _FAR
        per_cycle = level.bandwidth.bytes_per_cycle(self.clock_hz)
        return _FAR if per_cycle is None else float(per_cycle)


@lru_cache(maxsize=64)
def _shipped_limit(name: str) -> float | None:
    """The power limit of a GPU that comes with hwsim, as it comes."""
    file = shipped_folder("machine") / f"{name}.yaml"
    if not file.is_file():
        return None
    units = [unit for unit in load_machine(file).spec.compute if isinstance(unit, GpuSpec)]
    limit = units[0].power_limit if units else None
    return None if limit is None else float(limit)


def _only(machine: MachineSpec, kind: type[L], what: str) -> L:
    found = [level for level in machine.memory if isinstance(level, kind)]
    return found[0] if found else _missing(machine, what)


def _missing(machine: MachineSpec, what: str) -> NoReturn:
    raise InputError(f"machine {machine.name} is a GPU and needs {what} among its memory levels")


# Occupancy ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """What one block needs."""

    threads: int
    registers: int
    """Of one thread."""
    shared_bytes: int

    def warps(self, device: Device) -> int:
        return -(-self.threads // device.sm.warp)

    def block_registers(self, device: Device) -> int:
        """Registers of a block: each warp gets them in whole units."""
        unit = device.sm.register_unit
        return self.warps(device) * (-(-self.registers * device.sm.warp // unit) * unit)


@dataclass(frozen=True)
class SmOccupancy:
    """Blocks and warps that an SM holds at once."""

    blocks: int
    warps: int
    most_warps: int
    limit: str
    """What allows no further block: warps, blocks, registers or shared memory."""


def occupancy(device: Device, block: Footprint, what: str = "a block") -> SmOccupancy:
    """How many such blocks run on one SM; raises CapacityError where not even one does."""
    check_block(device, block, what)
    sm = device.sm
    shared = block.shared_bytes + (sm.shared_reserved or 0)
    room = {
        "warps": sm.warps // block.warps(device),
        "blocks": sm.blocks,
        "registers": device.register_words // max(1, block.block_registers(device)),
        "shared memory": device.shared.size // max(1, shared),
    }
    limit = min(room, key=lambda name: room[name])
    blocks = room[limit]
    return SmOccupancy(blocks, blocks * block.warps(device), sm.warps, limit)


def check_block(device: Device, block: Footprint, what: str, fitting: Callable[[], str] | None = None) -> None:
    """Raises CapacityError with every limit that one block exceeds, by how much, and (`fitting`) what would fit."""
    sm = device.sm
    most_threads = min(sm.block_threads, sm.warps * sm.warp)
    shared = block.shared_bytes + (sm.shared_reserved or 0)
    found = []
    if block.threads > most_threads:
        found.append(f"{block.threads} threads, {block.threads - most_threads} more than the {most_threads} of a block")
    if block.registers > sm.thread_registers:
        found.append(
            f"{block.registers} registers for each thread, {block.registers - sm.thread_registers} more than "
            f"the {sm.thread_registers} that a thread can name"
        )
    if block.block_registers(device) > device.register_words:
        needed = block.block_registers(device)
        found.append(
            f"{needed} registers, {needed - device.register_words} more than the {device.register_words} of "
            f"{sm.name}.{device.registers.name}"
        )
    if shared > device.shared.size:
        found.append(
            f"{format_bytes(shared)} in {sm.name}.{device.shared.name}, {format_bytes(shared - device.shared.size)} "
            f"more than its {format_bytes(device.shared.size)}"
        )
    if found:
        advice = f"; {fitting()}" if fitting is not None else ""
        raise CapacityError(f"{what} needs {' and '.join(found)} on {device.machine.name}{advice}")


def fits(device: Device, block: Footprint) -> bool:
    """Whether an SM can hold one such block."""
    try:
        check_block(device, block, "")
    except CapacityError:
        return False
    return True


# Blocks and waves -----------------------------------------------------------------------------------------------------

MATH, LATENCY, L2, DRAM, WRITE, START = "math", "step latency", "l2", "dram", "write", "start"
LAUNCH = "launch"
"""The parts of a wave's time, by name."""


@dataclass(frozen=True)
class BlockCost:
    """One block, without a clock: cycles of work and bytes to move."""

    steps: int
    step_math: float
    """Cycles that one step keeps the SM's units busy."""
    step_latency: float
    """Cycles of one step in which a block alone on its SM keeps them idle."""
    l2_bytes: float
    """Read through the L2, whatever lies there already."""
    dram_bytes: float
    """The part of it that comes from DRAM."""
    write_bytes: float
    start_cycles: float
    flight_bytes: float
    """Bytes that the block can have under way at once."""
    writes_beside: bool = False
    """Whether its results leave while other blocks of its SM multiply: straight from registers, not through the shared
    memory that the next block waits for."""
    double_sums: bool = False
    """Whether there is room for the sums of a second block, so that its results leave while that one multiplies even
    if no other shares the SM."""
    store_rate: float | None = None
    """Bytes of results per cycle that its kernel brings from the sums of an SM, if not as many as others there."""
    kept_results: bool = False
    """Whether the L2 takes its results and has room for them: DRAM gets them when others have run."""

    @property
    def math_cycles(self) -> float:
        return self.steps * self.step_math

    def leaves_beside(self, resident: int, *, last: bool) -> bool:
        """Whether its results leave while others multiply, of which there are none after the last blocks."""
        return not last and (self.double_sums or (self.writes_beside and resident > 1))


@dataclass(frozen=True)
class Wave:
    """Blocks that run at the same time, `resident` on each SM; `repeat` such waves follow each other."""

    blocks: int
    resident: int
    repeat: int
    cycles: float
    """Of one wave."""
    parts: Mapping[str, float]
    """What each part alone would take."""

    @cached_property
    def total_cycles(self) -> float:
        return self.repeat * self.cycles


def wave(device: Device, block: BlockCost, blocks: int, resident: int, repeat: int = 1, *, last: bool = True) -> Wave:
    """So many blocks at once. Those that others follow hide all starts on their SM but one, and perhaps results."""
    busy = min(blocks, device.count)
    reach = busy * min(device.sm_rate, resident * block.flight_bytes / device.flight_latency)
    beside = block.leaves_beside(resident, last=last)
    far = block.dram_bytes + (block.write_bytes if beside and not block.kept_results else 0.0)
    loop = {
        MATH: resident * block.math_cycles,
        LATENCY: block.steps * (block.step_math + block.step_latency),
        L2: blocks * block.l2_bytes / min(device.l2_rate, reach),
        DRAM: blocks * far / min(device.tile_rate, reach),
    }
    stored = blocks * block.write_bytes / (busy * device.stores(block))
    if beside:
        loop[WRITE] = stored
    outside = {START: block.start_cycles if last else block.start_cycles / resident}
    if not beside:
        outside[WRITE] = max(stored, blocks * block.write_bytes / _write_rate(device, block))
    return Wave(blocks, resident, repeat, max(loop.values()) + sum(outside.values()), loop | outside)


def _write_rate(device: Device, block: BlockCost) -> float:
    return device.l2_rate if block.kept_results else device.tile_rate


def waves_of(device: Device, block: BlockCost, count: int, resident: int) -> tuple[Wave, ...]:
    """Equal blocks, handed out as SMs become free: whole waves, then a tail that is spread thinly.

    Blocks that share an SM share its units, so all of a wave end together and the next one begins. While several
    are resident, one block's start runs under the others' products.
    """
    slots = device.count * resident
    whole = (count - 1) // slots
    left = count - whole * slots
    tail = wave(device, block, left, -(-left // device.count))
    if not whole:
        return (tail,)
    return wave(device, block, slots, resident, whole, last=False), tail


# Power ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activity:
    """What a kernel did, as far as it costs energy."""

    fma: float
    unit: str
    """Where: `tensor` or `lanes`."""
    precision: str
    dram_bytes: float
    special: float = 0.0
    lanes: float = 0.0
    """Instructions of the lanes beside the products: weights turned into another format."""

    def joules(self, device: Device) -> float:
        """Energy beyond idle power."""
        return self.core_joules(device) + self.dram_joules(device)

    def dram_joules(self, device: Device) -> float:
        return self.dram_bytes * device.picojoules(f"{device.dram.name}.read") * 1e-12

    def core_joules(self, device: Device) -> float:
        """Of what runs at the clock and the voltage of the SMs."""
        name = device.sm.name
        action = f"{name}.tensor.{self.precision}" if self.unit == "tensor" else f"{name}.fma.{self.precision}"
        picojoules = (
            self.fma * device.picojoules(action)
            + self.special * device.picojoules(f"{name}.special")
            + self.lanes * device.picojoules(f"{name}.fma.fp32")
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
    core_energy: float = 1.0
    """What the SMs spend on an action, as a share of what they spend within the machine's own limit."""


def under_cap(device: Device, seconds: float, activity: Activity) -> tuple[float, Power]:
    """The time that the kernel takes within the power limit, and what it then draws.

    Prices and times within a machine's own limit are held to measurements, in which the voltage is part of the price.
    Where somebody lowers that limit, clock and voltage fall from there on as on any machine (hwsim.engine.voltage).
    """
    core, far = activity.core_joules(device), activity.dram_joules(device)
    limit, idle = device.sm.power_limit, device.idle_watts
    own = device.own_limit
    usual = max(seconds, (core + far) / (own - idle)) if own > idle else seconds
    room = float("inf") if limit is None else float(limit) - idle
    share, lower = 1.0, 1.0
    if usual and (core + far) / usual > room:
        share = _share_within(room * usual, core, far)
        lower = float(voltage(Fraction(share))) ** 2
    capped = usual / share
    watts = idle + ((core * lower + far) / capped if capped else 0.0)
    clock = device.clock_hz * (seconds / capped if capped else 1.0)
    return capped, Power(watts, capped > seconds, clock, lower)


_LEAST_CLOCK, _HALVINGS = 0.05, 40


def _share_within(joules: float, core: float, far: float) -> float:
    """The largest share of the clock at which a kernel would spend so much in the time of the full clock."""
    low, high = _LEAST_CLOCK, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = middle * (core * float(voltage(Fraction(middle))) ** 2 + far) <= joules
        low, high = (middle, high) if fits else (low, middle)
    return low


# Kernels --------------------------------------------------------------------------------------------------------------

SPECIAL, POWER, MEMORY_UNIT, ISSUE = "special", "power", "load/store", "issue"
FUSED = "products and softmax"
"""What blocks of fused attention do: in each step its products, and of its softmax what these do not hide."""

WORDS = {
    MATH: "the multiply-add rate of the SMs",
    SPECIAL: "the rates of special functions and lanes of the SMs",
    FUSED: "the multiply-add and special-function rates of the SMs",
    LATENCY: "the latency of each step: too few blocks share an SM",
    L2: "the bandwidth of the L2",
    DRAM: "the bandwidth of DRAM",
    WRITE: "writing the results",
    START: "starting and ending blocks",
    MEMORY_UNIT: "the load/store units of the SMs, which serve shared memory and the L1",
    ISSUE: "the issue of instructions",
    POWER: "the power limit, which lowers the clock",
}
"""What each bound means."""


@dataclass(frozen=True)
class ClosedForm:
    """What formulas say about a kernel: the longest part of each wave, and operands once for every wave."""

    seconds: float
    """At full clock."""
    dram_bytes: float
    """Read and written."""


@dataclass(frozen=True)
class KernelCost:
    """One kernel, or a few that belong together, on a whole GPU."""

    name: str
    """The kernel and its tile."""
    seconds: float
    """From the first block's start to the last one's end, within the power limit."""
    full_clock_seconds: float
    """The same at full clock."""
    blocks: int
    resident: int
    """Blocks that share an SM where there are enough."""
    waves: float
    """Blocks over those that run at once."""
    bound: str
    parts: dict[str, float]
    """Cycles that each part takes on the way to the block that ends last; parts of one block may overlap."""
    activity: Activity
    power: Power
    grids: tuple[BlockGrid, ...]
    """What SMs take, kernel by kernel."""
    closed: ClosedForm
    walked: float = 1.0
    """Share of the turns of its blocks that was replayed through the L2; 1 is a full replay."""
    block: BlockCost | None = None
    """A typical block."""
    tile: tuple[int, ...] = ()
    split_k: int = 1
    occupancy: SmOccupancy | None = None

    @property
    def dram_bytes(self) -> float:
        return self.activity.dram_bytes

    @property
    def l2_bytes(self) -> int:
        """Everything that passes the L2."""
        return sum(grid.through_bytes for grid in self.grids)

    @property
    def read_bytes(self) -> int:
        """From DRAM."""
        return sum(grid.read_bytes for grid in self.grids)

    @property
    def write_bytes(self) -> int:
        """To DRAM."""
        return sum(grid.write_bytes for grid in self.grids)

    @property
    def slower(self) -> float:
        """By how much the power limit stretches its time."""
        return self.seconds / self.full_clock_seconds if self.full_clock_seconds else 1.0

    @property
    def bound_in_words(self) -> str:
        return WORDS[self.bound]

    @property
    def launches(self) -> int:
        """Kernels that are started."""
        return len(self.grids)


def moved_bytes(grids: Sequence[BlockGrid]) -> int:
    """Read from DRAM and written there."""
    return sum(grid.read_bytes + grid.write_bytes for grid in grids)
