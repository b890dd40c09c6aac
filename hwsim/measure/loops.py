"""A workload on the computer at hand: its loops compiled with Numba and timed, the fastest of some repeats.

Caches are cold at the start of each repeat, as they are at the start of a simulated run: a buffer larger than they are
is read before, so that they hold nothing that would have to be written back. Threads are timed by their own CPU time,
so that other programs disturb less; of several, the one counts that needs most, and starting them and waiting for each
other is left out.

Loops are written out as Python source, one function for each loop nest: the same order, tiles, unrolling and place of
the sums that the simulator lowers. It takes an array for each tensor and the first and last position of each index. All
indices are unsigned, since a signed one would be looked at for being negative at each access. What one point computes
is as many multiplications, additions and special functions of its operands as the loop has instructions: the same work,
on values that do not matter. Which loops become vector code is up to the compiler: it takes innermost loops, and no
exponentials.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import IO, Any

from hwsim.api import resolve_machine, resolve_workload, run
from hwsim.errors import HwsimError, InputError
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Loop, Operand, Phase, Ranges, walk
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import find_target
from hwsim.trace.nest import Instructions

FLUSH_BYTES = 64 << 20
"""Larger than the caches of one core complex."""
MOST_CALLS = 200_000
"""Runs of single loops in one repeat, each of them a row of a table."""
APART = {"core.ports.fma": 0}
"""What keeps multiplications and additions apart in a simulation."""
MEASURED = ("fp64", "fp32", "int32")


@dataclass(frozen=True)
class LoopTiming:
    """What a workload took."""

    seconds: float
    """The fastest repeat."""
    median: float
    repeats: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the processor counted in one more repeat, by the names of `worker.EVENTS`, as far as it lets us."""
    uncounted: str = ""
    """Why there are no counts."""

    @property
    def spread(self) -> float:
        """How much longer the median took than the fastest, relative."""
        return self.median / self.seconds - 1


class Worker:
    """A process that times loops, vectorised or scalar; made when first asked."""

    def __init__(self, *, vector: bool) -> None:
        self._vector = vector
        self._process: subprocess.Popen[str] | None = None

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        if self._process is None:
            flag = "1" if self._vector else "0"
            environment = {**os.environ, "NUMBA_LOOP_VECTORIZE": flag, "NUMBA_SLP_VECTORIZE": "0"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hwsim.measure.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
        stdin, stdout = _pipes(self._process)
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise HwsimError("the process that measures ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HwsimError(f"the loops could not be measured: {answer['error']}")
        return answer

    def close(self) -> None:
        if self._process is not None:
            stdin, _ = _pipes(self._process)
            stdin.close()
            self._process.wait(timeout=10)
            self._process = None


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


class Bench:
    """Times workloads; its two processes live as long as it does."""

    def __init__(self) -> None:
        self._workers = {vector: Worker(vector=vector) for vector in (False, True)}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def measure(
        self,
        workload: str | WorkloadSpec,
        settings: Mapping[str, object],
        machine: str | MachineSpec = "zen4",
        *,
        repeats: int = 15,
        most_seconds: float = 2.0,
        cold: bool = True,
    ) -> LoopTiming:
        """The machine says how wide vectors and lines are and how many cores there are; nothing else of it counts."""
        job, vector = make_job(resolve_machine(machine), resolve_workload(workload, settings))
        limits = {"repeats": repeats, "most_seconds": most_seconds, "flush_bytes": FLUSH_BYTES if cold else 0}
        answer = self._workers[vector].ask({**job, **limits})
        found = answer["seconds"]
        return LoopTiming(min(found), median(found), len(found), answer["counts"], answer["uncounted"])


def simulate(workload: str | WorkloadSpec, settings: Mapping[str, object], machine: str | MachineSpec) -> RunResult:
    """The run beside a measurement: Numba fuses multiplications and additions only where it may reorder sums."""
    spec = resolve_workload(workload, settings)
    vector = getattr(getattr(spec, "schedule", None), "vector", False)
    apart = {} if vector else APART
    return run(machine, workload, math=False, set=apart, **dict[str, Any](settings))


def simulate_fused(
    workload: str | WorkloadSpec, settings: Mapping[str, object], machine: str | MachineSpec, simulated: RunResult
) -> RunResult:
    """The same as `hwsim run` simulates it, on a core that fuses; `simulated` itself where nothing was left apart."""
    counts = simulated.work.instructions
    if not counts["mul"] or not counts["add"]:
        return simulated
    fused = run(machine, workload, math=False, **dict[str, Any](settings))
    return simulated if fused.work.instructions == counts else fused


def make_job(machine: MachineSpec, work: WorkloadSpec) -> tuple[dict[str, Any], bool]:
    """What the worker needs to run a workload's loops, and whether they are vectorised."""
    target = find_target(machine)
    kernel = target.prepare(target.defaults(work), math=False)
    if not isinstance(kernel, LoopKernel):
        raise InputError(f"{work.name}: only workloads made of loops can be measured")
    if kernel.fmt.name not in MEASURED:
        raise InputError(f"precision: Numba computes in {', '.join(MEASURED)}, not in {kernel.fmt.name}")
    loops = kernel.loops
    spans = _spans(loops)
    tensors = {name: [low, high - low, kernel.fmt.name] for name, (low, high) in spans.items()}
    starts = {name: low for name, (low, _) in spans.items()}
    shares = [_shares(kernel, phase) for phase in kernel.program]
    written = [
        loop_source(loop, starts, f"loop{number}", _whole_tiles(loop, shares)) for number, loop in enumerate(loops)
    ]
    functions = [
        {"name": f"loop{n}", "text": source.text, "tensors": source.tensors, "vector": loops[n].plan.lanes > 1}
        for n, source in enumerate(written)
    ]
    numbers = {id(loop): number for number, loop in enumerate(loops)}

    def bounds(loop: Loop, ranges: Ranges) -> list[int]:
        return [edge for index in written[numbers[id(loop)]].indices for edge in (ranges[index][0], sum(ranges[index]))]

    stages = [
        [[[numbers[id(loop)], bounds(loop, ranges)] for loop, ranges in share] for share in stage] for stage in shares
    ]
    calls = sum(len(share) for stage in stages for share in stage)
    if calls > MOST_CALLS:
        raise InputError(f"{work.name}: {calls:,} loops one after the other are too many to measure")
    return {"tensors": tensors, "functions": functions, "stages": stages}, any(loop.plan.lanes > 1 for loop in loops)


Share = list[tuple[Loop, Ranges]]


def _shares(kernel: LoopKernel, phase: Phase) -> list[Share]:
    """For each thread, its loops with the ranges of their indices."""
    arounds: list[Ranges] = [{}]
    if kernel.workers > 1 and phase.shared_index:
        arounds = [{phase.shared_index: share} for share in kernel.shares(phase)]
    return [[(loop, ranges) for loop, ranges, _ in walk(phase.items, around)] for around in arounds]


def _whole_tiles(loop: Loop, stages: list[list[Share]]) -> frozenset[str]:
    """The indices whose every tile is full: the compiler then knows how long the loop in a tile is, as the simulator
    does. Not of a vector loop, which it would write out before it makes vectors of it, and then would not."""
    if loop.plan.lanes > 1:
        return frozenset()
    every = [ranges for stage in stages for share in stage for other, ranges in share if other is loop]
    return frozenset(
        index for index, size in loop.plan.tile.items() if all(ranges[index][1] % size == 0 for ranges in every)
    )


def _spans(loops: list[Loop]) -> dict[str, tuple[int, int]]:
    """First byte of each tensor, and one past the last."""
    found: dict[str, tuple[int, int]] = {}
    for loop in loops:
        for operand in loop.operation.operands:
            width = operand.element_bytes
            if width != int(width) or any(stride < 0 or stride % width for stride in operand.strides.values()):
                raise InputError(f"{loop.name}: {operand.tensor} lies so that Numba cannot index it")
            reach = sum(operand.distance(index, loop.extents[index] - 1) for index in operand.strides)
            low, high = int(operand.base), int(operand.base + reach + width)
            before = found.get(operand.tensor, (low, high))
            found[operand.tensor] = min(low, before[0]), max(high, before[1])
    return found


# Source ---------------------------------------------------------------------------------------------------------------

INDENT = "    "
TOTAL = "total"
"""The sum of a loop that stores nothing: it is returned, so that no compiler leaves it out."""


@dataclass(frozen=True)
class LoopSource:
    """A function in source form, with the tensors that it takes, in order, and its indices."""

    text: str
    tensors: tuple[str, ...]
    indices: tuple[str, ...]


def loop_source(
    loop: Loop, starts: dict[str, int], name: str = "run", whole: frozenset[str] = frozenset()
) -> LoopSource:
    """The source of a loop nest; `starts` has the first byte of each tensor, `whole` the indices in full tiles."""
    writer = _LoopWriter(loop, starts, whole)
    body = writer.loops()
    bounds = [f"{kind}{number}" for number in range(len(writer.indices)) for kind in ("first", "last")]
    head = f"def {name}({', '.join([f't{n}' for n in range(len(writer.tensors))] + bounds)}):"
    text = "\n".join([head, *(INDENT + line for line in body)])
    return LoopSource(text + "\n", tuple(writer.tensors), tuple(writer.indices))


class _LoopWriter:
    """Writes one loop nest."""

    def __init__(self, loop: Loop, starts: dict[str, int], whole: frozenset[str]) -> None:
        self.loop, self.whole = loop, whole
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
            end = f"tile{number} + {_constant(plan.tile[index])}" if cut else f"last{number}"
            last = f"min({end}, last{number})" if cut and index not in self.whole else end
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
    for _ in range(body.special):
        text = f"exp({text})"
    return text
