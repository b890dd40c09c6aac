"""Whatever the array, its scratchpads and its memory: no run is faster, or moves less, than it can."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwsim.api import simulate
from hwsim.catalog import load_machine
from hwsim.engine import Outcome
from hwsim.errors import CapacityError
from hwsim.program.contraction import GemmShape
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.machine import MachineSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.systolic.gemm import TIE
from hwsim.targets.systolic.model import SystolicArray

extents = st.sampled_from([1, 7, 16, 33, 64, 100, 129, 200])
sides = st.sampled_from([4, 8, 16, 32])
dataflows = st.sampled_from(["ws", "os", "is"])
foldings = st.sampled_from(["serial", "pipelined"])
kibibytes = st.sampled_from([2, 4, 8, 32, 128])
rates = st.sampled_from([1, 4, 16, 64])
arrays = st.tuples(sides, sides, dataflows, foldings)
shapes = st.tuples(extents, extents, extents)

Array = tuple[int, int, str, str]
Shape = tuple[int, int, int]


def product(shape: Shape) -> Kernel:
    m, n, k = shape
    fields = {"format": 1, "name": "product", "description": "A product.", "op": "matmul", "precision": "int8"}
    return build_kernel(WorkloadSpec.model_validate({**fields, "sizes": {"m": m, "n": n, "k": k}}), math=False)


@lru_cache(maxsize=512)
def machine(array: Array, size: int, rate: str, buffers: int = 2) -> MachineSpec:
    rows, columns, dataflow, folding = array
    pads = [
        f"{pad}.{setting}"
        for pad in ("ifmap", "filter", "ofmap")
        for setting in (f"size={size} KiB", f"buffers={buffers}")
    ]
    settings = [
        f"array.rows={rows}",
        f"array.columns={columns}",
        f"array.dataflow={dataflow}",
        f"array.folding={folding}",
    ]
    return load_machine("scalesim_32", [*settings, *pads, f"dram.bandwidth={rate}", "dram.latency=20 ns"]).spec


def run(array: Array, size: int, rate: str, shape: Shape, buffers: int = 2) -> Outcome:
    try:
        return simulate(machine(array, size, rate, buffers), product(shape))
    except CapacityError:
        assume(False)
        raise


def traffic(outcome: Outcome) -> int:
    return outcome.dram.bytes_read + outcome.dram.bytes_written


@settings(max_examples=40, deadline=None)
@given(arrays, kibibytes, rates, shapes)
def test_time_is_at_least_arithmetic_and_bytes_over_bandwidth(array: Array, size: int, rate: int, shape: Shape) -> None:
    outcome = run(array, size, f"{rate} B/cycle", shape)
    m, n, k = shape
    assert outcome.macs == m * n * k
    assert outcome.cycles * array[0] * array[1] >= m * n * k
    assert outcome.cycles * rate >= traffic(outcome)
    assert outcome.lower_fs <= outcome.elapsed_fs <= outcome.upper_fs


@settings(max_examples=40, deadline=None)
@given(arrays, kibibytes, rates, shapes)
def test_every_operand_comes_at_least_once_and_every_result_leaves(
    array: Array, size: int, rate: int, shape: Shape
) -> None:
    outcome = run(array, size, f"{rate} B/cycle", shape)
    m, n, k = shape
    assert outcome.dram.bytes_read >= m * k + k * n
    assert outcome.dram.bytes_written >= 4 * m * n
    moved = sum(level.bytes_filled + level.bytes_drained for level in outcome.levels.values())  # type: ignore[union-attr]
    assert moved == traffic(outcome)
    reads = sum(each.loads for each in outcome.tensors.values())
    assert reads >= m * k + k * n


@settings(max_examples=40, deadline=None)
@given(arrays, kibibytes, rates, shapes)
def test_two_buffers_are_never_slower_than_one(array: Array, size: int, rate: int, shape: Shape) -> None:
    double = run(array, size, f"{rate} B/cycle", shape)
    single = run(array, size, f"{rate} B/cycle", shape, buffers=1)
    assert double.cycles <= single.cycles * (1 + TIE)  # within a tie, energy decides


@settings(max_examples=40, deadline=None)
@given(arrays, kibibytes, rates, shapes)
def test_every_cycle_is_attributed(array: Array, size: int, rate: int, shape: Shape) -> None:
    outcome = run(array, size, f"{rate} B/cycle", shape)
    (agent,) = outcome.agents
    assert sum(agent.busy.values()) + sum(agent.waiting.values()) == agent.elapsed_fs == outcome.elapsed_fs
    assert min([*agent.busy.values(), *agent.waiting.values()]) >= 0


@settings(max_examples=40, deadline=None)
@given(arrays, shapes)
def test_with_room_and_bandwidth_a_run_takes_exactly_the_folds(array: Array, shape: Shape) -> None:
    """The whole model, tiles and transfers and all, against the formula that the cells prove."""
    rows, columns, dataflow, folding = array
    spec = load_machine(
        "scalesim_32",
        [f"array.rows={rows}", f"array.columns={columns}", f"array.dataflow={dataflow}", f"array.folding={folding}",
         "dram.bandwidth=inf", "dram.latency=0 ns"],
    ).spec  # fmt: skip
    folds = SystolicArray(rows, columns, dataflow, folding).occupy(GemmShape(*shape))  # type: ignore[arg-type]
    assert simulate(spec, product(shape)).cycles == folds.cycles
