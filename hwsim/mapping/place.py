"""Where the tensors of a kernel lie while it runs on a chip, and from when to when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from hwsim.kernels.kernel import Kernel
from hwsim.kernels.loop.program import Item, Loop, all_loops
from hwsim.mapping.chip import Chip
from hwsim.mapping.gemm import gemm_view

SHARED = 2, 1
WHOLE = 8, 7
"""Of a scratchpad that also takes tiles of weights, tensors may fill a half; of another one, seven eighths."""


@dataclass
class Places:
    """The level of each tensor, and the room that tensors leave in each scratchpad."""

    level: dict[str, str] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The passes from the first to the last that need a tensor."""
    written: dict[str, list[int]] = field(default_factory=dict)
    """The passes that write a tensor."""
    local: dict[str, int] = field(default_factory=dict)
    """Tensors that only one pass uses, which never leave the chip."""

    def producer(self, tensor: str, number: int) -> int:
        """The last pass before this one that wrote a tensor; -1 for an input."""
        return max((writer for writer in self.written.get(tensor, ()) if writer < number), default=-1)

    def taken(self, level: str, number: int) -> int:
        """Bytes of a level that tensors take during a pass."""
        return sum(
            self.nbytes[name]
            for name, where in self.level.items()
            if where == level and self.lives[name][0] <= number <= self.lives[name][1]
        )


def find_places(chip: Chip, kernel: Kernel, items: Sequence[Item], keep: bool) -> Places:
    """Activations stay at home as long as they fit, weights in main memory, what lies between on the chip if asked."""
    places = Places()
    uses = [_uses(item) for item in items]
    results = {*getattr(kernel, "results", ()), *_unread(uses)}
    for number, (reads, writes) in enumerate(uses):
        for name in (*reads, *writes):
            first, _ = places.lives.get(name, (number, number))
            places.lives[name] = (first, number)
        for name in writes:
            places.written.setdefault(name, []).append(number)
    for name in places.lives:
        view = kernel.tensors[name]
        places.bits[name] = ceil(view.element_bits)  # an array moves whole bits: the scale of an MX block counts as one
        elements = 1
        for extent in view.shape:
            elements *= extent
        places.nbytes[name] = -(-elements * view.element_bits // 8)
    last = len(items) - 1
    for name, (first, final) in places.lives.items():
        if name not in places.written:
            places.lives[name] = (0, final)
        if name in results:
            places.lives[name] = (first, last)
    weights = _weights(items) - places.written.keys()
    for name in places.lives:
        places.level[name] = chip.dram.name
    keeper = chip.keeper
    for name in sorted(places.lives, key=lambda name: places.lives[name]):
        between = name in places.written and name not in results
        own = (
            between
            and len({*places.written[name], *_readers(name, uses)}) == 1
            and not isinstance(items[places.written[name][0]], Loop)
        )
        if own and keeper is not None:
            places.local[name] = places.written[name][0]
            places.level[name] = keeper.name
        elif between and keep and keeper is not None:
            _stay(chip, places, name, keeper.name)
        elif name not in weights and chip.home != chip.dram.name:
            _stay(chip, places, name, chip.home)
    return places


def _stay(chip: Chip, places: Places, name: str, level: str) -> None:
    """Leave a tensor on the chip if there is room during its whole life."""
    pad = next(pad for pad in chip.scratchpads if pad.name == level)
    of, parts = SHARED if "weight" in pad.holds else WHOLE
    first, last = places.lives[name]
    most = max(places.taken(level, number) for number in range(first, last + 1))
    if most + places.nbytes[name] <= pad.size * parts // of:
        places.level[name] = level


def _uses(item: Item) -> tuple[set[str], set[str]]:
    """The tensors that an item reads and writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    for loop in all_loops([item]):
        operation = loop.operation
        reads |= {operand.tensor for operand in (*operation.inputs, *operation.late)}
        writes |= {operand.tensor for operand in operation.stores}
        if operation.output is not None:
            writes.add(operation.output.tensor)
            if operation.continues:
                reads.add(operation.output.tensor)
    return reads, writes


def _unread(uses: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """What is written and then read by no later item: an answer, whatever it is called."""
    found: set[str] = set()
    for reads, writes in uses:
        found = (found - reads) | writes
    return found


def _readers(name: str, uses: Sequence[tuple[set[str], set[str]]]) -> list[int]:
    return [number for number, (reads, _) in enumerate(uses) if name in reads]


def _weights(items: Sequence[Item]) -> set[str]:
    """Tensors that are nothing but the second operand of products."""
    weights: set[str] = set()
    others: set[str] = set()
    for loop in all_loops(items):
        view = gemm_view(loop)
        operation = loop.operation
        if view is None:
            others |= {operand.tensor for operand in operation.inputs}
        else:
            weights.add(view.weight.tensor)
            others.add(view.input.tensor)
        others |= {operand.tensor for operand in operation.late}
    return weights - others


def room(chip: Chip, places: Places, number: int) -> Mapping[str, int]:
    """What tensors leave free in each scratchpad during a pass."""
    return {pad.name: pad.size - places.taken(pad.name, number) for pad in chip.scratchpads}
