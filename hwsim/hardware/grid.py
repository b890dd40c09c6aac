"""A grid of processing elements: what a convolution layer costs on it, in actions and in cycles. No clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from hwsim.errors import CapacityError, InputError
from hwsim.hardware.loopnest import Flow, count_accesses
from hwsim.hardware.row_stationary import ConvShape, GridSizes, Mapping, mappings
from hwsim.numerics.format import Array
from hwsim.spec.grid import GridSpec
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec, ScratchpadSpec


@dataclass(frozen=True)
class GridCost:
    """Actions by part, and cycles, of one layer."""

    mapping: Mapping
    flow: Flow
    actions: dict[tuple[str, str], int]
    """How often each part did what; every action moves one value."""
    compute_cycles: Fraction
    weight_cycles: Fraction
    """Weights enter between passes."""
    buffer_cycles: Fraction
    """What the buffer's bandwidth asks for; it runs beside the computation."""
    dram_cycles: Fraction
    """What main memory's bandwidth asks for; nothing runs meanwhile."""

    @property
    def cycles(self) -> Fraction:
        return max(self.compute_cycles + self.weight_cycles, self.buffer_cycles) + self.dram_cycles

    def traffic(self, part: str) -> int:
        """Values that a memory delivers and receives."""
        return sum(count for (name, action), count in self.actions.items() if name == part and action in _MOVES)


_MOVES = ("read", "write")

Rank = Callable[[GridCost], float]

_NEARLY = 1.05
"""Mappings that take at most so many times the cycles of the fastest are as good as it."""


class Grid:
    """The grid of a machine with its memories: one scratchpad for each operand, a buffer, main memory."""

    def __init__(self, machine: MachineSpec) -> None:
        unit = machine.compute[0]
        if not isinstance(unit, GridSpec):
            raise InputError(f"machine {machine.name} has no grid of processing elements: {unit.name} is a {unit.kind}")
        self.machine, self.unit = machine, unit
        self.clock_hz = machine.clock_hz(unit.clock)
        pads = [level for level in machine.memory if isinstance(level, ScratchpadSpec)]
        self._pads = {role: _only(machine, pads, role) for role in ("input", "weight", "output")}
        self._buffer = next((pad for pad in pads if pad.shared_by == "all"), None)
        self._dram = next(level for level in machine.memory if isinstance(level, DramSpec))

    @cached_property
    def sizes(self) -> GridSizes:
        """In values of the grid's width."""
        inputs, weights, sums = (8 * self._pads[role].size // self.unit.bits for role in ("input", "weight", "output"))
        if self._buffer is None:
            raise InputError(f"machine {self.machine.name}: a grid needs a scratchpad with shared_by: all")
        buffer = 8 * self._buffer.size // self.unit.bits
        return GridSizes(self.unit.rows, self.unit.columns, inputs, weights, sums, buffer)

    def best(self, shape: ConvShape, zero_share: float = 0.0, rank: Rank | None = None) -> GridCost:
        """Of the mappings that compute nearly as fast as any, the one with the lowest `rank`.

        Without one: the least energy at the machine's prices, or the least buffer traffic if it has none.
        """
        fitting = list(mappings(shape, self.sizes))
        if not fitting:
            raise CapacityError(
                f"no row-stationary mapping of a {shape.r}x{shape.s} kernel over {shape.w_in} columns fits "
                f"{self.machine.name}: it has {self.unit.rows} rows, {self.sizes.inputs} inputs, {self.sizes.weights} "
                f"weights and {self.sizes.sums} sums in an element, and {self.sizes.buffer} values in its buffer"
            )
        cycles = [float(self._busy(mapping)) for mapping in fitting]
        fast = [mapping for mapping, busy in zip(fitting, cycles, strict=True) if busy <= _NEARLY * min(cycles)]
        return min((self.cost(mapping, zero_share) for mapping in fast), key=rank or self._rank)

    def cost(self, mapping: Mapping, zero_share: float = 0.0) -> GridCost:
        """What a mapping does; `zero_share` of the multiplications have an input of zero."""
        work, stores = mapping.nest()
        flow = count_accesses(work, stores)
        shape = mapping.shape
        real = Fraction(shape.macs, work.macs)
        useful = round(shape.macs * (1 - zero_share)) if self.unit.gate_zeros else shape.macs
        pads = {role: pad.name for role, pad in self._pads.items()}
        sums, inputs = flow.accesses["sums", "output"], flow.accesses["inputs", "input"]
        weights = flow.accesses["weights", "weight"]
        in_use = Fraction(useful, shape.macs)
        actions = {
            (self.unit.name, "mac"): useful,
            (self.unit.name, "hop"): round(flow.reduced * real),
            (pads["weight"], "read"): useful,
            (pads["weight"], "write"): round(weights.writes * real),
            (pads["input"], "read"): shape.macs // mapping.p,
            (pads["input"], "write"): round(inputs.writes * real),
            (pads["output"], "read"): round(sums.reads * real * in_use),
            (pads["output"], "write"): round(sums.writes * real * in_use),
        }
        for name, part in (("buffer", self._buffer), ("dram", self._dram)):
            assert part is not None
            total = flow.total(name)
            actions[part.name, "read"] = round(total.reads * real)
            actions[part.name, "write"] = round(total.writes * real)
        return GridCost(
            mapping,
            flow,
            actions,
            compute_cycles=Fraction(mapping.steps),
            weight_cycles=self._busy(mapping) - mapping.steps,
            buffer_cycles=self._transfer(self._buffer, actions),
            dram_cycles=self._transfer(self._dram, actions),
        )

    def _rank(self, cost: GridCost) -> float:
        if self.machine.energy is None:
            return float(cost.traffic(self._buffer.name) if self._buffer is not None else 0)
        prices = self.machine.energy.actions
        named = {f"{part}.{action}": count for (part, action), count in cost.actions.items()}
        return float(sum(prices[name].energy.picojoules * count for name, count in named.items() if name in prices))

    def _busy(self, mapping: Mapping) -> Fraction:
        """Cycles in which the grid computes or takes weights in."""
        return mapping.steps + Fraction(mapping.passes * mapping.pass_weights, self.unit.weight_words)

    def _transfer(self, part: ScratchpadSpec | DramSpec | None, actions: dict[tuple[str, str], int]) -> Fraction:
        if part is None or part.bandwidth is None:
            return Fraction(0)
        hz = self.machine.clock_hz(part.clock)
        rate = part.bandwidth.bytes_per_cycle(hz)
        values = sum(actions[part.name, action] for action in _MOVES)
        return Fraction(values * self.unit.bits, 8) / rate * self.clock_hz / hz if rate else Fraction(0)


def gated_share(inputs: Array, shape: ConvShape) -> float:
    """The share of multiplications whose input is zero, from the real data (images, channels, rows, columns)."""
    rows = _uses(shape.h_in, shape.r, shape.rows_out, shape)
    columns = _uses(shape.w_in, shape.s, shape.columns_out, shape)
    uses = rows[:, None] * columns[None, :]
    zeros = np.count_nonzero(np.asarray(inputs) == 0, axis=(0, 1))
    padding = shape.batch * shape.c_in * (shape.rows_out * shape.r * shape.columns_out * shape.s - int(uses.sum()))
    whole = shape.batch * shape.c_in * shape.rows_out * shape.r * shape.columns_out * shape.s
    return float((int((zeros * uses).sum()) + padding) / whole)


def _uses(size: int, kernel: int, outputs: int, shape: ConvShape) -> Array:
    """How often each row (or column) of the input lies under the kernel."""
    uses = np.zeros(size, np.int64)
    for output in range(outputs):
        first = output * shape.stride - shape.pad
        uses[max(0, first) : max(0, first + kernel)] += 1
    return uses


def _only(machine: MachineSpec, pads: list[ScratchpadSpec], role: str) -> ScratchpadSpec:
    found = [pad for pad in pads if pad.shared_by == 1 and pad.holds == (role,)]
    if len(found) != 1:
        raise InputError(
            f"machine {machine.name}: an element of a grid needs one scratchpad that holds [{role}] alone, "
            f"found {len(found)}"
        )
    return found[0]
