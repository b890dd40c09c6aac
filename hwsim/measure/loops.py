"""A workload on the computer at hand: its loops compiled with Numba and timed, the fastest of some repeats.

Caches are cold at the start of each repeat, as they are at the start of a simulated run: a buffer larger than they are
is gone through before. Threads are timed by their own CPU time, so that other programs disturb less; of several, the
one counts that needs most, and starting them and waiting for each other is left out.

Which loops become vector code is up to the compiler: it takes innermost loops, and no exponentials.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import IO, Any

from hwsim.api import resolve_machine, resolve_workload
from hwsim.errors import HwsimError, InputError
from hwsim.measure.source import loop_source
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import Loop, Phase, Ranges, walk
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import find_target

FLUSH_BYTES = 64 << 20
"""Larger than the caches of one core complex."""
MOST_CALLS = 20_000
"""Runs of single loops in one repeat: Python calls each of them."""
MEASURED = ("fp64", "fp32", "int32")


@dataclass(frozen=True)
class LoopTiming:
    """What a workload took."""

    seconds: float
    """The fastest repeat."""
    median: float
    repeats: int

    @property
    def spread(self) -> float:
        """How much longer the median took than the fastest, relative."""
        return self.median / self.seconds - 1


class Worker:
    """A process that times loops, vectorised or scalar; made when first asked."""

    def __init__(self, *, vector: bool) -> None:
        self._vector = vector
        self._process: subprocess.Popen[str] | None = None

    def ask(self, job: Mapping[str, Any]) -> list[float]:
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
        answer = json.loads(line)
        if "error" in answer:
            raise HwsimError(f"the loops could not be measured: {answer['error']}")
        return [float(seconds) for seconds in answer["seconds"]]

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
        found = self._workers[vector].ask({**job, **limits})
        return LoopTiming(min(found), median(found), len(found))


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
    written = [loop_source(loop, starts, f"loop{number}") for number, loop in enumerate(loops)]
    functions = [
        {"name": f"loop{n}", "text": source.text, "tensors": source.tensors, "vector": loops[n].plan.lanes > 1}
        for n, source in enumerate(written)
    ]
    numbers = {id(loop): number for number, loop in enumerate(loops)}
    stages = [_shares(kernel, phase, numbers, [source.indices for source in written]) for phase in kernel.program]
    calls = sum(len(share) for stage in stages for share in stage)
    if calls > MOST_CALLS:
        raise InputError(f"{work.name}: {calls:,} loops one after the other are too many to measure from Python")
    return {"tensors": tensors, "functions": functions, "stages": stages}, any(loop.plan.lanes > 1 for loop in loops)


def _shares(
    kernel: LoopKernel, phase: Phase, numbers: Mapping[int, int], indices: list[tuple[str, ...]]
) -> list[list[Any]]:
    """For each thread, its loops with the first and last position of each index."""
    arounds: list[Ranges] = [{}]
    if kernel.workers > 1 and phase.shared_index:
        arounds = [{phase.shared_index: share} for share in kernel.shares(phase)]
    found: list[list[Any]] = []
    for around in arounds:
        calls = []
        for loop, ranges, _ in walk(phase.items, around):
            number = numbers[id(loop)]
            bounds = [edge for index in indices[number] for edge in (ranges[index][0], sum(ranges[index]))]
            calls.append([number, bounds])
        found.append(calls)
    return found


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
