"""Passes of a row-stationary mapping: counted, laid out in order, and played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

import pytest

from hwsim.catalog import load_machine
from hwsim.engine import Floor
from hwsim.program.contraction import ConvShape
from hwsim.targets.grid.agent import play_mapping
from hwsim.targets.grid.lower import find_mapping
from hwsim.targets.grid.mapping import ORDERS, RowStationary, problems
from hwsim.targets.grid.model import Drain, Entry, GridPass, PeGrid, RoundMark, Slot, count_passes, lay_out, repeat

EVEN = ConvShape(8, 16, (16, 9), (3, 3), 2)
ODD = ConvShape(7, 11, (13, 10), (3, 3), 3, stride=(2, 2), padding=(1, 1))
DEEP = ConvShape(96, 48, (27, 27), (5, 5), 4, padding=(2, 2), groups=2)
LETTERS = {"n": 1, "m": 8, "e": 7, "p": 4, "q": 2, "r": 2, "t": 1}


def tally(entries: Sequence[Entry]) -> Counter[GridPass]:
    """The passes of a program."""
    counts: Counter[GridPass] = Counter()
    marks: dict[int, Counter[GridPass]] = {}
    for entry in entries:
        if isinstance(entry, Slot):
            counts[entry.work] += 1
        elif isinstance(entry, RoundMark):
            marks[entry.level] = counts.copy()
        else:
            repeat(counts, marks[entry.level], entry.rounds)
    return counts


@pytest.fixture(scope="module")
def grid() -> PeGrid:
    return PeGrid(load_machine("eyeriss").spec)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [EVEN, ODD, DEEP])
def test_rounds_that_are_not_played_are_counted(shape: ConvShape, order: str) -> None:
    mapping = RowStationary.of(shape, {**LETTERS, "e": 3}, order)
    whole = count_passes(mapping, Drain())
    for most in (1, 5, 40, 10**6):
        assert tally(lay_out(mapping, Drain(), most)) == whole
    played = [entry for entry in lay_out(mapping, Drain(), 10**6) if isinstance(entry, Slot)]
    size = mapping.sizes
    passes = size["g"] * ceil(size["n"] / mapping.n) * ceil(size["m"] / (mapping.p * mapping.t))
    passes *= ceil(size["c"] / (mapping.q * mapping.r)) * ceil(size["p"] / mapping.e)
    assert len(played) == sum(whole.values()) == passes


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [EVEN, ODD, DEEP])
def test_what_passes_do_is_the_layer(shape: ConvShape, order: str) -> None:
    passes = count_passes(RowStationary.of(shape, LETTERS, order), Drain())
    outputs = shape.batch * shape.co * shape.out[0] * shape.out[1]
    assert sum(each.macs * count for each, count in passes.items()) == shape.macs
    assert sum(each.stored * count for each, count in passes.items()) == outputs
    weights = shape.co * shape.ci // shape.groups * shape.window[0] * shape.window[1]
    assert sum(each.weights * count for each, count in passes.items()) >= weights
    assert sum(each.inputs * count for each, count in passes.items()) >= shape.batch * shape.ci * 9


def test_even_pieces_without_padding_move_what_the_closed_form_says(grid: PeGrid) -> None:
    """16 - 3 + 1 = 14 rows are two strips of 7, channels and images divide: nothing is left for a difference."""
    mapping = RowStationary.of(EVEN, LETTERS)
    assert not problems(mapping, grid.sizes)
    cost = grid.cost(mapping)
    for part in ("buffer", "dram"):
        closed = cost.flow.total(part)
        assert (cost.actions[part, "read"], cost.actions[part, "write"]) == (closed.reads, closed.writes)
    for pad, role in (("weights", "weight"), ("sums", "output")):
        closed = cost.flow.accesses[pad, role]  # type: ignore[index]
        assert (cost.actions[pad, "read"], cost.actions[pad, "write"]) == (closed.reads, closed.writes)
    assert cost.actions["inputs", "write"] == cost.flow.accesses["inputs", "input"].writes
    assert cost.actions["pe", "hop"] == cost.flow.reduced


def test_weights_of_the_pass_before_stay_and_inputs_that_lie_in_the_buffer(grid: PeGrid) -> None:
    """All channels in one pass: weights come once for all strips and images; with m inside, inputs come once."""
    shape = ConvShape(4, 8, (30, 9), (3, 3), 3)
    once = count_passes(RowStationary.of(shape, {"e": 14, "p": 8, "q": 4, "m": 8}), Drain())
    assert sum(each.weights * count for each, count in once.items()) == 8 * 4 * 9
    twice = count_passes(RowStationary.of(shape, {"e": 28, "p": 4, "q": 4, "m": 4}, "npm"), Drain())
    assert sum(each.inputs * count for each, count in twice.items()) == 3 * 4 * 30 * 9
    again = count_passes(RowStationary.of(shape, {"e": 28, "p": 4, "q": 4, "m": 4}, "mnp"), Drain())
    assert sum(each.inputs * count for each, count in again.items()) == 2 * 3 * 4 * 30 * 9


@pytest.mark.parametrize("shape", [ODD, DEEP, ConvShape(256, 96, (13, 13), (3, 3), 4, padding=(1, 1))])
def test_few_played_rounds_take_nearly_as_long_as_all(grid: PeGrid, shape: ConvShape) -> None:
    cost = find_mapping(grid, shape)
    whole = play_mapping(grid, cost, most=10**6)
    short = play_mapping(grid, cost, most=60)
    assert short.agent.passes == whole.agent.passes
    assert short.elapsed_fs == pytest.approx(whole.elapsed_fs, rel=0.03)


def test_a_huge_layer_takes_few_events(grid: PeGrid) -> None:
    shape = ConvShape(512, 512, (112, 112), (3, 3), 64, padding=(1, 1))
    floor = Floor()
    played = play_mapping(grid, find_mapping(grid, shape), floor=floor)
    assert sum(played.agent.passes.values()) > 10**5
    assert floor.events < 50_000


def test_time_is_put_down_without_remainder_and_no_link_is_overtaken(grid: PeGrid) -> None:
    for shape in (ODD, DEEP, EVEN):
        floor = Floor()
        played = play_mapping(grid, find_mapping(grid, shape), floor=floor)
        time = played.agent.watch.result()
        assert time.elapsed_fs == floor.now
        moved = grid.nbytes(sum(played.actions["dram", action] for action in ("read", "write")))
        rate = grid.bytes_per_second(grid.dram)
        assert rate is not None
        assert moved / rate <= (floor.now + 1) * 1e-15
        assert played.cycles >= played.cost.compute_cycles


def test_the_next_tile_comes_while_this_one_is_computed_where_there_is_room() -> None:
    """Of two mappings that differ in the output channels in the buffer alone, the one with room waits less."""
    grid = PeGrid(load_machine("eyeriss", ["pe.double_buffered=true"]).spec)
    shape = ConvShape(192, 192, (13, 13), (3, 3), 4, padding=(1, 1))
    letters = {"n": 4, "e": 13, "p": 16, "q": 4, "r": 2, "t": 2}
    full, roomy = (play_mapping(grid, grid.cost(RowStationary.of(shape, {**letters, "m": m}))) for m in (64, 32))
    assert (full.agent.room.inputs, roomy.agent.room.inputs) == (False, True)
    assert roomy.agent.watch.waiting["inputs"] < full.agent.watch.waiting["inputs"] / 10
    assert roomy.cost.moved_bytes > full.cost.moved_bytes


def test_weights_wait_for_the_pass_before_without_a_buffer_of_their_own() -> None:
    ahead, late = (PeGrid(load_machine("eyeriss", settings).spec) for settings in ([], ["pe.weight_buffer=null"]))
    mapping = RowStationary.of(DEEP, {"e": 14, "p": 16, "q": 2, "m": 16})
    times = [play_mapping(grid, grid.cost(mapping)).agent.watch.waiting["weights"] for grid in (ahead, late)]
    assert times[1] > 5 * times[0]


@pytest.mark.parametrize(
    "more",
    [["buffer.size=200 KiB"], ["dram.bandwidth=1440 MB/s"], ["pe.rows=24"], ["pe.columns=28"], ["pe.weight_words=8"]],
    ids=str,
)
@pytest.mark.parametrize(
    "shape",
    [ConvShape(16, 32, (27, 13), (3, 3), 4, padding=(1, 1)), ConvShape(48, 96, (14, 28), (3, 3), 2, padding=(1, 1))],
)
def test_a_larger_machine_is_not_slower(grid: PeGrid, shape: ConvShape, more: list[str]) -> None:
    larger = PeGrid(load_machine("eyeriss", more).spec)
    before, after = (play_mapping(each, find_mapping(each, shape)).elapsed_fs for each in (grid, larger))
    assert after <= 1.005 * before
