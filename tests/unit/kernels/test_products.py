"""Products of matrices one by one: what they touch, where their epilogues run, how they are stored and shared out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hwsim.catalog import load_workload
from hwsim.errors import InputError, ShapeError
from hwsim.numerics.datapath import find_datapath
from hwsim.numerics.format import find_format
from hwsim.numerics.quantize import Scaling
from hwsim.ops.matmul import (
    BatchSchedule,
    MatmulSchedule,
    MatvecSchedule,
    ProductSchedule,
    matmul,
    matmul_backward,
    matmul_batched,
    matmul_lowrank,
    matvec,
)
from hwsim.ops.strassen import StrassenSchedule, matmul_strassen, strassen_levels
from hwsim.program.graph import FusedOperator
from hwsim.program.kernel import Numbers, Setting
from hwsim.program.loop_kernel import LoopKernel, OperatorKernel, OperatorRun, build_kernel
from hwsim.program.operation import Operator, find_operation
from hwsim.spec.base import ParallelSchedule
from tests.unit.kernels.helpers import counts, touches
from tests.unit.kernels.operators import inputs, made, ran


def product(m: int, n: int, k: int, schedule: ProductSchedule | None = None, batch: tuple[int, ...] = ()) -> Operator:
    return matmul.apply([(*batch, m, k), (*batch, k, n)], schedule=schedule)


def finished(m: int, n: int, k: int, tail: Sequence[str], schedule: ProductSchedule | None = None) -> Operator:
    """A product and what follows it: a bias along the columns, a residual, or an operation without operands."""
    shapes: dict[str, list[tuple[int, ...]]] = {"bias": [(m, n), (n,)], "residual": [(m, n), (m, n)]}
    names = {"bias": "add", "residual": "add"}
    head = matmul.apply([(m, k), (k, n)], schedule=schedule)
    return FusedOperator(
        head, [find_operation(names.get(name, name)).apply(shapes.get(name, [(m, n)])) for name in tail]
    )


def strassen(m: int, n: int, k: int, levels: int) -> Operator:
    return matmul_strassen.apply([(m, k), (k, n)], schedule=StrassenSchedule(cutoff=1, levels=levels))


PARTS: list[Operator] = [
    finished(5, 6, 7, ("bias", "gelu", "residual")),
    finished(5, 6, 7, ("bias", "relu"), ProductSchedule(order="ikj", vector=True)),
    matvec.apply([(5, 6), (6,)]),
    matmul_lowrank.apply([(5, 7), (7, 2), (2, 6)]),
    matmul_backward.apply([(5, 6), (7, 6), (5, 7)]),
    strassen(5, 6, 7, levels=1),
]


@pytest.mark.parametrize("operator", PARTS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("cores", [1, 3])
def test_a_product_runs_on_tensors_of_other_names_with_halos_around_them(operator: Operator, cores: int) -> None:
    """As in a chain: a second one beside it, and tensors that another operator wanted larger."""
    kernel = LoopKernel("two", find_format("fp64"), Setting(lanes=4, cores=cores), ParallelSchedule(parallel="rows"))
    runs = []
    for prefix in ("first", "second"):
        names = {port.name: f"{prefix}.{port.name}" for port in (*operator.inputs, *operator.outputs)}
        for port in operator.inputs:
            kernel.add_input(names[port.name], *port.shape, halo=(2,) * len(port.shape))
        for port in operator.outputs:
            kernel.add_result(names[port.name], *port.shape, halo=(1,) * len(port.shape))
        runs.append(names)
    for names in runs:
        kernel.begin_phase()
        operator.emit(kernel, names)
    for block in kernel.blocks():
        list(block.steps())
    for names in runs:
        expected = operator.reference({port.name: kernel.arrays[names[port.name]] for port in operator.inputs})
        for port in operator.outputs:
            np.testing.assert_allclose(kernel.arrays[names[port.name]], expected[port.name], rtol=1e-10, atol=1e-12)
            halo = np.ones(kernel.stored[names[port.name]].shape, bool)
            halo[tuple(slice(1, -1) for _ in port.shape)] = False
            assert not kernel.stored[names[port.name]][halo].any(), "the halo stays zero"


def test_an_epilogue_that_needs_fractions_refuses_whole_numbers() -> None:
    with pytest.raises(InputError, match=r"cannot be computed in int8: precision must be one of fp64, fp32"):
        made(finished(3, 4, 5, ["exp"]), "int8")


@pytest.mark.parametrize(
    "operator",
    [
        finished(3, 4, 5, ("bias", "relu")),
        strassen(6, 6, 6, levels=1),
        matmul_lowrank.apply([(3, 5), (5, 2), (2, 4)]),
    ],
    ids=lambda operator: operator.name,
)
def test_what_needs_no_fractions_is_exact_in_whole_numbers(operator: Operator) -> None:
    for _, values, reference in ran(operator, "int8", lanes=4, cores=2).answers():
        np.testing.assert_array_equal(values, reference)


def test_an_epilogue_in_registers_loads_only_its_own_operands() -> None:
    """ijk finishes each sum in a register: C is stored once and never loaded."""
    kernel = made(finished(4, 5, 6, ("bias", "residual")), math=False)
    seen, result = counts(kernel), kernel.operator.outputs[0].name
    assert (seen[f"loads.{result}"], seen[f"stores.{result}"]) == (0, 20)
    bias, residual = (port.name for port in kernel.operator.inputs[2:])
    assert (seen[f"loads.{bias}"], seen[f"loads.{residual}"]) == (20, 20)


def test_an_epilogue_that_cannot_be_in_registers_runs_over_each_row_when_it_is_done() -> None:
    """ikj adds to a row of C six times (loading it five times), and then goes over it once more."""
    kernel = made(finished(4, 5, 6, ["bias"], ProductSchedule(order="ikj")), math=False)
    seen, operator = counts(kernel), kernel.operator
    assert seen[f"stores.{operator.outputs[0].name}"] == 4 * 5 * 6 + 20
    own = {port.name for port in (*operator.inputs, *operator.outputs)}
    assert set(kernel.tensors) == own, "no memory but that of the result"
    names = [step.name for block in kernel.blocks() for step in block.steps()]
    assert names == ["matmul", "epilogue"] * 4


def test_tiles_of_c_are_finished_one_after_the_other() -> None:
    kernel = made(finished(4, 4, 4, ["relu"], ProductSchedule(order="ijk", tile=2)), math=False)
    names = [step.name for block in kernel.blocks() for step in block.steps()]
    assert names == ["matmul", "epilogue"] * 4


def test_cores_share_the_rows_of_a_product_or_the_matrices_of_a_large_batch() -> None:
    def written(operator: Operator) -> list[set[int]]:
        """Rows of all matrices of the batch, one after the other, that each block stores to."""
        kernel = made(operator, "fp32", cores=2, math=False)
        base = kernel.tensors["C"].base
        return [
            {(a - base) // 20 for s in block.steps() for n in s.nests for a, _, write in n.addresses() if write}
            for block in kernel.blocks()
        ]

    assert written(product(4, 5, 6)) == [{0, 1}, {2, 3}]
    assert written(product(2, 5, 6, batch=(4,))) == [{0, 1, 2, 3}, {4, 5, 6, 7}]


@pytest.mark.parametrize("tile", [None, 2])
def test_the_products_of_a_batch_run_one_after_the_other(tile: int | None) -> None:
    kernel = made(product(4, 4, 4, ProductSchedule(tile=tile), batch=(3,)), math=False)
    first = kernel.tensors["A"]
    last = first.address([2, 3, 3])
    seen = [(a - first.base) // (16 * 8) for a, _, _ in touches(kernel) if first.base <= a <= last]
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("n", "cutoff", "most", "levels"), [(64, 64, None, 0), (65, 64, None, 1), (256, 64, None, 2), (256, 64, 1, 1)]
)
def test_strassen_halves_down_to_the_cutoff(n: int, cutoff: int, most: int | None, levels: int) -> None:
    assert strassen_levels(n, n, n, cutoff, most) == levels


def test_strassen_pads_only_what_cannot_be_halved() -> None:
    even, odd = (made(strassen(n, n, n, levels=1), math=False) for n in (8, 7))
    assert not any("padded" in name for name in even.tensors)
    assert [name for name in odd.tensors if "padded" in name] == ["A padded", "B padded", "C padded"]
    assert odd.operator.outputs[0].shape == (7, 7)


def test_strassen_has_scratch_space_for_two_sums_and_a_product_on_each_level() -> None:
    assert [*made(strassen(8, 8, 8, levels=2), math=False).tensors][3:] == ["S1", "T1", "M1", "S2", "T2", "M2"]


def test_low_rank_in_the_right_order_saves_work() -> None:
    """m r (k + n) multiply-adds instead of m k n."""
    assert made(matmul_lowrank.apply([(32, 32), (32, 4), (4, 32)])).useful_flops * 4 == 2 * 32**3
    assert inputs(made(matmul_lowrank.apply([(3, 5), (5, 2), (2, 4)]))).keys() == {"A", "U", "V"}


def test_matrices_that_do_not_fit_are_refused_with_their_shapes() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) cannot be multiplied by \(4, 5\): the columns of the first, 3"):
        matmul.apply([(2, 3), (4, 5)])
    with pytest.raises(ShapeError, match="are not matrices, nor batches of as many"):
        matmul.apply([(2, 3, 4), (5, 4, 6)])


def test_a_transposed_matrix_has_the_same_values_in_another_order_of_memory() -> None:
    """One way to store it is as good as the other for the answer; the addresses tell them apart."""
    shapes = [(2, 3, 4), (2, 4, 5)]
    plain = ran(matmul_batched.apply(shapes))
    swapped = ran(matmul_batched.apply(shapes, schedule=BatchSchedule(b_layout="jk")))
    np.testing.assert_array_equal(plain.arrays["B"], swapped.arrays["B"])
    np.testing.assert_allclose(plain.output, swapped.output, rtol=1e-14)
    assert (plain.tensors["B"].shape, swapped.tensors["B"].shape) == ((2, 4, 5), (2, 5, 4))
    base = swapped.tensors["B"].base
    assert [a - base for a, _, _ in touches(swapped) if 0 <= a - base < 320][:4] == [0, 8, 16, 24], "along k first"
    flat = ran(matvec.apply([(3, 4), (4,)], schedule=MatvecSchedule(a_layout="ki")))
    assert (flat.tensors["A"].shape, flat.arrays["A"].shape) == ((4, 3), (3, 4))


def test_packed_tiles_lie_in_one_piece_each() -> None:
    kernel = made(product(5, 6, 4, MatmulSchedule(tile=3, packed=True)), math=False)
    a = kernel.tensors["A"]
    assert a.shape == (2, 2, 3, 3), "two by two blocks, the last ones not full"
    seen = [(at - a.base) // 8 for at, _, _ in touches(kernel) if a.base <= at < a.base + 8 * 36]
    assert seen[:3] == [0, 1, 2]
    assert max(seen[: 3 * 3 * 3]) == 8, "the first block before any other"


@pytest.mark.parametrize("precision", ["w8a16", "w4a16"])
@pytest.mark.parametrize(
    "operator",
    [
        product(4, 5, 300, batch=(2,)),
        matmul.apply([(2, 4, 300), (300, 5)]),
        matmul.apply([(4, 300), (5, 300)], {"transpose_b": True}, ProductSchedule(tile=64)),
        matvec.apply([(5, 300), (300,)]),
        matmul_lowrank.apply([(4, 300), (300, 20), (20, 6)]),
        finished(4, 5, 300, ("bias", "gelu")),
    ],
    ids=lambda operator: operator.name,
)
def test_weights_of_any_product_may_be_narrower_than_the_rest(operator: Operator, precision: str) -> None:
    kernel = ran(operator, precision)
    bits = {"w8a16": 8, "w4a16": 4 + 32 / 128}[precision]
    assert operator.weights
    for port in operator.inputs:
        assert float(kernel.tensors[port.name].element_bits) == (bits if port.name in operator.weights else 16)
    for _, values, reference in kernel.answers():
        error = np.abs(values.astype(np.float64) - reference).max() / np.abs(reference).max()
        assert 0 < error <= kernel.tolerance


def test_what_multiplies_nothing_has_no_weights() -> None:
    with pytest.raises(InputError, match="w4a16 is about weights of a matrix product"):
        made(find_operation("relu").apply([(3, 4)]), "w4a16")


def with_scales(operator: Operator, precision: str, scale: Scaling) -> OperatorKernel:
    """The kernel of an operator after it has run, with numbers over scales."""
    run = OperatorRun("scaled", precision, ParallelSchedule(), {})
    kernel = OperatorKernel(operator, run, Setting(numbers=Numbers(scale=scale, scale_block=4)))
    for block in kernel.blocks():
        list(block.steps())
    return kernel


@pytest.mark.parametrize("scale", ["tensor", "row", "block"])
@pytest.mark.parametrize("precision", ["int8", "uint4", "fp8_e4m3"])
@pytest.mark.parametrize("schedule", [None, ProductSchedule(tile=3)], ids=["whole", "tiles"])
def test_a_batch_of_scaled_products_is_what_the_datapath_makes_of_each(
    precision: str, scale: Scaling, schedule: ProductSchedule | None
) -> None:
    """Numbers are multiplied without their scales; these are applied to finished sums, or to those of blocks."""
    kernel = with_scales(product(3, 4, 10, schedule, batch=(2,)), precision, scale)
    path = find_datapath(precision, scale=scale, block=4, stored=True)
    a, b = kernel.quantized["A"], kernel.quantized["B"]
    assert (a.axis, b.axis) == (-1, -2)
    expected = path.dot(a, b)
    np.testing.assert_allclose(kernel.output, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    error = np.abs(kernel.output - kernel.reference()).max() / np.abs(kernel.reference()).max()
    assert error <= kernel.tolerance < 1e-4


def test_a_tensor_that_is_summed_along_two_axes_has_its_scales_multiplied_in() -> None:
    """dC is summed along its columns for dA and along its rows for dB: no scales of rows suit both."""
    operator = matmul_backward.apply([(5, 6), (7, 6), (5, 7)])
    assert set(operator.factors) == {"A", "B"}
    kernel = with_scales(operator, "int8", "row")
    assert set(kernel.quantized) == {"A", "B"}
    for _, values, reference in kernel.answers():
        assert np.abs(values - reference).max() <= kernel.tolerance * np.abs(reference).max()


def test_sums_that_do_not_suit_scaled_integers_are_refused_before_the_run() -> None:
    run = OperatorRun("scaled", "int8", ParallelSchedule(), {})
    with pytest.raises(InputError, match="fp32 does not sum products of int8"):
        OperatorKernel(product(3, 4, 5), run, Setting(numbers=Numbers(accumulate="fp32", scale="tensor")))


def test_the_given_weights_of_a_chain_are_narrow_and_all_else_is_not() -> None:
    """The products of an MLP, fused with what follows them: w1 and w2 are weights, the input and the biases are not."""
    workload = load_workload("mlp").spec.model_copy(update={"precision": "w4a16"})
    kernel = build_kernel(workload)
    assert isinstance(kernel, LoopKernel)
    for block in kernel.blocks():
        list(block.steps())
    narrow = {name for name, view in kernel.tensors.items() if float(view.element_bits) == 4 + 32 / 128}
    products = [step for step in workload.operations if step.op == "matmul"]
    assert narrow == {step.inputs[1] for step in products}
    assert all(view.element_bits == 16 for name, view in kernel.tensors.items() if name not in narrow)
    for _, values, reference in kernel.answers():
        error = np.abs(values.astype(np.float64) - reference).max() / np.abs(reference).max()
        assert 0 < error <= kernel.tolerance
