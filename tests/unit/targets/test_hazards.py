"""What crowded sets, pages and sums in memory cost, on nests small enough to count by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

import hwsim
from hwsim.errors import InputError
from hwsim.memory.footprint import estimate_page_misses
from hwsim.spec.machine import CacheSpec
from hwsim.targets.cpu.hazards import crowded, followed, run_bytes, window_lines
from hwsim.targets.cpu.model import find_reload
from hwsim.trace.nest import Access, Nest

L1 = CacheSpec.model_validate({"name": "l1", "kind": "cache", "size": "32 KiB", "ways": 8})


def column(rows: int, stride: int, passes: int = 1) -> Nest:
    """A column of so many rows, gone down several times."""
    return Nest((passes, rows), (Access(0, (0, stride), 4),))


def fills(nest: Nest, iterations: int, cache: CacheSpec = L1) -> tuple[float, float]:
    """Fills of the busiest set in a window beyond the first, where every load misses: of lines that are not there when
    it begins, and of all."""
    windows = window_lines(nest, [True] * len(nest.accesses), iterations, cache)
    missed = tuple(nest.count(access) for access in nest.accesses)
    found = crowded(nest, windows, missed, (False,), Fraction(1), cache)
    return found.fresh, found.every


def test_rows_of_4_kib_crowd_into_one_set_and_padded_ones_do_not() -> None:
    """64 sets of 64 bytes: 4 KiB apart is the same set, 4,160 bytes apart the next one."""
    assert fills(column(40, 4096), 40) == (39, 39)
    assert max(fills(column(40, 4096 + 64), 40)) < 4


def test_loads_of_one_line_within_a_window_share_a_miss() -> None:
    """A window of 48 loads sees a column of 12 rows four times, and fetches 12 lines."""
    assert fills(column(12, 4096, passes=4), 48) == (11, 11)


@pytest.mark.parametrize(("rows", "measured"), [(12, 1.03), (16, 1.93), (24, 3.58), (32, 5.39), (48, 8.84)])
def test_a_window_finds_what_the_one_before_has_left(rows: int, measured: float) -> None:
    """Eight lines of a set are there when a window begins. Measured on a Zen 4: cycles of a load in a loop over so many
    lines that are 4 KiB apart, of which 0.35 are the loads themselves; 48 loads wait at once, a fill takes 10.4."""
    fresh, every = fills(column(rows, 4096, passes=100), 48)
    assert fresh == rows - 8 - 1
    assert every == rows - 1
    assert fresh * 10.4 / 48 + 0.35 == pytest.approx(measured, rel=0.04)


def test_a_window_finds_nothing_of_a_column_that_is_much_longer() -> None:
    assert fills(column(200, 4096, passes=4), 48) == (47, 47)


def test_fills_of_two_sets_go_on_side_by_side_unless_they_hinder_each_other() -> None:
    """Rows 2 KiB apart fall into two sets: 24 lines in each. On a Zen 4 loads of floats take half as long again."""
    assert fills(column(200, 2048, passes=4), 48) == (23, 23)
    hindered = L1.model_copy(update={"set_hindrance": 1.5})
    assert fills(column(200, 2048, passes=4), 48, hindered) == (35, 35)


def test_a_run_ends_where_the_next_loop_jumps() -> None:
    """for k: for j: B[k,j]: a tile of 32 columns, and whole rows of 512, which are one run."""
    assert run_bytes(Nest((9, 32), (Access(0, (4096, 8), 8),)), Access(0, (4096, 8), 8)) == 256
    assert run_bytes(Nest((9, 512), (Access(0, (4096, 8), 8),)), Access(0, (4096, 8), 8)) == 9 * 4096


def test_stores_do_not_share_a_miss() -> None:
    """And each drives out a written line: measured on a Zen 3, 20.8 cycles a store 4 KiB apart, 10.9 a load."""
    nest = Nest((4, 12), (Access(0, (0, 4096), 4, write=True),))
    assert fills(nest, 48) == (2 * 48 - 1, 2 * 48 - 1)


def test_stores_that_the_next_cache_answers_or_a_prefetcher_follows_cost_less() -> None:
    """Measured on a Zen 3: a transpose by tiles of 16 lines in one set takes 12 to 14 cycles a store, whose lines L2
    has; row by row, from L3, 19 to 22."""
    nest = Nest((4, 12), (Access(0, (0, 4096), 4, write=True),))
    windows = window_lines(nest, [True], 48, L1)
    for past, ahead, fills_of_set in ((48, False, 95), (24, False, 71), (0, False, 47), (48, True, 47)):
        assert crowded(nest, windows, (48,), (ahead,), Fraction(1), L1, (past,)).every == fills_of_set


@pytest.mark.parametrize(("stride", "measured"), [(4096, 44), (2048, 23.9), (1024, 10.5)])
def test_a_sum_in_memory_finds_its_line_gone_if_its_set_is_full(stride: int, measured: float) -> None:
    """Measured on a Zen 4, cycles of a sum in memory down 512 rows: four times those of a load, in one set, two and
    four; 10.4 cycles a fill."""
    rows, strides = 48, (0, stride)
    nest = Nest((4, rows), (Access(0, strides, 4, tensor="C"), Access(0, strides, 4, write=True, tensor="C")))
    windows = window_lines(nest, [True, False], rows, L1)
    found = crowded(nest, windows, (4 * rows, 0), (False, False), Fraction(1), L1)
    assert found.every == 4 * rows / (4096 // stride) - 1
    assert found.every * 10.4 / rows == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("rows", "times"), [(4, 2), (5, 4), (12, 4)])
def test_lines_of_another_column_in_the_set_also_drive_out_what_is_summed(rows: int, times: int) -> None:
    """C[i,0] += A[i,0] down rows of 4 KiB, eight ways: four lines of either are all there when C is stored, five are
    not. A fill for each line of A, two or four for each of C, the first left out."""
    strides = (0, 4096)
    columns = (
        Access(0, strides, 4, tensor="C"),
        Access(1 << 20, strides, 4, tensor="A"),
        Access(0, strides, 4, write=True, tensor="C"),
    )
    nest = Nest((4, rows), columns)
    windows = window_lines(nest, [True, True, False], rows, L1)
    found = crowded(nest, windows, (4 * rows, 4 * rows, 0), (False, False, False), Fraction(1), L1)
    assert found.every == times * rows + rows - 1


def test_pages_that_fit_are_missed_once_and_many_more_every_time() -> None:
    assert estimate_page_misses(column(60, 4096, passes=10), 64, 4096) == pytest.approx(60)
    assert estimate_page_misses(column(128, 4096, passes=10), 64, 4096) == pytest.approx(1280)


def test_a_short_row_that_is_added_to_again_is_a_sum_in_memory() -> None:
    """for i: for k: for j: C[i,j] += …: each k waits for the row of 8 that the k before stored."""
    load = Access(0, (64, 0, 8), 8, tensor="C")
    store = Access(0, (64, 0, 8), 8, write=True, tensor="C")
    reload = find_reload(Nest((3, 5, 8), (load, store)))
    assert reload is not None
    assert (reload.sums, reload.links, reload.inside) == (3, 5, 8)
    assert find_reload(Nest((3, 5), (Access(0, (8, 64), 8), Access(0, (8, 64), 8, write=True)))) is None


def test_an_unrolled_loop_is_followed_as_what_it_unrolls() -> None:
    """Sixteen loads 1 KiB apart that move by 16 KiB: a step of 1 KiB, not a jump over pages."""
    unrolled = Nest((16,), tuple(Access(lane * 1024, (16384,), 4, tensor="B") for lane in range(16)))
    assert all(followed(unrolled, 64))
    alone = Nest((16,), (Access(0, (16384,), 4, tensor="B"),))
    assert followed(alone, 64) == (False,)


def test_rows_that_are_not_padded_make_a_tiled_product_slower() -> None:
    """Measured on a Zen 4 with compiled loops at n = 512: 4.2 times (benchmarks/stories.py)."""
    crowd, padded = (hwsim.run("zen4", "matmul_tiled", n=128, tile=64, ld=ld, math=False).time_s for ld in (1024, 1040))
    assert crowd > 1.5 * padded


@pytest.mark.parametrize("machine", ["zen3", "skylake_avx512"])
def test_a_core_without_such_instructions_does_not_compute_in_bf16(machine: str) -> None:
    with pytest.raises(InputError, match="convert=true"):
        hwsim.run(machine, "matmul_simd", n=32, precision="bf16")
    wide, narrow = (hwsim.run(machine, "matmul_simd", n=64, precision=p, convert=True).time_s for p in ("fp32", "bf16"))
    assert narrow > 0.9 * wide


@pytest.mark.parametrize(
    ("workload", "settings", "measured_ms", "within"),
    [
        ("matmul_naive", {"n": 256, "order": "ijk"}, 12.6, 1.15),
        ("matmul_naive", {"n": 256, "order": "jki"}, 66.2, 1.25),
        ("matmul_naive", {"n": 512}, 307, 1.2),
        ("matmul_naive", {"n": 512, "ld": 528}, 106, 1.1),
        ("matmul_tiled", {"n": 512, "tile": 8, "order": "ikj", "vector": True}, 37.2, 1.3),
        ("matmul_tiled", {"n": 512, "tile": 16, "order": "ikj", "vector": True}, 27.1, 1.2),
        ("sum_columns", {"m": 512, "n": 512}, 0.581, 1.25),
        ("sum_columns", {"m": 2048, "n": 2048}, 22.5, 1.4),
    ],
)
def test_loops_take_what_they_took_on_a_quiet_zen_4(
    workload: str, settings: dict[str, object], measured_ms: float, within: float
) -> None:
    """Compiled and timed by `hwsim measure`; scalar loops multiply and add apart there."""
    apart = {} if settings.get("vector") else {"core.ports.fma": 0}
    found = hwsim.run("zen4", workload, math=False, set=apart, **settings).time_s * 1e3
    assert max(found / measured_ms, measured_ms / found) < within
