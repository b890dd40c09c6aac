"""What a run on an array did, counted: traffic by level and tensor, stages, energy, and where its cycles went."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import groupby

from hwsim.energy import ARITHMETIC, OPERANDS, Ledger
from hwsim.engine.array_agent import ArrayAgent
from hwsim.engine.array_watch import ARRAY, FILL, VECTOR
from hwsim.engine.outcome import FEMTOSECONDS, StageOutcome, TensorTraffic
from hwsim.hardware.counters import DramCounters, ScratchpadCounters
from hwsim.kernels.kernel import Kernel
from hwsim.mapping.build import Mapped
from hwsim.mapping.chip import Chip
from hwsim.mapping.step import Counts, Move


def count_dram(chip: Chip, moves: list[Move]) -> DramCounters:
    """Tiles are read and written from their first to their last byte: each row is opened once for each tile."""
    spec = chip.dram
    read = [move for move in moves if move.level == spec.name and not move.store]
    written = [move for move in moves if move.level == spec.name and move.store]
    bursts = [sum(-(-move.nbytes // spec.burst) for move in group) for group in (read, written)]
    rows = sum(-(-move.nbytes // spec.row) for move in (*read, *written))
    return DramCounters(
        reads=bursts[0],
        writes=bursts[1],
        bytes_read=sum(move.nbytes for move in read),
        bytes_written=sum(move.nbytes for move in written),
        row_hits=sum(bursts) - rows,
        row_misses=rows,
    )


def count_scratchpads(chip: Chip, mapped: Mapped, counts: Counts, moves: list[Move]) -> dict[str, ScratchpadCounters]:
    """What the array and its vector unit touched, and what the transfers wrote and read."""
    found = {}
    for pad in chip.scratchpads:
        own = [move for move in moves if chip.pads[move.role] is pad and move.level != pad.name]
        home = [move for move in moves if move.level == pad.name]
        read, written = (counts.reads[pad.name, action] // 8 for action in ("read", "write"))
        filled = sum(move.nbytes for move in own if not move.store)
        filled += sum(move.nbytes for move in home if move.store)
        drained = sum(move.nbytes for move in own if move.store)
        drained += sum(move.nbytes for move in home if not move.store)
        found[pad.name] = ScratchpadCounters(
            reads=counts.elements[pad.name, "read"],
            writes=counts.elements[pad.name, "write"],
            bytes_read=read,
            bytes_written=written,
            bytes_filled=filled,
            bytes_drained=drained,
            peak_bytes=max(mapped.taken(pad.name, each) for each in mapped.passes),
        )
    return found


def count_tensors(chip: Chip, mapped: Mapped, moves: list[Move]) -> dict[str, TensorTraffic]:
    """Elements of each tensor that came from main memory, and that went there."""
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    for move in moves:
        if move.level == chip.dram.name:
            (stores if move.store else loads)[move.tensor] += 8 * move.nbytes // mapped.places.bits[move.tensor]
    return {name: TensorTraffic(loads[name], stores[name]) for name in sorted(mapped.places.level)}


def vector_flops(counts: Counts) -> int:
    return sum(count * (2 if kind == "fma" else 1) for kind, count in counts.vector.items())


def parts_alone(chip: Chip, agent: ArrayAgent, dram: DramCounters) -> dict[str, int]:
    """Femtoseconds that each part would take alone; of fills, drains and first bytes, what is not hidden."""
    hz = chip.clock_hz
    steps = [step for _, _, step in agent.slots]
    cycles = {
        ARRAY: sum(max(step.work.body, step.work.fed) for step in steps if step.work is not None),
        VECTOR: sum(step.vector_cycles for step in steps),
        FILL: agent.watch.waiting[FILL],
    }
    found = {name: count * FEMTOSECONDS // hz for name, count in cycles.items()}
    for name, link in agent.links.items():
        moves = [move for move in agent.moved if move.level == name]
        rate = chip.bytes_per_cycle(chip.machine.level(name))
        if moves:
            found[name] = int(link.moved_bytes / rate * FEMTOSECONDS / hz) if rate is not None else 0
    setup = chip.unit.dma.setup
    far = [move for move in agent.moved if move.level == chip.dram.name]
    waits = Fraction(0)
    if setup is not None:
        waits += sum(move.requests for move in far) * setup.seconds(hz)
    if chip.dram.latency is not None:
        waits += len(far) * chip.dram.latency.seconds(chip.machine.clock_hz(chip.dram.clock))
    if chip.unit.dma.bandwidth is not None:
        rate = chip.unit.dma.bandwidth.bytes_per_cycle(hz)
        waits += sum(move.nbytes for move in far) / rate / hz if rate is not None else 0
    rounded = len(steps) + len(far) + len(agent.passes)  # what arrives within a cycle is seen at its end
    found["first bytes"] = min(
        agent.watch.now * FEMTOSECONDS // hz, int((waits + Fraction(rounded, hz)) * FEMTOSECONDS)
    )
    return {name: fs for name, fs in found.items() if fs}


def count_stages(chip: Chip, mapped: Mapped, agent: ArrayAgent) -> tuple[StageOutcome, ...]:
    """Each stage, from the end of the one before to its own end; what overlaps is put down to the earlier one."""
    begin = 0
    found = []
    for name, group in groupby(zip(mapped.passes, agent.over, strict=True), key=lambda pair: pair[0].stage):
        pairs = list(group)
        end = max(begin, *(over.value for _, over in pairs))
        elapsed = end * FEMTOSECONDS // chip.clock_hz - begin * FEMTOSECONDS // chip.clock_hz
        flops = sum(2 * each.counts.macs + vector_flops(each.counts) for each, _ in pairs)
        moves = [move for each, _ in pairs for step in each for move in (*step.loads, *step.stores)]
        tensors = {name: traffic for name, traffic in count_tensors(chip, mapped, moves).items() if traffic.moved}
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
        "dataflow": chip.unit.dataflow,
        "folding": chip.unit.folding,
        "macs": counts.macs,
        "peak_macs_per_cycle": float(chip.peak_macs_per_cycle),
        "streaming_cycles": watch.busy[ARRAY],
        "fill_drain_cycles": watch.waiting[FILL],
        "vector_cycles": watch.busy[VECTOR] + watch.waiting[VECTOR],
        "stall_cycles": sum(n for name, n in watch.waiting.items() if name not in (FILL, VECTOR)),
        "passes": [
            {"name": each.name, "unit": each.unit, "tile": each.tile, "order": each.order, "tiles": len(each.steps)}
            for each in mapped.passes
        ],
        "levels": dict(sorted(mapped.places.level.items())),
    }


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
