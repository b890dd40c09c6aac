"""What cores share, and what one of them keeps in a register: never a sum, and something that has several parts."""

from __future__ import annotations

import numpy as np
import pytest

from hwsim.numerics.format import find_format
from hwsim.ops.image import ImageSchedule, avg_pool
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.loops import LoopOperation, LoopPlan, Operand
from hwsim.program.lower import lower
from hwsim.spec.base import ParallelSchedule
from tests.unit.kernels.helpers import counts, kernel
from tests.unit.kernels.operators import applied, made, ran


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_pool_with_one_output_is_done_by_one_core(layout: str) -> None:
    """Its window is a sum (or a maximum), which no two cores share."""
    shape = (1, 1, 6, 6) if layout == "nchw" else (1, 6, 6, 1)
    operator = avg_pool.apply([shape], {"window": 6}, ImageSchedule(layout=layout))  # type: ignore[arg-type]
    found = counts(made(operator, cores=2, math=False))
    assert (found["loads.x"], found["stores.y"], found["loads.y"]) == (36, 1, 0)
    np.testing.assert_allclose(ran(operator, cores=2).output, operator.reference(ran(operator).arrays)["y"])


def test_a_pool_behind_a_convolution_shares_what_there_is_several_of() -> None:
    sizes = {"ci": 2, "co": 1, "height": 8, "kernel": 1}
    shared = kernel("conv2d", sizes, pool=2, fused=False, cores=4, parallel="rows", math=False)
    assert [len(stage.blocks) for stage in shared.stages()] == [4, 4]


def test_cores_share_the_first_kept_axis_that_has_several_elements() -> None:
    shared = made(applied("reduce_sum", (1, 6, 5), axis=2), cores=3, math=False)
    assert len(shared.blocks()) == 3
    assert counts(shared) == counts(made(applied("reduce_sum", (1, 6, 5), axis=2), math=False))


def test_cores_share_a_pointwise_pass_over_one_image_with_a_halo() -> None:
    """A tensor with a halo does not lie in one piece, so that a loop runs along each of its axes."""
    images = LoopKernel("halo", find_format("fp32"), Setting(cores=3), ParallelSchedule(parallel="rows"))
    images.add_input("X", 1, 6, 4, halo=(0, 1, 1))
    images.add_result("Y", 1, 6, 4)
    applied("relu", (1, 6, 4)).emit(images, {"A": "X", "C": "Y"})
    assert len(images.blocks()) == 3


def test_cores_share_the_first_index_of_a_formula_that_has_several_positions() -> None:
    formula = "O[n,co,h] += I[n,ci,h+k] * W[co,ci,k]"
    sizes = {"n": 1, "co": 6, "h": 4, "ci": 2, "k": 3}
    shared = kernel("formula", sizes, formula=formula, parallel="rows", cores=3, math=False)
    assert len(shared.blocks()) == 3


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7)])
def test_a_sum_of_everything_begins_in_a_register_and_is_stored_once(shape: tuple[int, ...], lanes: int) -> None:
    places = ",".join("ijk"[: len(shape)])
    sizes = dict(zip("ijk", shape, strict=False))
    found = counts(kernel("formula", sizes, formula=f"Y[0] += X[{places}]", vector=True, lanes=lanes, math=False))
    assert (found["loads.Y"], found["stores.Y"]) == (0, 1)


@pytest.mark.parametrize("order", ["ijk", "jik", "kji"])
def test_a_sum_that_is_cut_goes_on_from_what_the_pieces_before_have_stored(order: str) -> None:
    """5 iterations in steps of 2 are two pieces: what the first has stored, the second has to load."""
    extents = {"i": 5, "j": 5, "k": 3}
    source = Operand("X", 0, 4, {"i": 60, "j": 12, "k": 4})
    operation = LoopOperation((source,), Operand("Y", 1000, 4, {}))
    plan = LoopPlan(tuple(order), unroll={"i": 2, "j": 2})
    pieces = list(lower(operation, plan, {index: (0, extent) for index, extent in extents.items()}))
    loads = [sum(not access.write for access in piece.nest.accesses if access.tensor == "Y") for piece in pieces]
    stores = [sum(access.write for access in piece.nest.accesses if access.tensor == "Y") for piece in pieces]
    assert len(pieces) > 1
    assert loads == [0] + [1] * (len(pieces) - 1)
    assert stores == [1] * len(pieces)
