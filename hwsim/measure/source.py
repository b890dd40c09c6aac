"""Loops as Python source for Numba: the same order, tiles, unrolling and place of the sums that the simulator lowers.

One function for each loop nest. It takes an array for each tensor and the first and last position of each index. All
indices are unsigned, since a signed one would be looked at for being negative at each access. What one point computes
is as many multiplications, additions and special functions of its operands as the loop has instructions: the same work,
on values that do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hwsim.errors import InputError
from hwsim.program.loops import Loop, Operand
from hwsim.trace.nest import Instructions

INDENT = "    "
TOTAL = "total"
"""The sum of a loop that stores nothing: it is returned, so that no compiler leaves it out."""


@dataclass(frozen=True)
class LoopSource:
    """A function in source form, with the tensors that it takes, in order, and its indices."""

    text: str
    tensors: tuple[str, ...]
    indices: tuple[str, ...]


def loop_source(loop: Loop, starts: dict[str, int], name: str = "run") -> LoopSource:
    """The source of a loop nest; `starts` has the first byte of each tensor."""
    writer = _LoopWriter(loop, starts)
    body = writer.loops()
    bounds = [f"{kind}{number}" for number in range(len(writer.indices)) for kind in ("first", "last")]
    head = f"def {name}({', '.join([f't{n}' for n in range(len(writer.tensors))] + bounds)}):"
    text = "\n".join([head, *(INDENT + line for line in body)])
    return LoopSource(text + "\n", tuple(writer.tensors), tuple(writer.indices))


class _LoopWriter:
    """Writes one loop nest."""

    def __init__(self, loop: Loop, starts: dict[str, int]) -> None:
        self.loop = loop
        self.starts = starts
        self.indices = list(loop.extents)
        self.tensors = list(dict.fromkeys(operand.tensor for operand in loop.operation.operands))
        for operand in loop.operation.operands:
            if operand.gather is not None:
                raise InputError(f"{loop.name}: rows that are looked up in a table cannot be measured yet")
        for index, unroll in loop.plan.unroll.items():
            cut = loop.plan.tile.get(index, loop.extents.get(index, unroll))
            if cut % unroll or loop.extents.get(index, unroll) % unroll:
                raise InputError(
                    f"{loop.name}: {loop.extents[index]} positions of {index} are no multiple of {unroll}, "
                    "as a register tile that is measured needs"
                )

    def loops(self) -> list[str]:
        """All loops, with the sums before, in and after the innermost that move the output."""
        plan, operation = self.loop.plan, self.loop.operation
        levels = [(index, True) for index in plan.order if index in plan.tile]
        levels += [(index, False) for index in plan.order]
        output = operation.output
        kept = len(levels)
        if output is not None and operation.accumulates and plan.accumulate == "register":
            moving = [n for n, (index, tiled) in enumerate(levels) if index in output.strides and not tiled]
            kept = max(moving, default=-1) + 1
        self.in_register = kept < len(levels)
        self.reloads = any(tiled and output is not None and index not in output.strides for index, tiled in levels)
        lines = self._level(levels, 0, kept)
        if output is not None or operation.stores:
            return lines
        zero = self._zero(self._place(operation.inputs[0], {}))
        return [f"{TOTAL} = {zero}", *lines, f"return {TOTAL}"]

    def _level(self, levels: list[tuple[str, bool]], at: int, kept: int) -> list[str]:
        if at == len(levels):
            return self._body()
        lines: list[str] = []
        if at == kept:
            lines += self._sums(before=True)
        index, tiled = levels[at]
        number, plan = self.indices.index(index), self.loop.plan
        inner = self._level(levels, at + 1, kept)
        if tiled:
            lines.append(f"for tile{number} in range(first{number}, last{number}, {_constant(plan.tile[index])}):")
        else:
            cut = index in plan.tile
            first = f"tile{number}" if cut else f"first{number}"
            last = f"min(tile{number} + {_constant(plan.tile[index])}, last{number})" if cut else f"last{number}"
            step = self._unroll(index)
            lines.append(f"for i{number} in range({first}, {last}, {_constant(step)}):")
        lines += [INDENT + line for line in inner]
        if at == kept:
            lines += self._sums(before=False)
        return lines

    def _unroll(self, index: str) -> int:
        return self.loop.plan.unroll.get(index, 1)

    def _copies(self, operand: Operand | None = None) -> list[dict[str, int]]:
        """The offsets of every copy of the body, or of an operand, in an unrolled loop."""
        names = [name for name in self.loop.plan.unroll if operand is None or name in operand.strides]
        return [
            dict(zip(names, offsets, strict=True))
            for offsets in product(*(range(self.loop.plan.unroll[name]) for name in names))
        ]

    def _sums(self, *, before: bool) -> list[str]:
        output = self.loop.operation.output
        assert output is not None
        lines = []
        for copy in self._copies(output):
            value, place = self._sum_name(copy), self._place(output, copy)
            if before:
                lines.append(f"{value} = {place if self.reloads else self._zero(place)}")
            else:
                late = [self._place(operand, copy) for operand in self.loop.operation.late]
                lines.append(f"{place} = {' + '.join([value, *late])}")
                lines += [f"{self._place(store, copy)} = {value}" for store in self.loop.operation.stores]
        return lines

    def _zero(self, place: str) -> str:
        """A zero of the output's type."""
        return f"{place.split('[', maxsplit=1)[0]}.dtype.type(0)"

    def _sum_name(self, copy: dict[str, int]) -> str:
        output = self.loop.operation.output
        names = [f"{self.indices.index(n)}_{o}" for n, o in copy.items() if output is not None and n in output.strides]
        return "_".join(["s", *names])

    def _body(self) -> list[str]:
        operation, lines = self.loop.operation, []
        for copy in self._copies():
            value = _expression([self._place(operand, copy) for operand in operation.inputs], self.loop.body)
            output = operation.output
            if output is None:
                lines += [f"{self._place(store, copy)} = {value}" for store in operation.stores]
                lines += [] if operation.stores else [f"{TOTAL} += {value}"]
                continue
            target = self._sum_name(copy) if self.in_register else self._place(output, copy)
            lines.append(f"{target} {'+=' if operation.accumulates else '='} {value}")
            if not self.in_register:
                lines += [f"{self._place(store, copy)} = {target}" for store in operation.stores]
        return lines

    def _place(self, operand: Operand, copy: dict[str, int]) -> str:
        """An element of a tensor at the present position."""
        width = operand.element_bytes
        terms = []
        offset = (operand.base - self.starts[operand.tensor]) / width
        for index, stride in operand.strides.items():
            number = self.indices.index(index)
            position = f"i{number}" if not copy.get(index) else f"(i{number} + {_constant(copy[index])})"
            block, far = operand.far.get(index, (0, 0))
            step = int(stride / width)
            if block:
                terms.append(f"{position} // {_constant(block)} * {_constant(int(far / width))}")
                position = f"({position} % {_constant(block)})"
            terms.append(position if step == 1 else f"{position} * {_constant(step)}")
        if offset or not terms:
            terms.append(_constant(int(offset)))
        return f"t{self.tensors.index(operand.tensor)}[{' + '.join(terms)}]"


def _constant(value: int) -> str:
    return f"U({value})"


def _expression(values: list[str], body: Instructions) -> str:
    """So many multiplications, additions and special functions of some values."""
    products = body.fma + body.mul
    sums = body.add
    text = values[0] if values else "U(1)"
    for value in values[1:]:
        if products:
            text, products = f"{text} * {value}", products - 1
        else:
            text, sums = f"({text} + {value})", max(0, sums - 1)
    if body.special:
        text = f"exp({text})"
    return text
