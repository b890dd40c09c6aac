"""Elements narrower than a byte: packed without gaps, addressed by the byte they begin in, moved by their bits."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hwsim.memory.hierarchy import Hierarchy
from hwsim.numerics.format import FORMATS
from hwsim.program.loop_kernel import build_kernel
from hwsim.spec.machine import CacheSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.cpu.hazards import followed
from hwsim.trace.nest import Access, Nest, make_access, slice_outer
from hwsim.trace.view import AddressSpace, TensorView

BITS = [3, 4, 5, 6, Fraction(17, 4), Fraction(25, 4), Fraction(33, 4), 12]


def bytes_of(view: TensorView, index: tuple[int, ...]) -> range:
    """The bytes that hold an element, counted by hand from its bits."""
    element = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
    first = Fraction(element) * view.element_bits
    last = first + view.element_bits
    return range(view.base + int(first // 8), view.base + int(-(-last // 8)))


@pytest.mark.parametrize("bits", BITS)
def test_an_address_is_that_of_the_byte_in_which_an_element_begins(bits: int | Fraction) -> None:
    view = TensorView.row_major("A", 4096, (5, 7), bits)
    for i in range(5):
        for j in range(7):
            assert view.address((i, j)) == bytes_of(view, (i, j)).start


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("view_of", ["whole", "transpose", "slice"])
def test_a_loop_over_a_view_touches_the_bytes_of_every_element_in_order(bits: int | Fraction, view_of: str) -> None:
    view = TensorView.row_major("A", 4096, (6, 9), bits)
    view = {"whole": view, "transpose": view.permute(1, 0), "slice": view.slice(slice(1, 5), slice(2, None, 3))}[
        view_of
    ]
    nest = Nest(view.shape, (view.access(0, 1),))
    expected = [bytes_of(view, (i, j)) for i in range(view.shape[0]) for j in range(view.shape[1])]
    assert [(address, size) for address, size, _ in nest.addresses()] == [(each.start, len(each)) for each in expected]


def test_accesses_of_a_nest_count_in_the_finest_of_their_units() -> None:
    nest = Nest((4,), (make_access(100, (Fraction(1, 2),), Fraction(1, 2)), Access(64, (8,), 8, write=True)))
    assert nest.per_byte == 2
    assert [access.base for access in nest.accesses] == [200, 128]
    assert nest.accesses[1].size == 8
    assert (nest.bytes_moved(write=False), nest.bytes_moved(write=True)) == (2, 32)
    assert list(nest.addresses())[:4] == [(100, 1, False), (64, 8, True), (100, 1, False), (72, 8, True)]


def test_bytes_moved_are_bits_over_eight_rounded_up_once() -> None:
    assert Nest((5,), (make_access(0, (Fraction(1, 2),), Fraction(1, 2)),)).bytes_moved(write=False) == 3


def test_a_shift_may_end_inside_a_byte() -> None:
    access = make_access(16, (2,), 2).moved(Fraction(3, 4))
    assert (access.base, access.strides, access.nbytes, access.per_byte) == (67, (8,), 8, 4)
    assert make_access(16, (2,), 2).moved(3) == Access(19, (2,), 2)


def test_a_slice_of_a_packed_nest_stays_packed() -> None:
    nest = Nest((8, 3), (make_access(10, (Fraction(9, 2), Fraction(1, 2)), Fraction(1, 2)),))
    assert list(slice_outer(nest, 3, 2).addresses()) == list(nest.addresses())[9:15]


def test_a_packed_tensor_takes_its_bits_and_no_more() -> None:
    space = AddressSpace()
    assert space.allocate("A", (3, 5), FORMATS["int4"]).strides == (5, 1)
    assert space.live_bytes == 8
    space.allocate("B", (4, 32), FORMATS["mxfp4"])
    assert space.live_bytes == 8 + 4 * 17


def cache(name: str, **fields: object) -> CacheSpec:
    sizes = {field: f"{value} B" if field in ("size", "line") else value for field, value in fields.items()}
    return CacheSpec.model_validate({"kind": "cache", "name": name, **sizes})


def replayed(nest: Nest, coupled: bool) -> tuple[Hierarchy, object]:
    size = {"size": 512, "ways": 2, "line": 32}
    specs = [cache("l1", **size, **({"replacement": "plru"} if coupled else {})), cache("l2", **{**size, "size": 2048})]
    hierarchy = Hierarchy(specs, warp_from=1)
    return hierarchy, hierarchy.replay(nest)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_caches_see_the_lines_that_the_bytes_lie_on(
    bits: int | Fraction, order: tuple[int, int], coupled: bool
) -> None:
    """The same accesses one by one, as bytes counted by hand, leave the same misses in both levels."""
    a = TensorView.row_major("A", 4096, (40, 67), bits)
    c = TensorView.row_major("C", 1 << 16, (40, 67), 32)
    shape = tuple(a.shape[axis] for axis in order)
    loops = tuple(order.index(axis) for axis in (0, 1))
    nest = Nest(shape, (a.permute(*order).access(0, 1), c.permute(*order).access(0, 1, write=True)))
    places = [(i, j) for i in range(shape[0]) for j in range(shape[1])]
    each = []
    for place in places:
        index = tuple(place[loop] for loop in loops)
        each += [(bytes_of(a, index), False), (bytes_of(c, index), True)]
    _, traffic = replayed(nest, coupled)
    fresh, _ = replayed(Nest((), (Access(0, (), 1),)), coupled)
    oracle = Hierarchy(fresh.topology.specs)
    expected = oracle.feed(
        np.array([touched.start for touched, _ in each], np.uint64),
        np.array([write for _, write in each]),
        np.array([len(touched) for touched, _ in each], np.uint16),
    )
    for name in ("l1", "l2"):
        found, wanted = traffic.levels[name], expected.levels[name]
        assert (found.read_misses, found.write_misses, found.writebacks) == (
            wanted.read_misses, wanted.write_misses, wanted.writebacks,
        )  # fmt: skip
    assert traffic.levels["l1"].bytes_read == -(-40 * 67 * Fraction(bits) // 8)
    assert traffic.levels["l1"].bytes_written == 40 * 67 * 4


@pytest.mark.parametrize("bits", [4, 6, Fraction(17, 4)])
def test_warping_a_packed_nest_changes_no_count(bits: int | Fraction) -> None:
    """Long rows, one after the other: most periods are skipped, and every count is that of the plain walk."""
    a = TensorView.row_major("A", 4096, (3000, 128), bits)
    nest = Nest(a.shape, (a.access(0, 1),))
    specs = [cache("l1", size=512, ways=2, line=32), cache("l2", size=2048, ways=2, line=32)]
    warped = Hierarchy(specs, warp_from=1).replay(nest)
    plain = Hierarchy(specs, warp=False, compress=False).replay(nest)
    assert warped.skipped > 0
    assert (warped.levels, warped.dram) == (plain.levels, plain.dram)


def test_a_packed_stream_is_a_stream() -> None:
    nest = Nest((4096,), (make_access(0, (Fraction(1, 2),), Fraction(1, 2)),))
    assert followed(nest, 64)[0]


@pytest.mark.parametrize(("precision", "lines"), [("int4", 2), ("fp6_e3m2", 3), ("mxfp4", 2.125), ("uint4", 2)])
@pytest.mark.parametrize("lanes", [1, 32])
def test_a_kernel_moves_the_bits_of_its_tensors(precision: str, lines: float, lanes: int) -> None:
    """256 numbers of 4 bits are 128 bytes: 2 lines of 64; MXFP4 has 8 bytes of scales besides."""
    spec = WorkloadSpec.model_validate(
        {"format": 1, "name": "one", "description": "copy", "op": "copy", "precision": precision, "sizes": {"n": 2560},
         "schedule": {"vector": lanes > 1}}
    )  # fmt: skip
    kernel = build_kernel(spec, lanes=lanes)
    hierarchy = Hierarchy([cache("l1", size=1 << 16, ways=8, line=64)])
    for block in kernel.blocks():
        for step in block.steps():
            for nest in step.nests:
                hierarchy.replay(nest)
    counters = hierarchy.level_counters()["l1"]
    wanted = -(-2560 * lines // 256)
    assert counters.read_misses == counters.write_misses == wanted
    assert counters.bytes_read == counters.bytes_written == 10 * 64 * lines
