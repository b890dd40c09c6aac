"""Hand-written GPU kernels: coalescing, bank conflicts, the L1, and a sampled replay against a full one."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.catalog import load_machine
from hwsim.errors import CapacityError
from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.device import Device
from hwsim.targets.gpu.hand_written import MatmulProblem, make_program, program_cost
from hwsim.targets.gpu.replay import SectorCache, WarpAccess, measure, replay, touched, wavefronts

LANES = np.arange(32, dtype=np.int64)


def device(*settings: str) -> Device:
    return Device.of(load_machine("a6000", settings).spec)


def load(lanes: np.ndarray, nbytes: int = 4, space: str = "global") -> WarpAccess:
    return WarpAccess("A", space, lanes.reshape(1, 32), nbytes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lanes", "nbytes", "sectors", "lines"),
    [
        (LANES * 4, 4, 4, 1),  # 32 neighbouring words: 128 bytes
        (LANES * 0, 4, 1, 1),  # a broadcast
        (LANES * 4096, 4, 32, 32),  # down a column
        (LANES * 8, 4, 8, 2),  # every second word
        (LANES * 16, 16, 16, 4),  # four words each
        (LANES * 4 + 16, 4, 5, 2),  # neighbours that do not begin at a sector
    ],
)
def test_a_request_takes_the_sectors_and_lines_that_its_lanes_touch(
    lanes: np.ndarray, nbytes: int, sectors: int, lines: int
) -> None:
    """As the CUDA C++ Programming Guide counts 32-byte transactions."""
    assert measure(device(), load(lanes, nbytes)).sectors == sectors
    assert len(touched(lanes, nbytes, 128)) == lines


def test_a_load_down_a_column_holds_the_load_store_unit_for_a_cycle_per_line() -> None:
    assert measure(device(), load(LANES * 4096)).cycles == 32
    assert measure(device(), load(LANES * 0)).cycles == 32 / 16


@pytest.mark.parametrize(
    ("lanes", "nbytes", "passes"),
    [
        (LANES * 4, 4, 1),
        (LANES * 0, 4, 1),
        (LANES * 8, 4, 2),
        (LANES * 128, 4, 32),
        (LANES * 132, 4, 1),  # a pad of one word takes all conflicts away
        (LANES * 16, 16, 4),  # 512 bytes in four quarters
        (LANES % 16 * 32, 16, 8),  # every second quad-word: each quarter twice
        (LANES * 0, 16, 2),  # one quad-word for all: halves instead of quarters
        (LANES * 8, 8, 2),
    ],
)
def test_passes_through_the_banks_of_shared_memory(lanes: np.ndarray, nbytes: int, passes: int) -> None:
    spec = device().shared
    assert wavefronts(spec, lanes, nbytes) == passes


class PlainCache:
    """An independent model: dictionaries in order of use."""

    def __init__(self, cache: SectorCache) -> None:
        self.cache = cache
        self.sets: list[OrderedDict[int, set[int]]] = [OrderedDict() for _ in range(cache.sets)]

    def miss(self, address: int) -> bool:
        line, sector = address // self.cache.line, address % self.cache.line // self.cache.sector
        lines = self.sets[(line ^ (line >> 7) ^ (line >> 14) ^ (line >> 21)) % self.cache.sets]
        present = lines.pop(line, None)
        if present is None and len(lines) == self.cache.ways:
            lines.popitem(last=False)
        lines[line] = present or set()
        missing = sector not in lines[line]
        lines[line].add(sector)
        return missing


@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=300), st.sampled_from([1, 2, 4]), st.sampled_from([512, 1024])
)
def test_the_l1_misses_what_a_plain_model_misses(sectors: list[int], ways: int, size: int) -> None:
    cache = SectorCache(size, 128, 32, ways)
    plain = PlainCache(cache)
    addresses = np.array(sectors, np.int64) * 32
    assert cache.misses(addresses).tolist() == [plain.miss(int(address)) for address in addresses]


RUNGS = ["naive", "coalesced", "shared", "register_1d", "register_2d", "vectorised", "warp_tiled"]


@pytest.mark.parametrize("kernel", RUNGS)
def test_a_program_multiplies_as_often_as_the_product_needs(kernel: str) -> None:
    program = make_program(MatmulProblem(512, 384, 256), ThreadSchedule(kernel=kernel))  # type: ignore[arg-type]
    assert program.fma_total == 512 * 384 * 256


@pytest.mark.parametrize("kernel", [*RUNGS, "tensor"])
def test_every_element_of_both_matrices_is_loaded_and_none_beyond_them(kernel: str) -> None:
    m, n, k = 256, 256, 64
    bits = 16 if kernel == "tensor" else 32
    problem = MatmulProblem(m, n, k, "fp16" if bits == 16 else "fp32", bits)
    program = make_program(problem, ThreadSchedule(kernel=kernel))  # type: ignore[arg-type]
    loaded: dict[str, set[int]] = {"A": set(), "B": set()}
    for access in program.accesses("global"):
        for number in range(program.blocks):
            for step in range(program.steps):
                for time in range(access.times):
                    moved = np.dot(access.block, program.block_at(number)) + access.step * step + access.stride * time
                    for byte in range(0, access.nbytes, bits // 8):
                        loaded[access.tensor].update((access.lanes.ravel() + moved + byte).tolist())
    size = bits // 8
    assert loaded["A"] == set(range(0, m * k * size, size))
    assert loaded["B"] == set(range(0, k * n * size, size))


@pytest.mark.parametrize("kernel", ["naive", "coalesced", "shared", "register_2d", "warp_tiled"])
def test_a_sampled_replay_is_close_to_a_full_one(kernel: str) -> None:
    """On a small GPU: taking steps to be alike moves the bytes from DRAM by less than a quarter, L2's by a tenth."""
    small = device("sm.count=4", "l2.size=128 KiB")
    program = make_program(MatmulProblem(512, 512, 512), ThreadSchedule(kernel=kernel))  # type: ignore[arg-type]
    full = replay(small, program, 1, most_sectors=10**9)
    part = replay(small, program, 1, most_sectors=20_000)
    assert full.walked == 1 and part.walked < 0.5
    assert part.l2_bytes == pytest.approx(full.l2_bytes, rel=0.1)
    assert part.dram_bytes == pytest.approx(full.dram_bytes, rel=0.25)


def test_what_is_asked_of_the_l1_is_what_the_lanes_touch() -> None:
    """Naive: 33 sectors for each k of a warp, of which the L1 keeps nearly all."""
    program = make_program(MatmulProblem(512, 512, 64), ThreadSchedule(kernel="naive"))
    found = replay(device(), program, 1, most_sectors=10**9)
    assert found.l2_bytes / (1 - found.l1_hit_rate) == pytest.approx(32 * 64 * 33 * 32)
    assert found.l1_hit_rate > 0.95


def test_a_block_that_does_not_fit_says_by_how_much() -> None:
    program = make_program(MatmulProblem(512, 512, 64), ThreadSchedule(kernel="register_2d", bm=256, bn=512))
    with pytest.raises(CapacityError, match="2048 threads, 1024 more than the 1024 of a block"):
        program_cost(device(), program)
