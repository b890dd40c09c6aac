"""Loops with several results, loops that add to what is there, and scratch space that each core has for itself."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.numerics.format import find_format
from hwsim.program.kernel import Setting, Step
from hwsim.program.loop_kernel import LoopKernel, at, part
from hwsim.program.loops import Ranges, TileLoop
from hwsim.spec.base import ParallelSchedule
from hwsim.trace.nest import Instructions

FP32 = find_format("fp32")


def kernel(cores: int = 1, lanes: int = 1, split: str = "static") -> LoopKernel:
    schedule = {"parallel": "rows", "split": split} if cores > 1 else {}
    return LoopKernel("made", FP32, Setting(cores=cores, lanes=lanes), ParallelSchedule.model_validate(schedule))


def nothing(ranges: Ranges) -> None:
    """No math: only the accesses matter."""


def only(made: LoopKernel) -> Step:
    (step,) = [step for block in made.blocks() for step in block.steps()]
    return step


def touches(step: Step) -> list[tuple[int, int, bool]]:
    return [touch for nest in step.nests for touch in nest.addresses()]


def test_a_second_result_is_stored_for_each_point_beside_the_sum_in_its_register() -> None:
    made = kernel()
    x, y, total = made.add_input("X", 2, 3), made.add_scratch("Y", 2, 3), made.add_result("L", 2)
    made.add(
        made.make_loop(
            "exp and sum", {"i": 2, "j": 3}, [at(x, "i", "j")], at(total, "i"), Instructions(add=1, special=1), nothing,
            accumulates=True, stores=[at(y, "i", "j")], late_body=Instructions(special=1),
        )
    )  # fmt: skip
    step = only(made)
    row = [(x.base, y.base), (x.base + 4, y.base + 4), (x.base + 8, y.base + 8)]
    first = [touch for load, store in row for touch in ((load, 4, False), (store, 4, True))]
    assert touches(step)[:7] == [*first, (total.base, 4, True)]
    assert len(touches(step)) == 14
    assert step.work.instructions.store == 8
    # What finishes a value is done for each sum, not for each stored value.
    assert step.work.instructions.special == 6 + 2


def test_a_second_result_of_each_row_is_stored_after_the_row() -> None:
    made = kernel(lanes=2)
    x, m, total = made.add_input("X", 2, 4), made.add_scratch("M", 2), made.add_result("L", 2)
    made.add(
        made.make_loop(
            "max and sum", {"i": 2, "j": 4}, [at(x, "i", "j")], at(total, "i"), Instructions(add=2), nothing,
            vector=True, accumulates=True, stores=[at(m, "i")],
        )
    )  # fmt: skip
    assert touches(only(made)) == [
        (x.base, 8, False), (x.base + 8, 8, False), (m.base, 4, True), (total.base, 4, True),
        (x.base + 16, 8, False), (x.base + 24, 8, False), (m.base + 4, 4, True), (total.base + 4, 4, True),
    ]  # fmt: skip


@pytest.mark.parametrize("continues", [False, True])
def test_a_sum_that_continues_is_loaded_first(continues: bool) -> None:
    made = kernel()
    x, total = made.add_input("X", 2, 3), made.add_result("L", 2)
    made.add(
        made.make_loop(
            "sum", {"i": 2, "j": 3}, [at(x, "i", "j")], at(total, "i"), Instructions(add=1), nothing,
            accumulates=True, continues=continues,
        )
    )  # fmt: skip
    step = only(made)
    assert ((total.base, 4, False) in touches(step)) == continues
    assert touches(step)[0] == ((total.base, 4, False) if continues else (x.base, 4, False))
    assert step.work.instructions.load == 6 + 2 * continues


@pytest.mark.parametrize(("cores", "split", "copies"), [(1, "static", 1), (3, "static", 3), (2, "dynamic", 8)])
def test_each_block_has_private_scratch_space_of_its_own(cores: int, split: str, copies: int) -> None:
    made = kernel(cores, split=split)
    a, c = made.add_input("A", 20), made.add_result("C", 20)
    t = at(made.add_private("T", 2), "i", tiles={"i": 2})
    kept: dict[int, np.ndarray] = {}

    def double(ranges: Ranges) -> None:
        kept[ranges["i"][0]] = 2 * made.arrays["A"][part(ranges, "i")]

    def store(ranges: Ranges) -> None:
        made.arrays["C"][part(ranges, "i")] = kept.pop(ranges["i"][0])

    first = made.make_loop("double", {"i": 20}, [at(a, "i")], t, Instructions(mul=1), double)
    second = made.make_loop("store", {"i": 20}, [t], at(c, "i"), Instructions(), store)
    made.add(TileLoop("i", 20, 2, (first, second)))
    assert made.tensors["T"].shape == (copies, 2)
    walks = {block.index: block.steps() for block in made.blocks()}
    used: dict[int, set[int]] = {number: set() for number in walks}
    while walks:  # a step of each block in turn, as cores run
        for number in list(walks):
            step = next(walks[number], None)
            if step is None:
                del walks[number]
            else:
                used[number] |= {access.base for nest in step.nests for access in nest.accesses if access.tensor == "T"}
    np.testing.assert_array_equal(made.output, 2 * made.arrays["A"])
    assert used == {number: {made.tensors["T"].base + number * 2 * 4} for number in used}
