"""Grids of processing elements as a target: its knobs, the run of a kernel layer by layer, and what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from time import perf_counter
from typing import ClassVar

from hwsim.engine import FEMTOSECONDS, FIRST_BYTES, AgentTime, Crew, Floor, Outcome, StageOutcome, TensorTraffic
from hwsim.errors import InputError
from hwsim.memory.counters import DramCounters, ScratchpadCounters
from hwsim.numerics.datapath import SumRule, find_datapath
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel, build_kernel
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import ComparedPart, Knob, Starts, Target, Why
from hwsim.targets.grid.agent import ARRAY, ENTER, PlayedMapping, play_mapping
from hwsim.targets.grid.lower import MEANINGS, ORDER, GridLayer, choices, find_mapping, knob_names, layers_of, names_of
from hwsim.targets.grid.model import Actions, GridPass, PeGrid
from hwsim.targets.grid.why import explain
from hwsim.targets.knobs import algorithm_knobs

SEARCHED = ("m", "e", "p", "q", ORDER)
"""What `tune` varies: what an element interleaves, what the buffer holds, and the order; the sets follow from them."""
MODEL = "grid"
INTEGERS = "int16"
"""What elements multiply where nobody says."""


def knobs(machine: MachineSpec, work: WorkloadSpec) -> Mapping[str, Knob]:
    """What changes the operations, and the mapping of the first layer with what is taken where nobody chooses."""
    own = algorithm_knobs(work)
    grid = PeGrid(machine)
    try:
        layer = layers_of(machine, build_kernel(work, math=False))[0]
        cost = find_mapping(grid, layer.shape, drain=layer.drain)
    except InputError:  # refused when it is run, with the reason
        return own
    taken = {**cost.mapping.letters(), ORDER: cost.mapping.order}
    allowed = choices(grid, layer.shape)
    return own | {
        name: Knob(
            name,
            MEANINGS[letter],
            str(taken[letter]),
            ",".join(allowed[name]),
            tries=",".join(allowed[name]) if letter in SEARCHED else "",
        )
        for letter, name in knob_names(grid).items()
    }


class GridCrew:
    """A grid of processing elements and the layers that it computes, one after the other."""

    def __init__(self, machine: MachineSpec, kernel: Kernel, asked: Mapping[str, object] | None = None) -> None:
        self.machine, self.kernel, self.asked = machine, kernel, asked
        self.grid = PeGrid(machine)
        if kernel.fmt.bits > self.grid.unit.bits:
            name, bits = self.grid.unit.name, self.grid.unit.bits
            raise InputError(
                f"{kernel.name} in {kernel.fmt.name} has {kernel.fmt.bits} bits, and {name} of {machine.name} "
                f"computes with {bits}: choose a precision of at most {bits} bits, such as int8"
            )
        self.layers = layers_of(machine, kernel)
        self.played: list[PlayedMapping] = []
        self.ends: list[int] = []
        self.map_seconds = self.math_seconds = 0.0

    def work(self, floor: Floor) -> None:
        """Compute for real, then let the passes happen; the zeros that are skipped are those of the real inputs."""
        started = perf_counter()
        if self.kernel.setting.math:
            assert isinstance(self.kernel, LoopKernel)
            self.kernel.compute_loops()
        self.math_seconds = perf_counter() - started
        started = perf_counter()
        for layer in self.layers:
            zeros = layer.zero_share(self.kernel)
            cost = find_mapping(self.grid, layer.shape, zeros, layer.drain, asked=self.asked)
            self.played.append(play_mapping(self.grid, cost, zeros, layer.drain, floor))
            self.ends.append(floor.now)
        self.map_seconds = perf_counter() - started

    def outcome(self) -> Outcome:
        grid, layers = self.grid, self.layers
        time = self._time()
        actions: Counter[tuple[str, str]] = Counter()
        for each in self.played:
            actions.update(each.actions)
        levels, dram = self._counters(actions)
        traffic = [_tensors(layer, played) for layer, played in zip(layers, self.played, strict=True)]
        tensors = {
            name: sum((each[name] for each in traffic if name in each), TensorTraffic()) for name in names_of(layers)
        }
        starts = [0, *self.ends]
        return Outcome(
            elapsed_fs=time.elapsed_fs,
            clock_hz=grid.clock_hz,
            agents=(time,),
            parts=self._parts(actions),
            levels=levels,
            dram=dram,
            tensors=tensors,
            stages=tuple(
                StageOutcome(layer.name, end - begin, layer.flops, moved)
                for layer, begin, end, moved in zip(layers, starts, self.ends, traffic, strict=False)
            ),
            flops=sum(layer.flops for layer in layers),
            macs=sum(layer.shape.macs for layer in layers),
            loads=sum(each.loads for each in tensors.values()),
            stores=sum(each.stores for each in tensors.values()),
            ledger=grid.post(dict(actions)),
            peak_flops_per_s=2 * float(grid.unit.count) * grid.clock_hz,
            model=MODEL,
            reached={grid.dram.name: {name: each.loads + each.stores for name, each in tensors.items()}},
            use={"array": self._describe(time, actions)},
            walk_seconds=self.map_seconds,
            math_seconds=self.math_seconds,
        )

    def _time(self) -> AgentTime:
        """All layers together."""
        busy: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for each in self.played:
            busy.update(each.agent.watch.busy)
            waiting.update(each.agent.watch.waiting)
        return AgentTime(f"{self.grid.unit.name}[0]", self.ends[-1], dict(busy), dict(waiting))

    def _passes(self) -> list[tuple[GridPass, int]]:
        return [pair for each in self.played for pair in each.agent.passes.items()]

    def _counters(self, actions: Actions) -> tuple[dict[str, ScratchpadCounters], DramCounters]:
        """What elements read and wrote, and what moved in and out: all of it is what the passes did."""
        grid = self.grid
        moved: Counter[tuple[str, str]] = Counter()
        pads = {role: pad.name for role, pad in grid.pads.items()}
        for each, count in self._passes():
            moved[pads["weight"], "in"] += count * each.weight_writes
            moved[pads["input"], "in"] += count * each.input_writes
            moved[pads["output"], "in"] += 0 if each.fresh else count * each.pad_sums
            moved[pads["output"], "out"] += count * each.pad_sums
            moved[grid.buffer.name, "in"] += count * each.inputs
            moved[grid.buffer.name, "out"] += count * each.finished
        peaks = self._peaks()
        levels = {}
        for pad in (*grid.pads.values(), grid.buffer):
            filled, drained = moved[pad.name, "in"], moved[pad.name, "out"]
            read = max(0, actions[pad.name, "read"] - drained)
            written = max(0, actions[pad.name, "write"] - filled)
            sizes = (grid.nbytes(values) for values in (read, written, filled, drained, peaks[pad.name]))
            levels[pad.name] = ScratchpadCounters(read, written, *sizes)
        read, written = (grid.nbytes(actions[grid.dram.name, action]) for action in ("read", "write"))
        reads, writes = (-(-nbytes // grid.dram.burst) for nbytes in (read, written))
        rows = sum(-(-nbytes // grid.dram.row) for nbytes in (read, written))
        ordered = {level.name: levels[level.name] for level in self.machine.memory if level.name in levels}
        return ordered, DramCounters(reads, writes, read, written, reads + writes - rows, rows)

    def _peaks(self) -> dict[str, int]:
        """The most values that lay in one instance of each memory."""
        found: Counter[str] = Counter()
        for each in self.played:
            mapping, room = each.cost.mapping, each.agent.room
            shape = mapping.shape
            tiles = (2 if room.inputs else 1) * mapping.input_tile + (2 if room.sums else 1) * mapping.sum_tile
            own = {
                self.grid.pads["input"].name: mapping.q * shape.reach[1],
                self.grid.pads["weight"].name: mapping.p * mapping.q * shape.window[1],
                self.grid.pads["output"].name: mapping.p,
                self.grid.buffer.name: tiles,
            }
            for name, values in own.items():
                found[name] = max(found[name], values)
        return found

    def _parts(self, actions: Actions) -> dict[str, int]:
        """Femtoseconds that each part would take alone."""
        grid = self.grid
        steps = sum(count * each.steps for each, count in self._passes())
        entering = Fraction(sum(count * each.weights for each, count in self._passes()), grid.unit.weight_words)
        leaving = Fraction(sum(count * each.finished for each, count in self._passes()), grid.unit.drain_words)
        found = {
            ARRAY: Fraction(steps, grid.clock_hz),
            "entering weights": entering / grid.clock_hz,
            "leaving sums": leaving / grid.clock_hz,
        }
        for level in (grid.buffer, grid.dram):
            rate = grid.bytes_per_second(level)
            values = sum(actions[level.name, action] for action in ("read", "write"))
            found[level.name] = Fraction(0) if rate is None else (grid.nbytes(values) + 1) / rate
        loads = sum(count * (3 + bool(each.weights) + bool(each.inputs)) for each, count in self._passes())
        found[FIRST_BYTES] = loads * Fraction(grid.latency_fs + 4, FEMTOSECONDS)
        return {name: -int(-seconds * FEMTOSECONDS // 1) for name, seconds in found.items() if seconds}

    def _describe(self, time: AgentTime, actions: Actions) -> dict[str, object]:
        grid = self.grid
        macs = sum(layer.shape.macs for layer in self.layers)
        cycles = {name: fs * grid.clock_hz // FEMTOSECONDS for name, fs in {**time.busy, **time.waiting}.items()}
        return {
            "rows": grid.unit.rows,
            "columns": grid.unit.columns,
            "count": 1,
            "dataflow": grid.unit.dataflow,
            "macs": macs,
            "gated_macs": macs - actions[grid.unit.name, "mac"],
            "peak_macs_per_cycle": float(grid.unit.count),
            "streaming_cycles": cycles.get(ARRAY, 0),
            "fill_drain_cycles": cycles.get(ENTER, 0),
            "vector_cycles": 0,
            "stall_cycles": sum(count for name, count in cycles.items() if name not in (ARRAY, ENTER)),
            "passes": [_pass(grid, layer, each) for layer, each in zip(self.layers, self.played, strict=True)],
            "levels": dict.fromkeys(names_of(self.layers), grid.dram.name),
        }


def _pass(grid: PeGrid, layer: GridLayer, played: PlayedMapping) -> dict[str, object]:
    """A layer with its mapping, and what was counted beside what the closed form says."""
    cost = played.cost
    closed = {part: cost.flow.total(part) for part in ("buffer", "dram")}
    names = {"buffer": grid.buffer.name, "dram": grid.dram.name}
    counted = {part: [played.actions[names[part], action] for action in ("read", "write")] for part in closed}
    return {
        "name": layer.name,
        "unit": grid.unit.name,
        "tile": cost.mapping.letters(),
        "order": cost.mapping.order,
        "tiles": sum(played.agent.passes.values()),
        "played": len(played.agent.order),
        "elements": cost.mapping.active,
        "least_cycles": float(grid.least_cycles(layer.shape)),
        "estimate_cycles": cost.estimate_cycles,
        "cycles": played.cycles,
        "closed": {
            names[part]: {"counted": sum(counted[part]), "closed": closed[part].reads + closed[part].writes}
            for part in closed
        },
    }


def _tensors(layer: GridLayer, played: PlayedMapping) -> dict[str, TensorTraffic]:
    """Values of each tensor that came from main memory, and that went there."""
    totals: Counter[str] = Counter()
    drain = layer.drain
    for each, count in played.agent.passes.items():
        totals["input"] += count * each.inputs
        totals["weight"] += count * each.weights
        totals["output"] += count * each.stored
        totals["map"] += count * each.finished
        totals["operands"] += count * each.operands
    found = {layer.input: TensorTraffic(totals["input"]), layer.output: TensorTraffic(0, totals["output"])}
    found[layer.weight] = found.get(layer.weight, TensorTraffic()) + TensorTraffic(totals["weight"])
    channels = totals["operands"] - drain.maps * totals["map"]
    for name, whole in layer.operands:
        values = totals["map"] if whole else channels // max(1, drain.channels)
        found[name] = found.get(name, TensorTraffic()) + TensorTraffic(values)
    return found


class GridTarget(Target):
    """Processing elements with memories of their own around a shared buffer."""

    exact: ClassVar[str] = "operations; reads and writes of every memory for the stated mapping"

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self._read: dict[tuple[str, bool], Mapping[str, Knob]] = {}

    def reads(self, work: WorkloadSpec) -> Mapping[str, Knob]:
        """What means something for a workload; its defaults are those of a search, so that each one is asked once."""
        asked = work.model_dump_json(), "precision" in work.model_fields_set
        if asked not in self._read:
            self._read[asked] = {}
            with suppress(InputError):
                self._read[asked] = knobs(self.machine, self.defaults(work))
        return self._read[asked]

    def defaults(self, work: WorkloadSpec) -> WorkloadSpec:
        """A workload that names no precision, in integers of 16 bits; refuses one that needs fractions."""
        if "precision" in work.model_fields_set:
            return work
        chosen = with_parameters(work, {"precision": INTEGERS})
        try:
            build_kernel(chosen, math=False)
        except InputError as error:
            raise InputError(
                f"{work.name} needs fractions, and the elements of {self.machine.name} multiply integers of 16 bits; "
                "run it on a machine with a CPU core, a GPU or an array"
            ) from error
        return chosen

    def sums(self, precision: str) -> SumRule:
        """An element keeps a sum until all its products are in, in its own format where the file names one."""
        return SumRule(PeGrid(self.machine).unit.accumulate, at_tiles=False)

    def prepare(self, work: WorkloadSpec, *, math: bool = True) -> Kernel:
        return build_kernel(work, seed=work.seed, math=math, sums=self.sums(find_datapath(work.precision).a.name))

    def crew(self, kernel: Kernel, work: WorkloadSpec | None = None, *, seed: int = 0) -> Crew:
        return GridCrew(self.machine, kernel, None if work is None else work.choices)

    def compared(self, kernel: Kernel, outcome: Outcome) -> tuple[ComparedPart, ...]:
        """Layers of convolution were measured; of energy, that of the chip."""
        dram = PeGrid(self.machine).dram.name
        return tuple(
            ComparedPart("grid_layers", "layers of convolution", each.elapsed_fs / FEMTOSECONDS, unmeasured=dram)
            for each in outcome.stages
        )

    def starts(self, result: RunResult) -> Starts:
        return Starts()

    def why(self, result: RunResult) -> Why:
        return explain(self.machine, result)


TARGET = GridTarget
