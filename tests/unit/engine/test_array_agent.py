"""The array in time: what overlaps, what waits for what, and that all of it is put down."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.engine import Outcome, play
from hwsim.program.contraction import GemmShape
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.workload import MappingSpec, WorkloadSpec
from hwsim.targets.systolic.model import SystolicArray
from hwsim.targets.systolic.run import ArrayCrew


def run(m: int, n: int, k: int, *settings: str, asked: MappingSpec | None = None, timeline: bool = False) -> Outcome:
    fields = {"format": 1, "name": "product", "description": "A product.", "op": "matmul", "precision": "int8"}
    kernel = build_kernel(WorkloadSpec.model_validate({**fields, "sizes": {"m": m, "n": n, "k": k}}), math=False)
    return play(ArrayCrew(load_machine("scalesim_32", settings).spec, kernel, asked), timeline=timeline)


def cycles(outcome: Outcome, name: str) -> int:
    (agent,) = outcome.agents
    return round((agent.busy | agent.waiting).get(name, 0) * outcome.clock_hz / 10**15)


ONE_TILE = MappingSpec(tile_m=64, tile_n=32, tile_k=32)


def test_one_tile_is_loaded_then_computed_then_stored() -> None:
    """A 2048 B and B 1024 B at 16 B/cycle share the link, and B is in the cells before A is there; C is 8192 B."""
    outcome = run(64, 32, 32, "dram.bandwidth=16 B/cycle", asked=ONE_TILE)
    fold = SystolicArray(32, 32).occupy(GemmShape(64, 32, 32))
    assert outcome.cycles == (2048 + 1024) // 16 + fold.cycles - 32 + 8192 // 16
    assert cycles(outcome, "array") == 64
    assert cycles(outcome, "outputs") == 8192 // 16
    assert cycles(outcome, "fill and drain") == fold.cycles - 64
    assert cycles(outcome, "weights") == 2 * 1024 // 16
    assert cycles(outcome, "inputs") == 2 * 1024 // 16 // 2 - 32


def test_two_buffers_hide_the_transfers_of_the_next_tile() -> None:
    """Sixteen equal tiles of C; the array needs longer for each than its operands take to come."""
    asked = MappingSpec(order="mnk", tile_m=64, tile_n=32, tile_k=256)
    limits = (
        "dram.bandwidth=64 B/cycle",
        "ifmap.size=64 KiB",
        "filter.size=64 KiB",
        "ofmap.size=32 KiB",
        "array.dma.engines=1",
    )
    double = run(1024, 32, 256, *limits, asked=asked)
    single = run(1024, 32, 256, *limits, *(f"{pad}.buffers=1" for pad in ("ifmap", "filter", "ofmap")), asked=asked)
    work = 16 * SystolicArray(32, 32).occupy(GemmShape(64, 32, 256)).cycles
    moved = (1024 * 256 + 32 * 256 + 4 * 1024 * 32) // 64
    assert work + moved - 16 * (32 + 62) <= single.cycles <= work + moved  # what is in the array drains meanwhile
    first, last = (64 * 256 + 32 * 256) // 64, 4 * 64 * 32 // 64
    assert double.cycles == work + first + last


def test_the_set_up_of_a_transfer_and_the_latency_of_memory_delay_the_first_byte() -> None:
    plain = run(64, 32, 32, asked=ONE_TILE)
    assert run(64, 32, 32, "dram.latency=50 ns", asked=ONE_TILE).cycles == plain.cycles + 2 * 50
    assert run(64, 32, 32, "array.dma.setup=30 ns", asked=ONE_TILE).cycles == plain.cycles + 2 * 30


def test_one_engine_moves_one_thing_at_a_time() -> None:
    """With one engine B comes after A, and its way into the cells is not hidden."""
    fast = run(64, 32, 32, "dram.bandwidth=64 B/cycle", "array.dma.bandwidth=16 B/cycle", asked=ONE_TILE)
    slow = run(
        64, 32, 32, "dram.bandwidth=64 B/cycle", "array.dma.bandwidth=16 B/cycle", "array.dma.engines=1", asked=ONE_TILE
    )
    assert slow.cycles - fast.cycles == 1024 // 16 + 32


def test_a_scratchpad_with_too_few_banks_holds_the_array_back() -> None:
    """A column of 32 values per cycle from banks of 8 bytes: four cycles for each."""
    free = run(512, 32, 32, "dram.bandwidth=inf")
    tight = run(512, 32, 32, "dram.bandwidth=inf", "ifmap.banks=1", "ifmap.bank_width=8 B")
    assert cycles(tight, "scratchpad") == 3 * 512
    assert tight.cycles == free.cycles + 3 * 512


def test_the_timeline_has_the_array_and_its_transfers() -> None:
    outcome = run(256, 64, 64, timeline=True)
    lanes = {span.lane for span in outcome.spans}
    assert lanes == {"array[0]", "array[0] inputs from dram", "array[0] weights from dram", "array[0] outputs to dram"}
    assert all(0 <= span.start_fs <= span.end_fs <= outcome.elapsed_fs for span in outcome.spans)


def test_equal_runs_give_equal_outcomes() -> None:
    first, second = (run(200, 100, 300, "dram.bandwidth=4 B/cycle") for _ in range(2))
    assert (first.elapsed_fs, first.agents, first.dram) == (second.elapsed_fs, second.agents, second.dram)


@pytest.mark.parametrize("clock", ["700 MHz", "1 GHz", "933333333 Hz"])
def test_cycles_are_whole_whatever_the_clock(clock: str) -> None:
    outcome = run(100, 64, 64, f"clock.core.frequency={clock}", "dram.bandwidth=inf")
    assert outcome.cycles == SystolicArray(32, 32).occupy(GemmShape(100, 64, 64)).cycles
    assert sum(cycles(outcome, name) for name in ("array", "fill and drain")) == outcome.cycles


def test_a_long_run_has_few_events() -> None:
    """Thousands of tiles are played some at a time."""
    outcome = run(1024, 1024, 1024, "ifmap.size=4 KiB", "filter.size=4 KiB", "ofmap.size=8 KiB")
    assert outcome.events < 60_000
    assert outcome.macs == 1024**3
