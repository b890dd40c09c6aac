"""`hwsim validate tpu`: the first TPU against what Jouppi et al. published at ISCA 2017.

The layer shapes of the applications are not published. What is: the number of layers, all their weights together, the
batch, and how much of the array the weights fill while it is active. So each application is a stack of that many layers
with that many weights in all, whose widths are whole tiles of the array, filled as much. Where the array is active for
twice as long as its operations need, inputs have 16 bits and pass at half the speed. Inputs come from the host, and
results go there. Nothing is fitted to the rows that are compared; how long a layer waits for the results of the one
before (`handover`) is what the counters of read-after-write hazards say, the column raw_pct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path

from hwsim.api import simulate
from hwsim.catalog import load_machine
from hwsim.engine import FEMTOSECONDS, Outcome
from hwsim.numerics.format import find_format
from hwsim.program.kernel import Kernel, Setting
from hwsim.program.loop_kernel import LoopKernel, at, build_kernel
from hwsim.program.loops import LoopPlan, Ranges
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.model import build_chip
from hwsim.targets.systolic.why import array_use
from hwsim.trace.nest import Instructions
from hwsim.validation.report import Bar, ComparisonRow, Progress, report
from hwsim.validation.residual import FIRST, Residual
from hwsim.validation.table import Record, integer, read_table, row_error, sample, tables

WHAT = "TOPS of stacks of layers on tpu_v1, against measurements published at ISCA 2017"

_COLUMNS = (
    "app", "layers", "weights_m", "batch", "active_pct", "useful_pct", "stall_pct", "tops", "vector_layers", "side",
    "claimed",
)  # fmt: skip
TOPS_BAR, CONV_BAR = 0.20, 0.75
TOPS_AIM, STALL_AIM = 0.30, 0.10
"""TOPS of an application whose layers are less certain, relative; and stalls of each, as a difference of shares."""
SIDE = 256
HOST = "array.host=10 GiB/s"
"""Jouppi et al., ISCA 2017, figure 1: between the host interface and the unified buffer."""
PEAK_TOPS = 92
LSTM1_SIDE, LSTM1_BATCH = 600, 96


@dataclass(frozen=True)
class App:
    """One application of the paper."""

    name: str
    widths: tuple[int, ...]
    """Of the values between layers."""
    matrices: int
    batch: int
    tops: float
    stall: float
    claimed: bool
    vector_layers: int
    rate: float
    """Multiply-accumulates of a cell in one cycle: half of one where inputs have 16 bits."""

    def machine(self, *changes: str) -> MachineSpec:
        return load_machine("tpu_v1", [HOST, f"array.formats.int8.rate={self.rate}", *changes]).spec

    def kernel(self) -> LoopKernel:
        return stack(self.widths, self.batch, self.vector_layers, self.matrices)


def validate(data: Path | None = None, count: int | None = None, seed: int = 0) -> Progress:
    """The number of rows to come, then each row as it is done, then the report."""
    (path,) = tables(data, "tpu.csv", ())
    machine = load_machine("tpu_v1").spec
    apps = [_app(path, each) for each in sample(read_table(path, _COLUMNS), lambda r: r["app"], count, seed)]
    yield len(apps)
    rows, bars = [], [_peak(machine)]
    for app in apps:
        outcome = simulate(app.machine(), app.kernel())
        tops = speed(outcome) / 1e12
        share = _share(outcome, "weights")
        words = f"{tops:.1f} TOPS simulated, {app.tops} measured; weight stalls {share:.0%}, {app.stall:.0%} measured"
        seconds = outcome.elapsed_fs / FEMTOSECONDS
        residual = Residual("array_products", machine.name, seconds, seconds * tops / app.tops, FIRST)
        group = "claimed" if app.claimed else "not claimed"
        rows.append(ComparisonRow.of(app.name, group, tops, app.tops, words, residual))
        yield rows[-1]
        limit = TOPS_BAR if app.claimed else TOPS_AIM
        bars.append(Bar(f"{app.name} TOPS", f"{app.tops} ± {limit:.0%}", f"{tops:.1f}", rows[-1].error <= limit))
        off = abs(share - app.stall) <= STALL_AIM
        bars.append(Bar(f"{app.name}: weight stalls", f"{app.stall:.0%} ± 10 points", f"{share:.0%}", off))
        largest = max(_shares(outcome), key=lambda name: _share(outcome, name))
        bars.append(Bar(f"{app.name}: most cycles go to", "weights", largest, largest == "weights"))
    bars += [*_array_sizes(), _convolution(machine)]
    yield report("tpu", WHAT, rows, bars, [_bandwidth(apps)])


def stack(widths: Sequence[int], batch: int, vector_layers: int = 0, matrices: int = 0) -> LoopKernel:
    """Fully connected layers in int8 between values of the given widths, each with its activation on the way back to
    the unified buffer, and some layers in between that work on each value alone. With `matrices`, so many in all: those
    of one layer need nothing of each other, as the gates of an LSTM do."""
    layers = len(widths) - 1
    kernel = LoopKernel("stack", find_format("int8"), Setting(math=False))
    values = kernel.add_input("x0", batch, widths[0])
    for layer, (wide, out) in enumerate(pairwise(widths)):
        for more in _part(vector_layers, layer, layers):
            read, values = at(values, "i", "j"), kernel.add_scratch(f"v{more}", batch, wide)
            sizes = {"i": batch, "j": wide}
            kernel.add(kernel.make_loop(f"v{more}", sizes, [read], at(values, "i", "j"), Instructions(mul=1), _nothing))
        view = kernel.add_scratch(f"x{layer + 1}", batch, out)
        extents = {"i": batch, "j": out, "k": wide}
        for number in _part(matrices or layers, layer, layers):
            reads = [at(values, "i", "k"), at(kernel.add_input(f"w{number}", wide, out), "k", "j")]
            kernel.add(
                kernel.make_loop(
                    f"layer {layer}, matrix {number}", extents, reads, at(view, "i", "j"), Instructions(fma=1),
                    _nothing, plan=LoopPlan(("i", "j", "k")), accumulates=True, late_body=Instructions(add=1),
                )
            )  # fmt: skip
        values = view
    kernel.results = [f"x{layers}"]
    return kernel


def _part(whole: int, number: int, of: int) -> range:
    """Which of `whole` things come in the part of this number."""
    return range(number * whole // of, (number + 1) * whole // of)


def convolution(batch: int, board: int, channels: int) -> Kernel:
    """3 x 3 windows over boards with a border of zeros, as many filters as channels."""
    sizes = {"b": batch, "y": board, "x": board, "f": channels, "r": 3, "s": 3, "c": channels}
    fields = {"format": 1, "name": "conv", "description": "A layer like those of CNN0.", "op": "formula"}
    formula = "O[b,y,x,f] += I[b,y+r,x+s,c] * W[r,s,c,f]"
    spec = WorkloadSpec.model_validate({**fields, "formula": formula, "sizes": sizes, "precision": "int8"})
    return build_kernel(spec, math=False)


def speed(outcome: Outcome) -> float:
    """Operations per second of the array: two for each multiply-accumulate."""
    return 2 * outcome.macs * FEMTOSECONDS / outcome.elapsed_fs


def _nothing(ranges: Ranges) -> None:
    """Only the time is asked for."""


def _shares(outcome: Outcome) -> dict[str, float]:
    (agent,) = outcome.agents
    return {name: fs / agent.elapsed_fs for name, fs in (agent.busy | agent.waiting).items()}


def _share(outcome: Outcome, name: str) -> float:
    return _shares(outcome).get(name, 0.0)


def _peak(machine: MachineSpec) -> Bar:
    chip = build_chip(machine, "int8")
    tops = float(2 * chip.peak_macs_per_cycle * chip.clock_hz / 10**12)
    return Bar("peak TOPS", str(PEAK_TOPS), f"{tops:.1f}", round(tops) == PEAK_TOPS)


def _array_sizes() -> list[Bar]:
    """600 x 600 weights: nine tiles on the real array, four of four times the size on one twice as wide."""
    small = load_machine("tpu_v1").spec
    fifo = "weight_fifo.size=1 MiB"  # four tiles again
    large = load_machine("tpu_v1", ["array.rows=512", "array.columns=512", fifo]).spec
    found = [simulate(machine, stack([LSTM1_SIDE] * 2, LSTM1_BATCH)) for machine in (small, large)]
    tiles = [_weight_tiles(outcome) for outcome in found]
    times = [outcome.elapsed_fs / 1e9 for outcome in found]
    return [
        Bar("600 x 600 on 256 x 256", "9 tiles", f"{tiles[0]} tiles, {times[0]:.1f} µs (18 published)", tiles[0] == 9),
        Bar(
            "600 x 600 on 512 x 512 is slower",
            f"> {times[0]:.1f} µs",
            f"{tiles[1]} tiles, {times[1]:.1f} µs (32 published)",
            tiles[1] == 4 and times[1] > times[0],
        ),
    ]


def _weight_tiles(outcome: Outcome) -> int:
    """Tiles of the weights of the layer, however its inputs are cut: each of them may serve several steps."""
    tile = array_use(outcome)["passes"][0]["tile"]
    return int(-(-LSTM1_SIDE // tile["k"]) * -(-LSTM1_SIDE // tile["n"]))


def _convolution(machine: MachineSpec) -> Bar:
    outcome = simulate(machine, convolution(8, 19, 256))
    chip = build_chip(machine, "int8")
    share = speed(outcome) / float(2 * chip.peak_macs_per_cycle * chip.clock_hz)
    return Bar(
        "3 x 3 convolution, 19 x 19 boards, batch 8", f">= {CONV_BAR:.0%} of peak", f"{share:.0%}", share >= CONV_BAR
    )


def _bandwidth(apps: list[App]) -> str:
    """What four times the memory bandwidth would bring; the paper found three times the speed on average."""
    gains = []
    for app in apps:
        slow, fast = app.machine(), app.machine("dram.bandwidth=120 GiB/s")
        gains.append(simulate(slow, app.kernel()).elapsed_fs / simulate(fast, app.kernel()).elapsed_fs)
    mean = sum(gains) / len(gains)
    return (
        f"beside: four times the memory bandwidth makes these {mean:.1f} times as fast on average (published: about 3)"
    )


def _app(path: Path, record: Record) -> App:
    layers, batch, vectors = (integer(path, record, name) for name in ("layers", "batch", "vector_layers"))
    try:
        weights, tops, stall, active, useful = (
            float(record[name]) for name in ("weights_m", "tops", "stall_pct", "active_pct", "useful_pct")
        )
    except ValueError as error:
        raise row_error(path, record, "", f"not a number: {error}") from None
    if layers < 1 or batch < 1 or min(weights, tops, active, useful) <= 0:
        raise row_error(path, record, "", "counts, weights_m, tops and shares must be more than 0")
    filled = min(1.0, useful / active)
    if record["side"]:
        side = integer(path, record, "side")
        widths, matrices = [side] * (layers + 1), max(layers, round(weights * 1e6 / side**2))
    else:
        tiles = sqrt(weights * 1e6 / layers / filled) / SIDE
        ends = [round(tiles * number) for number in range(layers + 2)]
        widths = [round(SIDE * max(1, end - begin) * sqrt(filled)) for begin, end in pairwise(ends)]
        matrices = layers
    rate = 0.5 if 100 * tops / PEAK_TOPS < 0.75 * useful else 1.0
    return App(
        record["app"], tuple(widths), matrices, batch, tops, stall / 100, record["claimed"] == "yes", vectors, rate
    )
