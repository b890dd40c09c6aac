"""Processing in memory as a target: what units at banks read of a schedule, and the run of a kernel on them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import ClassVar

from hwsim.energy import ARITHMETIC, Ledger
from hwsim.engine import (
    Crew,
    Event,
    Floor,
    Outcome,
    StageOutcome,
    TensorTraffic,
    Wait,
    Watch,
    cycles_to_fs,
    seconds_to_fs,
)
from hwsim.memory.counters import DramCounters, ScratchpadCounters
from hwsim.numerics.datapath import SumRule, find_datapath
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Knob, Starts, Target, Why
from hwsim.targets.knobs import algorithm_knobs, by_name, has_products, in_first_format
from hwsim.targets.pim.lower import FIRST, SECOND, BankPass, Banks, BankStep, lower
from hwsim.targets.pim.why import explain

MAC, ELEMENTWISE = "mac", "elementwise"
ROWS, FIRST_COLUMN, REFRESH = "row activation", "first column", "refresh"
INPUTS, OUTPUTS = "inputs", "outputs"


class BankCrew:
    """The units at all banks, which do the same at the same time."""

    def __init__(self, machine: MachineSpec, kernel: Kernel, dataflow: str | None = None) -> None:
        self.kernel = kernel
        self.banks = Banks.of(machine, kernel.fmt.name)
        self.passes = lower(self.banks, kernel, dataflow)
        self.watch = Watch(f"{self.banks.unit.name}[0..{self.banks.unit.count - 1}]")
        self.ends: list[int] = []

    def work(self, floor: Floor) -> None:
        """The real math loop by loop, and the commands in time."""
        if self.kernel.setting.math:
            assert isinstance(self.kernel, LoopKernel)
            self.kernel.compute_loops()
        floor.start(self._play(floor))
        floor.run()

    def _play(self, floor: Floor) -> Wait:
        channel = floor.link("channel", self.banks.channel_bytes_per_second)
        depth = self.banks.buffer.buffers
        for each in self.passes:
            done: list[Event] = [floor.event() for _ in each.steps]
            told: list[Event] = [floor.event() for _ in each.steps]

            def tell(each: BankPass = each, done: list[Event] = done, told: list[Event] = told) -> Wait:
                for number, step in enumerate(each.steps):
                    if number >= depth and not done[number - depth].processed:
                        yield done[number - depth]
                    begin = floor.now
                    yield channel.transfer(step.repeat * step.told_bytes)
                    if step.told_bytes:
                        floor.record("channel in", each.name, begin, floor.now)
                    told[number].succeed()

            floor.start(tell())
            leaving: list[Event] = []
            for number, step in enumerate(each.steps):
                begin = floor.now
                if not told[number].processed:
                    yield told[number]
                self.watch.wait(INPUTS, floor.now - begin)
                yield from self._command(floor, each, step)
                done[number].succeed()
                leaving.append(channel.transfer(step.repeat * step.out_bytes))
            begin = floor.now
            yield floor.every(leaving)
            if any(step.out_bytes for step in each.steps):
                yield floor.delay(seconds_to_fs(self.banks.access_seconds))
            self.watch.wait(OUTPUTS, floor.now - begin)
            self.ends.append(floor.now)

    def _command(self, floor: Floor, each: BankPass, step: BankStep) -> Wait:
        """Rows open, then columns stream past the units; both as often as the step says, and between refreshes."""
        banks, begin = self.banks, floor.now
        opening = cycles_to_fs(step.repeat * banks.opening_cycles(step.rows, step.columns), banks.clock_hz)
        first = cycles_to_fs(step.repeat * banks.first_cycles, banks.clock_hz)
        working = cycles_to_fs(step.repeat * step.columns, banks.clock_hz)
        refresh = round(banks.refresh_share * (opening + first + working))
        yield floor.delay(opening + first + working + refresh)
        self.watch.wait(ROWS, opening)
        self.watch.wait(FIRST_COLUMN, first)
        self.watch.wait(REFRESH, refresh)
        self.watch.work(MAC if each.work == MAC else ELEMENTWISE, working)
        floor.record(self.watch.name, each.name, begin, floor.now)
        if floor.timeline:
            share = step.repeat * step.columns / max(1, sum(s.repeat * s.columns for s in each.steps))
            ledger = Ledger()
            self._post(ledger, each, share)
            floor.pulse(begin, floor.now, ledger)

    def outcome(self) -> Outcome:
        banks, passes = self.banks, self.passes
        ledger = Ledger()
        for each in passes:
            self._post(ledger, each)
        tensors = _tensors(passes)
        moved = {name: each.loads + each.stores for name, each in tensors.items()}
        time = self.watch.result()
        lanes = banks.lanes(self.kernel.fmt.bits)
        parts = {**time.busy, **time.waiting}
        return Outcome(
            elapsed_fs=time.elapsed_fs,
            clock_hz=banks.clock_hz,
            agents=(time,),
            parts=parts,
            levels=self._levels(),
            dram=self._dram(),
            tensors=tensors,
            stages=self._stages(),
            flops=sum(each.flops for each in passes),
            macs=sum(each.macs for each in passes),
            loads=sum(each.loads for each in tensors.values()),
            stores=sum(each.stores for each in tensors.values()),
            ledger=ledger,
            peak_flops_per_s=2.0 * lanes * banks.unit.count * banks.clock_hz,
            model="pim",
            reached={banks.dram.name: moved},
            use={"pim": self._use()},
        )

    def _levels(self) -> dict[str, ScratchpadCounters]:
        """The latches pass on what the banks read; the buffers are filled once and read by every bank."""
        banks, width = self.banks, self.banks.unit.width
        read, written = sum(each.bank_bytes for each in self.passes), sum(each.written_bytes for each in self.passes)
        told = sum(step.repeat * step.told_bytes for each in self.passes for step in each.steps)
        out = sum(step.repeat * step.out_bytes for each in self.passes for step in each.steps)
        heard = sum(each.bank_bytes for each in self.passes if each.work == MAC)
        latch = ScratchpadCounters(read // width, written // width, read, written, read, written, width)
        size = min(banks.buffer.size, told)
        buffer = ScratchpadCounters(heard // width, told // width, heard, told, told, out, size)
        return {
            pad.name: counters
            for pad in self.banks.machine.memory
            for own, counters in ((banks.latch, latch), (banks.buffer, buffer))
            if pad is own
        }

    def _dram(self) -> DramCounters:
        burst = self.banks.dram.burst
        read, written = (sum(getattr(each, name) for each in self.passes) for name in ("bank_bytes", "written_bytes"))
        count = self.banks.unit.count
        opened = sum(step.repeat * step.rows for each in self.passes for step in each.steps) * count
        accesses = -(-read // burst) + -(-written // burst)
        opened = min(opened, accesses)
        return DramCounters(-(-read // burst), -(-written // burst), read, written, accesses - opened, opened)

    def _post(self, ledger: Ledger, each: BankPass, share: float = 1.0) -> None:
        """Everything of a pass that costs energy, or a share of it."""
        banks, name = self.banks, self.banks.unit.name
        fmt, width = self.kernel.fmt.name, banks.unit.width
        rows = sum(step.repeat * step.rows for step in each.steps) * banks.unit.count
        through = sum(step.repeat * (step.told_bytes + step.out_bytes) for step in each.steps)
        posts = [
            (name, f"mac.{fmt}", each.operations.get(MAC, 0), 0, ARITHMETIC),
            (name, "elementwise", each.operations.get(ELEMENTWISE, 0) + each.operations.get("late", 0), 0, ARITHMETIC),
            (banks.dram.name, "read", each.bank_bytes // width, 8 * each.bank_bytes, None),
            (banks.dram.name, "write", -(-each.written_bytes // width), 8 * each.written_bytes, None),
            (banks.dram.name, "activate", rows, 0, None),
            (banks.buffer.name, "write", -(-through // width), 8 * through, None),
        ]
        for component, action, count, bits, cause in posts:
            amount, moved = round(share * count), round(share * bits)
            if cause is None:
                ledger.post(component, action, amount, bits=moved)
            else:
                ledger.post(component, action, amount, bits=moved, cause=cause)

    def _stages(self) -> tuple[StageOutcome, ...]:
        begin, found = 0, []
        for name, group in groupby(zip(self.passes, self.ends, strict=True), key=lambda pair: pair[0].stage):
            pairs = list(group)
            own = [each for each, _ in pairs]
            found.append(StageOutcome(name, pairs[-1][1] - begin, sum(each.flops for each in own), _tensors(own)))
            begin = pairs[-1][1]
        return tuple(found)

    def _use(self) -> dict[str, object]:
        return {
            "count": self.banks.unit.count,
            "passes": [
                {
                    "name": each.name,
                    "work": each.work,
                    "stays": each.dataflow,
                    "commands": sum(step.repeat for step in each.steps),
                    "bank_bytes": each.bank_bytes,
                    "channel_bytes": sum(step.repeat * (step.told_bytes + step.out_bytes) for step in each.steps),
                }
                for each in self.passes
            ],
        }


def _tensors(passes: list[BankPass]) -> dict[str, TensorTraffic]:
    found: dict[str, TensorTraffic] = {}
    for each in passes:
        for name, (read, written) in each.tensors.items():
            found[name] = found.get(name, TensorTraffic()) + TensorTraffic(read, written)
    return dict(sorted(found.items()))


def knobs(work: WorkloadSpec) -> Mapping[str, Knob]:
    """The operations themselves, and the operand that stays."""
    found = dict(algorithm_knobs(work, frozenset({"softmax"})))
    if has_products(work):
        meaning = "Which operand of a product stays in the banks: ws the second, is the first."
        flows = f"{SECOND},{FIRST}"
        found |= by_name(Knob("dataflow", meaning, "auto", flows, tries=flows))
    return found


class PimTarget(Target):
    """Vector units at DRAM banks."""

    groups: ClassVar[frozenset[str]] = frozenset({"mapping"})
    exact: ClassVar[str] = "operations, commands to the banks and bytes"

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.banks = Banks.of(machine)

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        return knobs(work)

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        return in_first_format(work, self.banks.unit.formats)

    def sums(self, precision: str) -> SumRule:
        declared = self.banks.unit.formats.get(precision)
        return SumRule(None if declared is None else declared.accumulate)

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        Banks.of(self.machine, find_datapath(work.precision).a.name)  # refuses a format that the units do not have
        return build_kernel(work, seed=work.seed, math=math, sums=SumRule(at_tiles=False))

    def crew(self, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0) -> Crew:
        flow = None if work is None else work.choices.get("dataflow")
        return BankCrew(self.machine, kernel, None if flow is None else str(flow))

    def starts(self, result: RunResult) -> Starts:
        return Starts()

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = PimTarget
