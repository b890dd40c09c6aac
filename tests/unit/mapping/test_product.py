"""A product as tiles: what fits, what moves, and in which order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hwsim.catalog import load_machine
from hwsim.errors import CapacityError
from hwsim.program.contraction import gemm_view
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.workload import MappingSpec, WorkloadSpec
from hwsim.targets.systolic import gemm
from hwsim.targets.systolic.gemm import TilingSearch
from hwsim.targets.systolic.lower import Mapped, map_kernel, program_of
from hwsim.targets.systolic.model import Chip, build_chip
from hwsim.targets.systolic.run import _elapsed
from hwsim.targets.systolic.tiling import ArrayWork, Move, TileStep, merge

MIB = 1024 * 1024


def chip(*settings: str, machine: str = "scalesim_32", fmt: str = "int8") -> Chip:
    return build_chip(load_machine(machine, settings).spec, fmt)


def formula(text: str, precision: str = "int8", **sizes: int) -> Kernel:
    fields = {"format": 1, "name": "made", "description": "A formula.", "op": "formula", "precision": precision}
    return build_kernel(WorkloadSpec.model_validate({**fields, "formula": text, "sizes": sizes}), math=False)


def product(m: int, n: int, k: int) -> Kernel:
    return formula("C[i,j] += A[i,k] * B[k,j]", i=m, j=n, k=k)


def moved(mapped: Mapped, tensor: str, *, store: bool = False) -> int:
    """Bytes of a tensor that all steps together load, or store."""
    steps = [step for each in mapped.passes for step in each]
    moves = [move for step in steps for move in (step.stores if store else step.loads)]
    return sum(move.nbytes for move in moves if move.tensor == tensor)


def test_where_everything_fits_each_operand_moves_once() -> None:
    mapped = map_kernel(chip(), product(200, 150, 100), goal="traffic")
    assert moved(mapped, "A") == 200 * 100
    assert moved(mapped, "B") == 100 * 150
    assert moved(mapped, "C", store=True) == 4 * 200 * 150
    assert sum(each.counts.macs for each in mapped.passes) == 200 * 150 * 100


@pytest.mark.parametrize(("order", "again"), [("mnk", ("B", 4)), ("nmk", ("A", 4))])
def test_the_outer_loop_decides_which_operand_comes_again(order: str, again: tuple[str, int]) -> None:
    """256 x 256 in tiles of 64, and room for one row of tiles of an operand, but not for all of it."""
    small = chip("ifmap.size=40 KiB", "filter.size=40 KiB", "ofmap.size=64 KiB")
    asked = MappingSpec(order=order, tile_m=64, tile_n=64, tile_k=64)  # type: ignore[arg-type]
    mapped = map_kernel(small, product(256, 256, 256), asked)
    often = {name: moved(mapped, name) / 256**2 for name in "AB"}
    tensor, times = again
    assert often == {tensor: times, ({"A", "B"} - {tensor}).pop(): 1}


def test_sums_that_find_no_room_go_out_and_come_back() -> None:
    """k outermost: every tile of C is met again for each of four tiles along k, three times with sums of 32 bits."""
    small = chip("ofmap.size=32 KiB")
    asked = MappingSpec(order="kmn", tile_m=64, tile_n=64, tile_k=64)
    mapped = map_kernel(small, product(256, 256, 256), asked)
    assert moved(mapped, "C") == 3 * 4 * 256**2
    assert moved(mapped, "C", store=True) == 4 * 4 * 256**2


@pytest.mark.parametrize("order", ["mnk", "mkn", "nmk", "nkm", "kmn", "knm"])
def test_bytes_that_are_expected_of_a_tile_are_those_that_all_tiles_move(order: str) -> None:
    """Tiles of 64 that divide 256 evenly, and room for some: what is expected for an element every time a tile is
    worked on, times 4³ tiles of 64² elements, is what the steps load and store."""
    small = chip("ifmap.size=20 KiB", "filter.size=20 KiB", "ofmap.size=36 KiB")
    kernel = product(256, 256, 256)
    asked = MappingSpec(order=order, tile_m=64, tile_n=64, tile_k=64)  # type: ignore[arg-type]
    mapped = map_kernel(small, kernel, asked, "traffic")
    view = gemm_view(program_of(kernel)[0])  # type: ignore[arg-type]
    assert view is not None
    search = TilingSearch(small, view, 0, mapped.places)
    expected = search._bytes_per_element(search.choices(asked, "traffic")[0])
    for role, tensor in (("input", "A"), ("weight", "B"), ("output", "C")):
        told = moved(mapped, tensor) + moved(mapped, tensor, store=True)
        assert expected[role] * 64**2 * 4**3 == told, tensor  # type: ignore[index]


def test_choices_are_played_while_they_have_few_steps_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for as many steps as the first choice has, no other is played but those that always are."""
    small = chip("ifmap.size=20 KiB", "filter.size=20 KiB", "ofmap.size=36 KiB")
    kernel = product(256, 256, 256)
    view = gemm_view(program_of(kernel)[0])  # type: ignore[arg-type]
    assert view is not None
    search = TilingSearch(small, view, 0, map_kernel(small, kernel).places)
    choices = [replace(each, sure=False, floor=0.0, estimate=1.0) for each in search.choices(MappingSpec())]
    steps = [each.steps for each in choices]
    assert len(choices) > 2 and min(steps) > 1

    def played(most: int) -> int:
        seen: list[object] = []
        monkeypatch.setattr(gemm, "MOST_PLAYED", most)
        monkeypatch.setattr(gemm, "play_alone", lambda _, walk, __: seen.append(walk) or 2.0)
        gemm._played(search, choices)
        return len(seen)

    assert played(steps[0]) == 1
    assert played(steps[0] + min(steps[1:])) == 2
    assert played(sum(steps)) == len(choices)


def test_auto_takes_the_least_traffic_of_all_orders() -> None:
    small = chip("ifmap.size=16 KiB", "filter.size=32 KiB", "ofmap.size=32 KiB")

    def traffic(asked: MappingSpec) -> int:
        mapped = map_kernel(small, product(300, 200, 400), asked, "traffic")
        return sum(moved(mapped, name) + moved(mapped, name, store=True) for name in "ABC")

    orders = ("mnk", "mkn", "nmk", "nkm", "kmn", "knm")
    by_order = {order: traffic(MappingSpec(order=order)) for order in orders}  # type: ignore[arg-type]
    assert traffic(MappingSpec()) == min(by_order.values())
    assert max(by_order.values()) > min(by_order.values())


@pytest.mark.parametrize(("side", "fits"), [(181, True), (182, False)])
def test_a_tile_as_large_as_the_buffer_fits_and_a_larger_one_is_refused(side: int, fits: bool) -> None:
    """181² sums of 32 bits are 131,044 of the 131,072 bytes."""
    small = chip("ofmap.size=128 KiB", "ofmap.buffers=1")
    asked = MappingSpec(tile_m=side, tile_n=side, tile_k=32)
    if fits:
        assert map_kernel(small, product(181, 181, 64), asked).passes[0].tile == {"m": side, "n": side, "k": 32}
        return
    with pytest.raises(CapacityError) as error:
        map_kernel(small, product(182, 182, 64), asked)
    assert str(error.value) == (
        "C: a tile of m 182 x n 182 x k 32 needs 132496 B in ofmap (output), which has 128 KiB; "
        "the largest square tile that fits is 181"
    )


def test_windows_that_overlap_are_loaded_once() -> None:
    kernel = formula("O[y,x,f] += I[y+r,x+s,c] * W[r,s,c,f]", y=30, x=30, f=16, r=3, s=3, c=8)
    mapped = map_kernel(chip(), kernel)
    assert moved(mapped, "I") == 32 * 32 * 8
    assert moved(mapped, "W") == 3 * 3 * 8 * 16
    # The array itself is fed each window in full: nine values for each pixel and channel.
    assert mapped.passes[0].counts.elements["ifmap", "read"] == 30 * 30 * 9 * 8


def test_padded_tiles_of_weights_are_loaded_whole() -> None:
    tpu = chip(machine="tpu_v1")
    mapped = map_kernel(tpu, product(96, 600, 600))
    assert len(mapped.passes[0].steps) == 9
    assert moved(mapped, "B") == 9 * 65536


def test_activations_stay_at_home_and_weights_come_from_memory() -> None:
    mapped = map_kernel(chip(machine="tpu_v1"), product(256, 512, 512))
    assert mapped.places.level == {"A": "unified_buffer", "B": "dram", "C": "unified_buffer"}
    assert moved(mapped, "A") == 0


def test_activations_that_do_not_fit_come_from_memory() -> None:
    tpu = chip("unified_buffer.size=1 MiB", machine="tpu_v1")
    mapped = map_kernel(tpu, product(4096, 256, 512))
    assert mapped.places.level == {"A": "dram", "B": "dram", "C": "dram"}
    assert moved(mapped, "A") == 4096 * 512


def test_small_products_share_a_tile() -> None:
    whole = MappingSpec(tile_m=8, tile_n=8, tile_k=8)
    mapped = map_kernel(chip(), formula("O[h,i,j] += A[h,i,k] * B[h,k,j]", h=64, i=8, j=8, k=8), whole)
    assert len(mapped.passes[0].steps) == 8
    assert mapped.passes[0].counts.macs == 64 * 8**3


def test_no_scratchpad_holds_more_than_it_has() -> None:
    for size in (2, 8, 64):
        settings = [f"{pad}.size={size} KiB" for pad in ("ifmap", "filter", "ofmap")]
        mapped = map_kernel(chip(*settings), product(200, 100, 300))
        for pad in ("ifmap", "filter", "ofmap"):
            assert 0 < mapped.taken(pad, mapped.passes[0]) <= size * 1024


def test_tiles_of_several_arrays_are_shared_out() -> None:
    four = chip(machine="tpu_v3", fmt="bf16")
    kernel = formula("C[i,j] += A[i,k] * B[k,j]", precision="bf16", i=512, j=512, k=512)
    works = [step.work for step in map_kernel(four, kernel).passes[0]]
    assert sum(work.busy for work in works if work is not None) == 512**3 // (4 * 128 * 128)


def test_prices_of_bits_are_those_of_the_machine_in_joules_and_all_that_is_always_on() -> None:
    table = load_machine("tpu_v1").spec.energy
    assert table is not None
    prices = build_chip(load_machine("tpu_v1").spec, "int8").prices
    assert prices is not None
    assert prices.per_bit("accumulators") == pytest.approx(0.17e-12)
    assert prices.per_bit("accumulators", "write") == pytest.approx(0.14e-12)
    assert prices.per_bit("array", "hop") == 0.0  # not for each bit
    assert prices.static_watts == pytest.approx(
        sum(float(x.power) + float(x.clock or 0) for x in table.static.values())
    )


def test_a_pass_takes_from_the_end_of_the_one_before_to_its_own() -> None:
    """Ends at 5, 9, 7 (beside the one before) and 20."""
    agent = SimpleNamespace(over=[SimpleNamespace(value=value) for value in (5, 9, 7, 20)])
    assert _elapsed(agent) == [5, 4, 0, 11]  # type: ignore[arg-type]


def test_what_windows_skip_comes_along_where_the_array_does_not_gather() -> None:
    """Windows of 2 x 2 at every third place: 20 x 20 pixels are read. With those between them a tile of y rows has
    3 y - 1 rows of 29; of one row at a time, only what lies between columns comes along."""
    kernel = formula("O[y,x,f] += I[3*y+r,3*x+s,c] * W[r,s,c,f]", y=10, x=10, f=16, c=8, r=2, s=2)
    view = gemm_view(program_of(kernel)[0])  # type: ignore[arg-type]
    assert view is not None
    for name, between in (("scalesim_32", 0), ("gemmini16", 1)):
        made = chip(machine=name)
        mapped = map_kernel(made, kernel)
        search = TilingSearch(made, view, 0, mapped.places)
        for y, x in ((10, 10), (1, 10), (4, 1)):
            rows, columns = (2 * n + between * (n - 1) for n in (y, x))
            assert search.footprint("input", {"y": y, "x": x, "r": 2, "s": 2, "c": 8}) == rows * columns * 8
            assert search.footprint("weight", {"f": 16, "r": 2, "s": 2, "c": 8}) == 16 * 2 * 2 * 8
        assert moved(mapped, "I") in (20 * (20 + 9 * between) * 8, (20 + 9 * between) ** 2 * 8)
    near = formula("O[y,x,f] += I[2*y+r,2*x+s,c] * W[r,s,c,f]", y=10, x=10, f=16, c=8, r=3, s=3)
    for name in ("scalesim_32", "gemmini16"):
        assert moved(map_kernel(chip(machine=name), near), "I") == 21 * 21 * 8


def test_a_merged_step_has_the_bytes_and_cycles_of_all_its_tiles() -> None:
    """By hand, 32 rows: the second tile goes on with what is in the cells, the third moves in while the last fold of
    the one before runs for 12 of 32 cycles."""
    works = [ArrayWork(30, 40, 12, 45), ArrayWork(20, 25, 12, 25, goes_on=True), ArrayWork(10, 15, 10, 20)]
    load = Move("input", "A", "dram", 100, padded=128)
    tiles = [TileStep("t", (load,), (), work, vector_cycles=7, opens=n == 1) for n, work in enumerate(works)]
    pipelined = chip("array.folding=pipelined")
    whole = merge(pipelined, tiles)
    assert whole.loads == (Move("input", "A", "dram", 300, requests=3, padded=384),)
    assert (whole.vector_cycles, whole.opens) == (21, True)
    body = 40 + 25 + (32 - 12) + 15
    assert whole.work == ArrayWork(60, body, 10, body + 5 + 5, goes_on=False)
    assert merge(pipelined, tiles[1:]).work == ArrayWork(30, 25 + 20 + 15, 10, 25 + 20 + 15 + 5, goes_on=True)
    assert merge(pipelined, tiles[:1]) is tiles[0]
    array = pipelined.array
    chained = merge(pipelined, [replace(tile, chained=True) for tile in tiles[::2]]).work
    assert chained is not None and chained.body == 40 + array.fill_cycles + array.drain_cycles + 15
