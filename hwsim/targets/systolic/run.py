"""The run of a kernel on arrays: map its loops, play their tiles, do the math in their order, count what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby, pairwise
from math import ceil
from time import perf_counter

from hwsim.energy import ARITHMETIC, OPERANDS, Ledger
from hwsim.engine import FEMTOSECONDS, FIRST_BYTES, Floor, Outcome, StageOutcome, TensorTraffic
from hwsim.memory.counters import DramCounters, ScratchpadCounters
from hwsim.numerics.format import find_format
from hwsim.program.contraction import GemmView, gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loops import Item, Loop, Range, walk
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import MappingSpec
from hwsim.targets.systolic.agent import ARRAY, FILL, VECTOR, ArrayAgent, play_passes
from hwsim.targets.systolic.estimate import Goal
from hwsim.targets.systolic.lower import Mapped, map_kernel, program_of
from hwsim.targets.systolic.model import Allocation, Chip, build_chip
from hwsim.targets.systolic.tiling import ArrayPass, Counts, Move, cut_to
from hwsim.units import data


def _stand_in_words(chip: Chip, name: str) -> Iterator[str]:
    """That the machine has no such format, and what it has."""
    form = chip.unit.formats.get(name)
    if form is not None and form.stands_for is not None:
        yield f"{chip.machine.name} computes in {form.stands_for}: {name} stands in for them"


def _away_words(chip: Chip, places: Allocation) -> Iterator[str]:
    """Which tensors would lie on the chip, if they had room beside those that do."""
    home = chip.home
    beside = [f"{name} ({data(places.nbytes[name])})" for name in sorted(places.level) if places.level[name] == home]
    next_to = f" beside {', '.join(beside)}" if beside else ""
    has = next((pad.size for pad in chip.scratchpads if pad.name == home), 0)
    for name in sorted(places.away):
        yield (
            f"{name} ({data(places.nbytes[name])}) finds no room in {home} ({data(has)})"
            f"{next_to}, and moves through {chip.dram.name}: run it in parts that fit"
        )


def count_dram(chip: Chip, far: list[Move]) -> DramCounters:
    """Tiles are read and written from their first to their last byte: each row is opened once for each tile."""
    burst, row = chip.dram.burst, chip.dram.row
    read = [move.nbytes for move in far if not move.store]
    written = [move.nbytes for move in far if move.store]
    reads, writes = (sum([-(-nbytes // burst) for nbytes in group]) for group in (read, written))
    rows = sum([-(-nbytes // row) for nbytes in (*read, *written)])
    return DramCounters(
        reads=reads,
        writes=writes,
        bytes_read=sum(read),
        bytes_written=sum(written),
        row_hits=reads + writes - rows,
        row_misses=rows,
    )


def count_scratchpads(chip: Chip, mapped: Mapped, counts: Counts, moves: list[Move]) -> dict[str, ScratchpadCounters]:
    """What the array and its vector unit touched, and what the transfers wrote and read."""
    names = {role: pad.name for role, pad in chip.pads.items()}
    filled, drained = (dict.fromkeys((pad.name for pad in chip.scratchpads), 0) for _ in range(2))
    for move in moves:
        near, level = names[move.role], move.level
        if near != level:
            (drained if move.store else filled)[near] += move.nbytes
        if level in filled:
            (filled if move.store else drained)[level] += move.nbytes
    return {
        pad: ScratchpadCounters(
            reads=counts.elements.get((pad, "read"), 0),
            writes=counts.elements.get((pad, "write"), 0),
            bytes_read=counts.reads.get((pad, "read"), 0) // 8,
            bytes_written=counts.reads.get((pad, "write"), 0) // 8,
            bytes_filled=filled[pad],
            bytes_drained=drained[pad],
            peak_bytes=max([mapped.taken(pad, each) for each in mapped.passes]),
        )
        for pad in filled
    }


def count_tensors(mapped: Mapped, far: list[Move]) -> dict[str, TensorTraffic]:
    """Elements of each tensor that came from main memory, and that went there."""
    bits = mapped.places.bits
    loads, stores = dict.fromkeys(bits, 0), dict.fromkeys(bits, 0)
    for move in far:
        (stores if move.store else loads)[move.tensor] += 8 * move.nbytes // bits[move.tensor]
    return {name: TensorTraffic(loads[name], stores[name]) for name in sorted(mapped.places.level)}


def vector_flops(counts: Counts) -> int:
    return sum(count * (2 if kind == "fma" else 1) for kind, count in counts.vector.items())


def parts_alone(chip: Chip, agent: ArrayAgent, far: list[Move]) -> dict[str, int]:
    """Femtoseconds that each part would take alone; of fills, drains and first bytes, what is not hidden."""
    hz = chip.clock_hz
    steps = [step for _, _, step in agent.slots]
    cycles = {
        ARRAY: sum(max(step.work.body, step.work.fed) for step in steps if step.work is not None),
        VECTOR: sum(step.vector_cycles for step in steps),
        FILL: agent.watch.waiting[FILL],
        "host": sum(agent.host),
    }
    found = {name: count * FEMTOSECONDS // hz for name, count in cycles.items()}
    for name, link in agent.links.items():
        rate = chip.rates[name]
        if rate is not None and link.moved_bytes:
            found[name] = int(link.moved_bytes / rate * FEMTOSECONDS / hz)
    rounded = len(steps) + len(far) + len(agent.passes)  # what arrives within a cycle is seen at its end
    first = rounded * FEMTOSECONDS // hz
    if chip.start_cycles or chip.engine_rate is not None:
        waits = sum(move.requests for move in far) * chip.setup_cycles / hz + len(far) * chip.latency_s
        if chip.engine_rate is not None:
            waits += sum(move.nbytes for move in far) / chip.engine_rate / hz
        first = int((waits + Fraction(rounded, hz)) * FEMTOSECONDS)
    found[FIRST_BYTES] = min(agent.watch.now * FEMTOSECONDS // hz, first)
    return {name: fs for name, fs in found.items() if fs}


def count_stages(chip: Chip, mapped: Mapped, agent: ArrayAgent) -> tuple[StageOutcome, ...]:
    """Each stage, from the end of the one before to its own end; what overlaps is put down to the earlier one."""
    begin = 0
    found: list[StageOutcome] = []
    for name, group in groupby(zip(mapped.passes, agent.over, strict=True), key=lambda pair: pair[0].stage):
        pairs = list(group)
        end = max(begin, *(over.value for _, over in pairs))
        elapsed = end * FEMTOSECONDS // chip.clock_hz - begin * FEMTOSECONDS // chip.clock_hz
        flops = sum(2 * each.counts.macs + vector_flops(each.counts) for each, _ in pairs)
        moves = [move for each, _ in pairs for move in moves_from(chip, each)]
        tensors = {name: traffic for name, traffic in count_tensors(mapped, moves).items() if traffic.moved}
        found.append(StageOutcome(name, elapsed, flops, tensors))
        begin = end
    return tuple(found)


def describe_array(chip: Chip, mapped: Mapped, agent: ArrayAgent, counts: Counts) -> dict[str, object]:
    """Cycles of the arrays by what they did, and the tiles of each pass."""
    watch = agent.watch
    return {
        "rows": chip.unit.rows,
        "columns": chip.unit.columns,
        "count": chip.unit.count,
        "dataflow": chip.array.dataflow,
        "folding": chip.unit.folding,
        "macs": counts.macs,
        "peak_macs_per_cycle": float(chip.peak_macs_per_cycle),
        "streaming_cycles": watch.busy[ARRAY],
        "fill_drain_cycles": watch.waiting[FILL],
        "vector_cycles": watch.busy[VECTOR] + watch.waiting[VECTOR],
        "stall_cycles": sum(n for name, n in watch.waiting.items() if name not in (FILL, VECTOR)),
        "passes": [
            {
                "name": each.name,
                "unit": each.unit,
                "tile": each.tile,
                "order": each.order,
                "tiles": len(each.steps),
                "buffers": each.buffers,
                **_share_of_bound(chip, mapped, each, elapsed),
            }
            for each, elapsed in zip(mapped.passes, _elapsed(agent), strict=True)
        ],
        "levels": dict(sorted(mapped.places.level.items())),
    }


def _elapsed(agent: ArrayAgent) -> list[int]:
    """Cycles of each pass, from the end of the one before to its own end."""
    ends = [0]
    for over in agent.over:
        ends.append(max(ends[-1], over.value))
    return [after - before for before, after in pairwise(ends)]


def _share_of_bound(chip: Chip, mapped: Mapped, each: ArrayPass, elapsed: int) -> dict[str, float]:
    """The least time that any choice of tiles could take, and how near the chosen one comes to it: 1 is the best."""
    cycles = bound_cycles(chip, mapped, each)
    share = min(1.0, cycles / elapsed) if elapsed else 1.0
    return {"bound_s": cycles / chip.clock_hz, "share_of_bound": share}


def bound_cycles(chip: Chip, mapped: Mapped, each: ArrayPass) -> float:
    """All cells at work all the time, all lanes, or each byte that has to be moved moved once: whichever is longest."""
    once: Counter[str] = Counter()
    for move in moves_from(chip, each):
        once[move.tensor] += move.nbytes
    nbytes = sum([min(total, mapped.places.nbytes[name]) for name, total in once.items()])
    vector = sum([step.vector_cycles for step in each])
    return max(each.counts.macs / float(chip.peak_macs_per_cycle), vector, nbytes / chip.dram_speed)


def moves_from(chip: Chip, each: ArrayPass) -> list[Move]:
    """What a pass moves from and to main memory."""
    far = chip.dram.name
    return [move for step in each.steps for move in (*step.loads, *step.stores) if move.level == far]


def post_energy(
    chip: Chip, kernel: Kernel, counts: Counts, levels: dict[str, ScratchpadCounters], dram: DramCounters
) -> Ledger:
    """Everything that costs energy."""
    ledger = Ledger()
    name = chip.unit.name
    ledger.post(name, f"mac.{kernel.fmt.name}", counts.macs, cause=ARITHMETIC)
    ledger.post(name, "hop", counts.hops, cause=OPERANDS)
    for kind, count in sorted(counts.vector.items()):
        ledger.post(name, f"vector.{kind}", count, cause=ARITHMETIC)
    for pad, counters in levels.items():
        out, into = (8 * moved // kernel.fmt.bits for moved in (counters.bytes_drained, counters.bytes_filled))
        ledger.post(pad, "read", counters.reads + out, bits=8 * (counters.bytes_read + counters.bytes_drained))
        ledger.post(pad, "write", counters.writes + into, bits=8 * (counters.bytes_written + counters.bytes_filled))
    ledger.post(chip.dram.name, "read", dram.reads, bits=8 * dram.bytes_read)
    ledger.post(chip.dram.name, "write", dram.writes, bits=8 * dram.bytes_written)
    ledger.post(chip.dram.name, "activate", dram.activates)
    return ledger


def compute(chip: Chip, kernel: Kernel, items: list[Item]) -> None:
    """Fill in the kernel's results."""
    for item in items:
        if isinstance(item, Loop):
            view = gemm_view(item)
            for ranges in chunks(chip, view, kernel) if view is not None else [item.ranges({})]:
                item.compute(ranges)
        else:
            for loop, inner, _ in walk([item], {}):
                loop.compute(inner)


def chunks(chip: Chip, view: GemmView, kernel: Kernel) -> Iterator[dict[str, Range]]:
    """A product in pieces along k that fit the rows of the array, each of which is added to the accumulators.

    Where sums are stored in a narrower format than they are kept in, they are rounded once, at the end: the whole sum
    is then one piece.
    """
    whole = view.loop.ranges({})
    stored = kernel.tensors[view.output.tensor].element_bits
    rounds = stored < find_format(chip.sum_format).bits or view.loop.late_body.total or view.loop.operation.late
    if rounds or chip.array.dataflow == "os":
        yield whole
        return
    for ranges in cut_to({index: whole[index][1] for index in view.k}, chip.array.rows).ranges():
        yield {**whole, **ranges}


class ArrayCrew:
    """The arrays of a chip, and the tiles of a kernel in the order in which they take them."""

    def __init__(
        self, machine: MachineSpec, kernel: Kernel, asked: MappingSpec | None = None, goal: Goal = "time"
    ) -> None:
        self.kernel = kernel
        self.chip = build_chip(machine, kernel.fmt.name, None if asked is None else asked.dataflow)
        started = perf_counter()
        self.mapped = map_kernel(self.chip, kernel, asked, goal)
        self.map_seconds = perf_counter() - started
        self.math_seconds = 0.0

    def work(self, floor: Floor) -> None:
        """Play the tiles; the real math is done in their order."""
        self.agent = play_passes(self.chip, self.mapped.passes, floor, self._host())
        started = perf_counter()
        if self.kernel.setting.math:
            self.kernel.stages()  # refuses given tensors that the kernel does not have
            compute(self.chip, self.kernel, program_of(self.kernel))
        self.math_seconds = perf_counter() - started
        if floor.timeline:
            self._post_pulses(floor)

    def _host(self) -> tuple[int, int]:
        """Cycles for inputs that stay on the chip, and for results that do."""
        chip, places = self.chip, self.mapped.places
        rate = None if chip.unit.host is None else chip.unit.host.bytes_per_cycle(chip.clock_hz)
        if rate is None:
            return 0, 0
        on_chip = [name for name, level in places.level.items() if chip.holds(level) and name not in places.local]
        results = set(getattr(self.kernel, "results", ()))
        sent = sum(places.nbytes[name] for name in on_chip if name not in places.written)
        taken = sum(places.nbytes[name] for name in on_chip if name in results)
        return ceil(sent / rate), ceil(taken / rate)

    def _post_pulses(self, floor: Floor) -> None:
        """Power over time: of main memory while it moved bytes, of the rest while arrays and lanes were at work."""
        ledger, far = self.outcome().ledger, self.chip.dram.name
        moving = [span for span in floor.spans if span.lane.endswith(f" {far}")]
        working = [span for span in floor.spans if not span.lane.endswith(f" {far}")]
        pads = {level.name for level in self.chip.machine.memory} - {far}
        for spans, components in ((moving, {far}), (working, {self.chip.unit.name, *pads})):
            shares = ledger.split([span.end_fs - span.start_fs for span in spans], components)
            for span, share in zip(spans, shares, strict=True):
                floor.pulse(span.start_fs, span.end_fs, share)

    def outcome(self) -> Outcome:
        chip, mapped, agent = self.chip, self.mapped, self.agent
        counts = Counts()
        for each in mapped.passes:
            counts += each.counts
        far = [move for move in agent.moved if move.level == chip.dram.name]
        dram = count_dram(chip, far)
        levels = count_scratchpads(chip, mapped, counts, agent.moved)
        time = agent.watch.result(chip.clock_hz)
        tensors = count_tensors(mapped, far)
        use = describe_array(chip, mapped, agent, counts)
        return Outcome(
            elapsed_fs=time.elapsed_fs,
            clock_hz=chip.clock_hz,
            agents=(time,),
            parts=parts_alone(chip, agent, far),
            levels=levels,
            dram=dram,
            tensors=tensors,
            stages=count_stages(chip, mapped, agent),
            flops=2 * counts.macs + vector_flops(counts),
            macs=counts.macs,
            loads=sum(each.loads for each in tensors.values()),
            stores=sum(each.stores for each in tensors.values()),
            ledger=post_energy(chip, self.kernel, counts, levels, dram),
            peak_flops_per_s=2 * float(chip.peak_macs_per_cycle) * chip.clock_hz,
            model=ARRAY,
            reached={chip.dram.name: {name: each.loads + each.stores for name, each in tensors.items()}},
            use={"array": use},
            warnings=(*_stand_in_words(chip, self.kernel.fmt.name), *_away_words(chip, mapped.places)),
            walk_seconds=self.map_seconds,
            math_seconds=self.math_seconds,
        )
