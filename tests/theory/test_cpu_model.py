"""What a core needs for a step, against the closed forms of textbooks for ports, chains, latency and bandwidth."""

from __future__ import annotations

from typing import Any

import pytest

import hwsim
from hwsim import RunResult
from hwsim.program.kernel import Step
from hwsim.trace.nest import Access, Chain, Instructions, Nest, Work
from tests.unit.engine.made import CYCLE_FS, play

BARE = {
    "core.loop_start": 0, "core.vector_loop_start": 0, "l1.size": "inf", "l1.bandwidth": "inf", "l2.bandwidth": "inf",
    "dram.bandwidth": "inf", "dram.latency": "7 ns", "l1.mshrs": 10**6, "l2.mshrs": 10**6,
}  # fmt: skip
"""Nothing but the core itself."""


def cycles(step: Step, *changes: str) -> float:
    return play([[step]], *changes).elapsed_fs / CYCLE_FS


def compute(chain: Chain | None = None, loops: int = 0, **instructions: int) -> Step:
    return Step("step", Work(0, 0, Instructions(**instructions), chain=chain, loop_starts=loops), ())


def bare(workload: str, **more: Any) -> RunResult:
    return hwsim.run("course_cpu", workload, math=False, set=BARE | more.pop("set", {}), **more)


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ({"fma": 120}, 120),
        ({"fma": 60, "mul": 60}, 120),
        ({"add": 120}, 120),
        ({"special": 120}, 120),
        ({"load": 120}, 60),
        ({"store": 120}, 120),
        ({"other": 120}, 30),
        ({"fma": 40, "add": 40, "load": 80, "store": 40}, 50),
    ],
)
def test_work_takes_as_long_as_its_busiest_port_or_as_issue(instructions: dict[str, int], expected: int) -> None:
    """course_cpu: one fma, add, special and store port, two load ports, four instructions per cycle."""
    assert cycles(compute(**instructions)) == expected


def test_more_ports_share_the_work() -> None:
    assert cycles(compute(fma=120), "core.ports.fma=2") == 60
    assert cycles(compute(load=120), "core.ports.load=3") == 40


def test_an_in_order_chain_waits_the_whole_latency_of_every_operation() -> None:
    """100 dependent additions of 3 cycles."""
    chain = Chain("add", 100)
    assert cycles(compute(chain, loops=1, add=100), "core.window=1", "core.loop_start=0") == 300


def test_parallel_chains_fill_the_gaps() -> None:
    """Four sums at a time: 400 operations of 4 cycles in one pipeline, not 1,600 cycles."""
    chain = Chain("fma", 100, parallel=4)
    assert cycles(compute(chain, loops=1, fma=400), "core.window=1", "core.loop_start=0") == 400


def test_a_window_hides_the_chain_of_short_loops_but_not_of_long_ones() -> None:
    """A window of 128 holds a whole loop of 8 elements and the next ones; of 4,096 it holds the beginning."""
    short = compute(Chain("fma", 8), loops=512, fma=4096)
    long = compute(Chain("fma", 4096), loops=1, fma=4096)
    assert cycles(short, "core.loop_start=0") == 4096
    assert cycles(long, "core.loop_start=0") == pytest.approx(4 * 4096, rel=0.05)
    assert cycles(short, "core.loop_start=0", "core.window=1") == 4 * 4096


def test_a_naive_product_is_bound_by_the_latency_of_its_sum_and_a_register_tile_is_not() -> None:
    """One chain of k multiply-adds of 4 cycles each for each element of C; with 4 x 4 sums the unit never rests."""
    n = 128
    naive = bare("matmul_naive", n=n, set={"core.window": 1})
    tiled = bare("matmul_register", n=n, v1=4, v2=4, set={"core.window": 1, "regs.count": 32})
    assert naive.cycles == pytest.approx(4 * n**3, rel=0.01)
    assert tiled.cycles == pytest.approx(n**3, rel=0.05)


def test_without_fused_multiply_add_the_chain_goes_through_the_adder() -> None:
    """Three cycles for each addition, and three more until the first product of a sum is there."""
    n = 64
    result = bare("matmul_naive", n=n, set={"core.window": 1, "core.ports.fma": 0})
    assert result.cycles == pytest.approx(3 * n**3 + 3 * n**2, rel=0.01)


def test_a_sum_of_exponentials_waits_for_the_first_of_them() -> None:
    """An in-order core waits at the start of every sum, a window finds the operands of later sums early."""
    rows = 8
    found = {
        (window, special): bare(
            "softmax",
            m=rows,
            n=64,
            set={"core.window": window, "core.latency.special": special, "core.ports.special": 64},
        ).cycles
        for window in (1, 4096)
        for special in (20, 120)
    }
    assert found[1, 120] - found[1, 20] == 100 * rows
    assert found[4096, 120] - found[4096, 20] <= 100 * rows


def test_a_vector_wider_than_a_register_takes_several() -> None:
    """8 sums and 9 operands fit 32 registers of 256 bits; of 128 bits they take 34: two values are loaded again."""
    wide, narrow = (
        bare("matmul_simd", n=32, v1=8, set={"regs.count": 32, "regs.bits": bits}).work["instructions"]["load"]
        for bits in (256, 128)
    )
    assert narrow > wide


@pytest.mark.parametrize(("vector", "start"), [(False, 2), (True, 6)])
def test_every_start_of_an_innermost_loop_costs_a_few_cycles(vector: bool, start: int) -> None:
    with_start = hwsim.run("course_cpu", "sum_rows", n=64, m=32, vector=vector, math=False)
    without = hwsim.run("course_cpu", "sum_rows", n=64, m=32, vector=vector, math=False,
                        set={"core.loop_start": 0, "core.vector_loop_start": 0})  # fmt: skip
    assert with_start.bounds["parts"]["loop start"] == pytest.approx(32 * start / 2e9)
    assert without.bounds["parts"]["loop start"] == 0


# Memory ---------------------------------------------------------------------------------------------------------------


def reads(count: int, stride: int = 64, write: bool = False) -> Step:
    """So many accesses in steps of `stride` bytes, and an instruction for each."""
    nest = Nest((count,), (Access(2**20, (stride,), 4, write),))
    issued = Instructions(store=count) if write else Instructions(load=count)
    return Step("touch", Work(0, 0, issued), (nest,))


def part_cycles(step: Step, name: str, *changes: str) -> float:
    return play([[step]], *changes).parts[name] / CYCLE_FS


def test_a_stream_has_as_many_misses_in_flight_as_the_cache_allows() -> None:
    """1,024 lines from DRAM, 400 cycles each, 64 at a time; twice as fast with twice as many."""
    assert part_cycles(reads(1024), "dram→l2", "dram.bandwidth=inf") == 1024 * 400 / 64
    assert part_cycles(reads(1024), "dram→l2", "dram.bandwidth=inf", "l2.mshrs=32") == 1024 * 400 / 32


def test_bandwidth_takes_over_where_latency_is_hidden() -> None:
    """1,024 lines at 25.6 GB/s are 2.56 µs."""
    assert part_cycles(reads(1024), "dram→l2", "l2.mshrs=1024") == pytest.approx(1024 * 64 / 25.6e9 * 2e9)


def test_jumps_overlap_as_far_as_the_window_reaches() -> None:
    """Every load misses: a window of 4 instructions has 4 misses in flight, one of 128 the 16 that L1 allows."""
    jumps = reads(1024, stride=8192)
    rows = ("dram.bandwidth=inf", "dram.banks=1024")
    assert part_cycles(jumps, "dram→l2", *rows, "core.window=4") == 1024 * 400 / 4
    assert part_cycles(jumps, "dram→l2", *rows, "core.window=128") == 1024 * 400 / 16
    assert part_cycles(jumps, "dram→l2", *rows, "core.window=1") == 1024 * 400


def test_misses_of_all_accesses_share_the_window() -> None:
    """Two loads that both jump: a window of 4 instructions still has 4 misses in flight, not 2."""
    nest = Nest((512,), (Access(2**20, (8192,), 4), Access(2**28, (8192,), 4)))
    step = Step("touch", Work(0, 0, Instructions(load=1024)), (nest,))
    changes = ("dram.bandwidth=inf", "dram.banks=1024", "core.window=4")
    assert part_cycles(step, "dram→l2", *changes) == 1024 * 400 / 4


def test_jumps_overlap_no_further_than_the_machine_says() -> None:
    rows = ("dram.bandwidth=inf", "dram.banks=1024", "l2.strided_misses=2")
    assert part_cycles(reads(1024, stride=8192), "dram→l2", *rows) == 1024 * 400 / 2


def test_a_row_conflict_holds_its_bank_for_a_row_cycle() -> None:
    """Jumps of 128 KiB come back to one bank, a new row each time, and the model spreads row cycles over all 16 banks:
    1,024 activations of 45.75 ns, in the time that a refresh of 350 ns every 7.8 µs leaves."""
    step = reads(1024, stride=2**17)
    counts = play([[step]]).dram
    assert counts.activates == 1024
    changes = ("l1.mshrs=4096", "l2.mshrs=4096", "core.window=100000", "dram.bandwidth=inf")
    assert part_cycles(step, "dram→l2", *changes) == pytest.approx(1024 * 45.75 / 16 * 2 / (1 - 350 / 7800), rel=1e-6)


def test_a_store_that_brings_no_line_in_is_not_waited_for() -> None:
    """It once took a place among the outstanding misses: 1,024 stores of 4 bytes took 6,400 cycles instead of 320."""
    passed_on = ("l1.write_allocate=false", "l2.write_allocate=false")
    step = reads(1024, stride=4, write=True)
    assert part_cycles(step, "dram→l2", *passed_on) == pytest.approx(1024 * 4 / 25.6e9 * 2e9)


def test_a_store_that_brings_its_line_in_waits_as_a_load_does() -> None:
    assert part_cycles(reads(1024, write=True), "dram→l2", "dram.bandwidth=inf") == 1024 * 400 / 64


def test_reads_and_writes_share_the_bus_of_dram() -> None:
    """A copy of 1 MiB that fits no cache: 2 MiB read (the store fetches its line) and almost 1 MiB written.

    With more banks than course_cpu has, since opening its rows would take longer."""
    result = hwsim.run("course_cpu", "copy", n=2**18, math=False, set={"l2.mshrs": 4096, "dram.banks": 64})
    moved = result.memory["dram"].bytes_read + result.memory["dram"].bytes_written
    assert result.bounds["parts"]["dram→l2"] == pytest.approx(moved / 25.6e9)


def test_dependent_loads_take_the_latency_of_the_level_that_has_the_line() -> None:
    """1,024 cold pointers: each waits 400 cycles, however many misses could be outstanding."""
    result = hwsim.run(
        "course_cpu", "pointer_chase", bytes="64 KiB", steps=1024, math=False, set={"core.loop_start": 0}
    )
    assert result.cycles == 1024 * 400
    chased = {name: cycles for name, cycles in result.attribution["core[0]"]["waiting"].items() if "latency" in name}
    assert sum(chased.values()) + sum(result.attribution["core[0]"]["busy"].values()) <= 1024 * 400
    assert chased["latency of dram"] == 1024 * (400 - 14)


def test_a_level_on_a_clock_of_its_own_takes_the_same_time() -> None:
    """The latency of DRAM is 200 ns, whatever the clock of the memory."""
    slow, fast = (
        hwsim.run(
            "course_cpu", "pointer_chase", bytes="64 KiB", steps=1024, math=False, set={"clock.memory.frequency": hertz}
        )
        for hertz in ("400 MHz", "3.2 GHz")
    )
    assert slow.time_s == fast.time_s


# The quantum of interleaving ----------------------------------------------------------------------------------------


def test_halving_the_steps_of_cores_that_share_a_cache_changes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, and an L3 of 256 KiB that is too small for them: the order in which they use it is a choice."""
    small = {"l2.size": "32 KiB", "l3.size": "256 KiB"}

    def shared() -> RunResult:
        return hwsim.run("tinytorch_cpu", "matmul_parallel", n=256, cores=4, math=False, set=small)

    stock = shared()
    monkeypatch.setattr("hwsim.program.loops.FEWEST_STEPS", 16)
    monkeypatch.setattr("hwsim.program.loops.MOST_STEPS", 128)
    halved = shared()
    assert halved.memory["l2"].misses == stock.memory["l2"].misses
    assert halved.memory["l3"].misses == pytest.approx(stock.memory["l3"].misses, rel=0.1)
    assert halved.time_s == pytest.approx(stock.time_s, rel=0.05)
    assert halved.memory["l3"].misses != stock.memory["l3"].misses
