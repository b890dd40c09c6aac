"""Hand-written products: the threads of a block load its tiles once, and read what the results that they write need."""

from __future__ import annotations

from collections import Counter
from math import ceil

import numpy as np
import pytest

from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.hand_written import (
    BARRIER_CYCLES,
    UNROLL,
    WORD,
    MatmulProblem,
    ProgramCost,
    Tiles,
    find_tiles,
    make_program,
    program_cost,
)
from hwsim.targets.gpu.replay import ThreadProgram, WarpAccess
from tests.unit.hardware.gpu.made import device

CUTS: dict[str, list[dict[str, int]]] = {
    "shared": [{}, {"bm": 16, "bn": 16, "bk": 16}],
    "register_1d": [{}, {"bm": 32, "bn": 32, "bk": 8, "tm": 4}],
    "register_2d": [{}, {"bm": 64, "bn": 32, "bk": 8, "tm": 8, "tn": 4}, {"bm": 64, "bn": 64, "tm": 4, "tn": 2}],
    "vectorised": [{}, {"bm": 64, "bn": 64, "tm": 8, "tn": 4}, {"bm": 128, "bn": 64, "tm": 8, "tn": 8}],
    "warp_tiled": [{}, {"bm": 64, "bn": 128, "bk": 16, "wm": 32, "wn": 64}],
}


def program(kernel: str, cut: dict[str, int], blocks: int = 1, deep: int = 1) -> tuple[ThreadProgram, Tiles]:
    """The program of a matrix of so many tiles along each side."""
    schedule = ThreadSchedule.model_validate({"kernel": kernel, **cut})
    tiles = find_tiles(schedule)
    fmt, bits = ("fp16", 16) if kernel == "tensor" else ("fp32", 32)
    shape = MatmulProblem(blocks * tiles.bm, blocks * tiles.bn, deep * tiles.bk, fmt, bits)
    return make_program(shape, schedule), tiles


def loads(made: ThreadProgram, name: str, write: bool = False) -> WarpAccess:
    (found,) = (each for each in made.loop if each.tensor == name and each.write == write)
    return found


def touched(access: WarpAccess, times: int, unit: int) -> Counter[int]:
    """Elements that all threads together touch in the first so many instructions."""
    starts = access.lanes.reshape(-1, 1, 1) + np.arange(times).reshape(-1, 1) * access.stride
    bytes_ = starts + np.arange(0, access.nbytes, unit)
    assert not (bytes_ % unit).any()
    return Counter((bytes_ // unit).ravel().tolist())


@pytest.mark.parametrize("kernel", [*CUTS, "tensor"])
def test_the_threads_of_a_block_load_each_element_of_both_tiles_once(kernel: str) -> None:
    for cut in CUTS.get(kernel, [{}]):
        made, tiles = program(kernel, cut, blocks=3, deep=5)
        unit = 2 if kernel == "tensor" else WORD
        k, n = 5 * tiles.bk, 3 * tiles.bn
        a, b = (touched(loads(made, name), loads(made, name).times, unit) for name in "AB")
        assert a == Counter(row * k + column for row in range(tiles.bm) for column in range(tiles.bk))
        assert b == Counter(row * n + column for row in range(tiles.bk) for column in range(tiles.bn))
        assert made.steps == 5 and made.blocks == 9
        for name, further in (("A", tiles.bk * unit), ("B", tiles.bk * n * unit)):
            assert loads(made, name).step == further, "the next tile lies behind it in a row of A, a column of B"
        down, across = (tiles.bm * k * unit, tiles.bn * unit)
        assert sorted(loads(made, "A").block + loads(made, "B").block) == [0, 0, *sorted((down, across))]


@pytest.mark.parametrize("kernel", CUTS)
def test_a_thread_reads_the_rows_and_columns_of_the_results_that_it_writes(kernel: str) -> None:
    """Of the first row of B's tile its columns, of A's tile its rows (a column of it where A was transposed)."""
    for cut in CUTS[kernel]:
        made, tiles = program(kernel, cut)
        (store,) = made.last
        row, column = np.divmod(store.lanes // WORD, tiles.bn)
        assert len(set(store.lanes.ravel().tolist())) == tiles.threads, "no two threads write the same"
        b, a = loads(made, "Bs"), loads(made, "As")
        assert (b.lanes == column * WORD).all()
        down = WORD if kernel in ("vectorised", "warp_tiled") else tiles.bk * WORD
        assert (a.lanes == row * down).all()
        each = tiles.bm * tiles.bn // tiles.threads
        assert store.times * store.nbytes == each * WORD
        assert made.fma == each * tiles.bk
        if kernel != "warp_tiled":
            assert b.times * b.nbytes == tiles.tn * tiles.bk * WORD, "each of its columns, for each k"
            assert a.times * a.nbytes == tiles.tm * tiles.bk * WORD
            first = touched(b, tiles.tn * WORD // b.nbytes, WORD)
            assert first == Counter(dict.fromkeys(range(tiles.bn), tiles.threads * tiles.tn // tiles.bn))


@pytest.mark.parametrize("kernel", ["naive", "coalesced"])
def test_without_shared_memory_a_thread_reads_a_row_of_a_and_a_column_of_b(kernel: str) -> None:
    made, tiles = program(kernel, {"bm": 16, "bn": 32, "bk": 4}, blocks=2, deep=3)
    (store,) = made.last
    row, column = np.divmod(store.lanes // WORD, 2 * tiles.bn)
    assert set(zip(row.ravel().tolist(), column.ravel().tolist(), strict=True)) == {
        (i, j) for i in range(tiles.bm) for j in range(tiles.bn)
    }
    a, b = loads(made, "A"), loads(made, "B")
    assert (a.lanes == row * 3 * tiles.bk * WORD).all() and (a.stride, a.step) == (WORD, tiles.bk * WORD)
    assert (b.lanes == column * WORD).all()
    assert (b.stride, b.step) == (2 * tiles.bn * WORD, tiles.bk * 2 * tiles.bn * WORD)
    together = len(set((column if kernel == "coalesced" else row)[0].tolist()))
    assert together == (32 if kernel == "coalesced" else 16), "what lanes next to each other go along"


def cost(kernel: str, *overrides: str, **cut: int) -> ProgramCost:
    asked = ThreadSchedule.model_validate({"kernel": kernel, **cut})
    fmt, bits = ("fp16", 16) if kernel == "tensor" else ("fp32", 32)
    return program_cost(device("a100_40", *overrides), make_program(MatmulProblem(512, 512, 512, fmt, bits), asked))


def test_warps_that_wait_by_themselves_share_the_latency_of_their_loads() -> None:
    """A load in four iterations: a quarter of the step's latencies, over the warps of the block; from L1 at the nearest
    and from DRAM at the farthest."""
    gpu = device("a100_40")
    for depth in (4, 8, 32):
        found = cost("coalesced", bk=depth)
        far = found.step.wait * 32 / ceil(depth / UNROLL)
        assert gpu.latency_of(gpu.l1) < far < gpu.memory_latency


def test_a_block_with_barriers_waits_once_for_memory_and_one_that_copies_ahead_only_for_its_barriers() -> None:
    gpu = device("a100_40")
    shared = gpu.latency_of(gpu.shared)
    for kernel in ("shared", "register_2d", "vectorised"):
        wait = cost(kernel).step.wait - 2 * BARRIER_CYCLES - shared
        assert gpu.latency_of(gpu.l1) <= wait < gpu.memory_latency
    tensor = cost("tensor").step
    assert tensor.wait - BARRIER_CYCLES == pytest.approx(
        max(0.0, 2 * gpu.sm.latency.tensor - tensor.busy)
    )  # two products of 16 in a tile of 32


def test_a_step_takes_as_long_as_its_multiply_adds_at_the_least() -> None:
    """Threads times results times k over 64 lanes of an SM; more where the loop reaches less than the peak."""
    gpu = device("a100_40")
    for kernel, tiles in (("register_2d", (128, 128, 8)), ("shared", (32, 32, 32))):
        step = cost(kernel).step
        bm, bn, bk = tiles
        peak = bm * bn * bk / gpu.fma_rate("fp32", "lanes")
        assert gpu.fma_rate("fp32", "lanes") == 64
        assert peak <= step.fma <= 1.5 * peak
        assert step.busy == max(step.fma, step.memory, step.issue)
