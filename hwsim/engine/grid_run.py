"""The run of a convolution or a matrix product on a grid of processing elements: map it, count, and time it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from hwsim.energy import ARITHMETIC, MEMORY, OPERANDS, Ledger
from hwsim.engine.array_watch import ARRAY, INPUTS, WEIGHTS
from hwsim.engine.clock import cycles_to_fs
from hwsim.engine.outcome import AgentTime, Outcome, Span, StageOutcome, TensorTraffic
from hwsim.errors import InputError
from hwsim.hardware.counters import DramCounters, ScratchpadCounters
from hwsim.hardware.grid import Grid, GridCost, gated_share
from hwsim.hardware.row_stationary import ConvShape
from hwsim.kernels.conv.conv2d import Conv2d
from hwsim.kernels.conv.shape import IMAGE_AXES
from hwsim.kernels.kernel import Kernel
from hwsim.kernels.matmul.matmul import Matmul
from hwsim.kernels.operator import OperatorKernel
from hwsim.numerics.format import Array
from hwsim.spec.machine import MachineSpec
from hwsim.spec.memory import DramSpec, ScratchpadSpec
from hwsim.trace.work import Instructions

MODEL = "grid"


@dataclass(frozen=True)
class Layer:
    """What a kernel asks of the grid; matrices are images of one row."""

    shape: ConvShape
    input: str
    weight: str
    output: str
    image: Array | None
    """The real inputs, [image, channel, row, column]; None without math."""


def simulate_grid(machine: MachineSpec, kernel: Kernel, *, timeline: bool = False) -> Outcome:
    """Compute a kernel for real, and count what the grid does for it; zeros are those of the real inputs."""
    grid = Grid(machine)
    if kernel.fmt.bits > grid.unit.bits:
        raise InputError(
            f"{kernel.name} in {kernel.fmt.name} has {kernel.fmt.bits} bits, and {grid.unit.name} of {machine.name} "
            f"computes with {grid.unit.bits}: choose a precision of at most {grid.unit.bits} bits, such as int8"
        )
    layer = layer_of(machine, kernel)
    started = perf_counter()
    for stage in kernel.stages() if kernel.setting.math else ():
        for block in stage.blocks:
            for _ in block.steps():  # the math of a step is done as it is yielded
                pass
    math_seconds = perf_counter() - started
    cost = grid.best(layer.shape, 0.0 if layer.image is None else gated_share(layer.image, layer.shape))
    time = _time(grid, cost)
    levels, dram = _counters(machine, grid, cost)
    traffic = _tensors(layer, cost)
    return Outcome(
        elapsed_fs=time.elapsed_fs,
        clock_hz=grid.clock_hz,
        agents=(time,),
        parts={**time.busy, **time.waiting},
        levels=levels,
        dram=dram,
        tensors=traffic,
        stages=(StageOutcome(kernel.name, time.elapsed_fs, 2 * layer.shape.macs, traffic),),
        instructions=Instructions(),
        flops=2 * layer.shape.macs,
        macs=layer.shape.macs,
        loads=sum(each.loads for each in traffic.values()),
        stores=sum(each.stores for each in traffic.values()),
        ledger=post_grid(machine, grid, cost),
        spans=_spans(time) if timeline else (),
        events=0,
        spilled=0,
        model=MODEL,
        accesses=0,
        skipped=0,
        walk_seconds=0.0,
        math_seconds=math_seconds,
        array=_describe(grid, cost, layer, kernel.name),
    )


def layer_of(machine: MachineSpec, kernel: Kernel) -> Layer:
    """A convolution or a product by itself; anything else is refused."""
    arrays = kernel.arrays if kernel.setting.math else {}
    if isinstance(kernel, OperatorKernel) and isinstance(kernel.operator, Conv2d):
        operator, shape = kernel.operator, kernel.operator.shape
        plain = not operator.epilogue and operator.pool is None and shape.dilation == (1, 1)
        if plain and shape.stride[0] == shape.stride[1] and shape.padding[0] == shape.padding[1]:
            image = arrays["x"].transpose(IMAGE_AXES[shape.layout]) if "x" in arrays else None
            sizes = (shape.batch, shape.ci, shape.co, *shape.image, *shape.window)
            return Layer(ConvShape(*sizes, shape.stride[0], shape.padding[0], shape.groups), "x", "w", "y", image)
    if isinstance(kernel, Matmul):
        m, n, k = (kernel.extents[index] for index in "ijk")
        image = arrays["A"].T.reshape(1, k, 1, m) if "A" in arrays else None
        return Layer(ConvShape(1, k, n, 1, m, 1, 1), "A", "B", "C", image)
    raise InputError(
        f"{kernel.name} is no convolution (of equal strides and padding, with nothing fused to it) and no matrix "
        f"product, which is all that the grid of {machine.name} computes; run it on a machine with a CPU core"
    )


def post_grid(machine: MachineSpec, grid: Grid, cost: GridCost) -> Ledger:
    """Every action, each of one value: arithmetic, the memories of the elements, and the levels behind them."""
    ledger = Ledger()
    behind = {level.name for level in machine.memory if isinstance(level, DramSpec) or level.shared_by == "all"}
    for (part, action), count in sorted(cost.actions.items()):
        cause = ARITHMETIC if action == "mac" else MEMORY if part in behind else OPERANDS
        ledger.post(part, action, count, bits=count * grid.unit.bits, cause=cause)
    return ledger


def _time(grid: Grid, cost: GridCost) -> AgentTime:
    """Computing is work; weights that enter, and whatever else takes longer, is waiting."""
    marks = [cost.compute_cycles, cost.compute_cycles + cost.weight_cycles, cost.cycles]
    computed, loaded, done = (cycles_to_fs(mark, grid.clock_hz) for mark in marks)
    waiting = {WEIGHTS: loaded - computed, INPUTS: done - loaded}
    return AgentTime(f"{grid.unit.name}[0]", done, {ARRAY: computed}, {name: fs for name, fs in waiting.items() if fs})


def _counters(machine: MachineSpec, grid: Grid, cost: GridCost) -> tuple[dict[str, ScratchpadCounters], DramCounters]:
    width = grid.unit.bits // 8
    levels = {}
    dram = DramCounters()
    for level in machine.memory:
        read, written = (cost.actions[level.name, action] for action in ("read", "write"))
        if isinstance(level, ScratchpadSpec):
            levels[level.name] = ScratchpadCounters(read, written, read * width, written * width)
        elif isinstance(level, DramSpec):
            reads, writes = (-(-values * width // level.burst) for values in (read, written))
            rows = sum(-(-values * width // level.row) for values in (read, written))
            dram = DramCounters(reads, writes, read * width, written * width, reads + writes - rows, rows)
    return levels, dram


def _tensors(layer: Layer, cost: GridCost) -> dict[str, TensorTraffic]:
    """Values of each tensor that came from main memory, and that went there; edge tiles in proportion."""
    moved = {role: cost.flow.accesses["dram", role] for role in ("input", "weight", "output")}
    share = layer.shape.macs / cost.flow.macs
    return {
        name: TensorTraffic(round(moved[role].reads * share), round(moved[role].writes * share))
        for name, role in ((layer.input, "input"), (layer.output, "output"), (layer.weight, "weight"))
    }


def _spans(time: AgentTime) -> tuple[Span, ...]:
    """The parts of the run after each other; in truth passes take turns."""
    spans, start = [], 0
    for name, length in (*time.busy.items(), *time.waiting.items()):
        spans.append(Span(time.name, name, start, start + length))
        start += length
    return tuple(spans)


def _describe(grid: Grid, cost: GridCost, layer: Layer, name: str) -> dict[str, object]:
    mapping = cost.mapping
    tile = {letter: getattr(mapping, letter) for letter in ("n", "m", "e", "p", "q", "r", "t")}
    return {
        "rows": grid.unit.rows,
        "columns": grid.unit.columns,
        "count": 1,
        "dataflow": grid.unit.dataflow,
        "macs": layer.shape.macs,
        "gated_macs": layer.shape.macs - cost.actions[grid.unit.name, "mac"],
        "peak_macs_per_cycle": float(grid.unit.count),
        "streaming_cycles": int(cost.compute_cycles),
        "fill_drain_cycles": 0,
        "vector_cycles": 0,
        "stall_cycles": int(cost.cycles - cost.compute_cycles),
        "passes": [
            {"name": name, "unit": grid.unit.name, "tile": tile, "order": "row-stationary", "tiles": mapping.passes}
        ],
        "levels": dict.fromkeys((layer.input, layer.weight, layer.output), "dram"),
    }
