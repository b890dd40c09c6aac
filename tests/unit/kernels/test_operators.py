"""Operators one by one: what they touch, what they refuse, and how they run as parts of something larger."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from hwsim.errors import InputError, ShapeError
from hwsim.hardware.pattern import is_stream
from hwsim.kernels.kernel import Setting
from hwsim.kernels.loop.program import flops_of
from hwsim.kernels.loop_kernel import LoopKernel
from hwsim.kernels.matmul.operator import MatmulOperator
from hwsim.kernels.matmul.products import LowRankOperator, MatmulBackwardOperator, MatvecOperator
from hwsim.kernels.matmul.strassen import StrassenOperator, strassen_levels
from hwsim.kernels.operator import Operator
from hwsim.kernels.tensor.element import Element, Extra
from hwsim.kernels.tensor.embedding import EmbeddingOperator
from hwsim.kernels.tensor.losses import CrossEntropyOperator, MseOperator
from hwsim.kernels.tensor.norm import LayerNormOperator, RMSNormOperator
from hwsim.kernels.tensor.pointwise import POINTWISE
from hwsim.kernels.tensor.pointwise_operator import PointwiseOperator
from hwsim.kernels.tensor.reduction import ReduceOperator
from hwsim.kernels.tensor.transpose import TransposeOperator
from hwsim.numerics.format import find_format
from hwsim.spec.ops.common import ParallelSchedule
from hwsim.spec.ops.matmul import ProductSchedule
from hwsim.spec.ops.pointwise import PointwiseName
from tests.unit.kernels.helpers import counts, touches
from tests.unit.kernels.operators import answers, inputs, made, ran

BIAS = Element("add", (Extra("bias", (1,)),))
RESIDUAL = Element("add", (Extra("residual"),))

PARTS: list[Operator] = [
    MatmulOperator(5, 6, 7, epilogue=(BIAS, Element("gelu"), RESIDUAL)),
    MatmulOperator(5, 6, 7, schedule=ProductSchedule(order="ikj", vector=True), epilogue=(BIAS, Element("relu"))),
    PointwiseOperator((5, 6), (BIAS, Element("silu"), RESIDUAL), fused=False),
    PointwiseOperator((5, 6), (Element("tanh"), RESIDUAL)),
    LayerNormOperator((2, 5, 6)),
    RMSNormOperator((5, 6)),
    ReduceOperator((5, 6), (0,), "mean"),
    ReduceOperator((5, 6), (1,), "max"),
    TransposeOperator((5, 6), tile=4),
    EmbeddingOperator(5, 7, 6),
    CrossEntropyOperator(5, 6),
    MseOperator((5, 6)),
    MatvecOperator(5, 6),
    LowRankOperator(5, 6, 7, 2),
    MatmulBackwardOperator(5, 6, 7),
    StrassenOperator(5, 6, 7, levels=1),
]


@pytest.mark.parametrize("operator", PARTS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("cores", [1, 3])
def test_an_operator_runs_on_tensors_of_other_names_with_halos_around_them(operator: Operator, cores: int) -> None:
    """As in a chain: a second one beside it, and tensors that another operator wanted larger."""
    kernel = LoopKernel("two", find_format("fp64"), Setting(lanes=4, cores=cores), ParallelSchedule(parallel="rows"))
    runs = []
    for prefix in ("first", "second"):
        names = {port.name: f"{prefix}.{port.name}" for port in (*operator.inputs, *operator.outputs)}
        for port in operator.inputs:
            halo = () if port.below else (2,) * len(port.shape)
            kernel.add_input(names[port.name], *port.shape, halo=halo, below=port.below)
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


def test_the_names_of_pointwise_operations_are_those_of_workload_files() -> None:
    assert set(get_args(PointwiseName)) == set(POINTWISE)


@pytest.mark.parametrize("name", [name for name, rule in POINTWISE.items() if rule.check is not None])
def test_the_second_formula_of_an_operation_is_the_first(name: str) -> None:
    x = np.linspace(-6, 6, 101)
    rule = POINTWISE[name]
    assert rule.check is not None
    np.testing.assert_allclose(rule.function(x), rule.check(x), rtol=1e-12, atol=1e-14)


def test_known_values_of_activations() -> None:
    """GELU(1) = 0.8412 by tanh (0.8413 exactly), SiLU(1) = 0.7311: Hendrycks and Gimpel, 2016."""
    x = np.array([1.0])
    assert POINTWISE["gelu"].function(x)[0] == pytest.approx(0.8412, abs=5e-5)
    assert POINTWISE["silu"].function(x)[0] == pytest.approx(0.7311, abs=5e-5)
    assert POINTWISE["relu"].function(-x)[0] == 0


def test_the_page_on_operators_has_the_counts_of_the_table() -> None:
    """docs/explanation/operators.md lists operations for an element."""
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "operators.md").read_text(encoding="utf-8")
    table = page.split("| operation | operations for an element |")[1].split("\n\n")[0]
    listed = {}
    for row in table.splitlines()[2:]:
        names, counts_ = (cell.strip() for cell in row.strip("|").split("|"))
        words = [word for word in re.findall(r"[a-z_]+", re.sub(r"\(.*?\)|, ½.*", "", names)) if word in POINTWISE]
        numbers = [int(number) for number in counts_.split(",")]
        listed |= dict(zip(words, numbers if len(numbers) > 1 else numbers * len(words), strict=True))
    assert listed == {name: flops_of(rule.body) for name, rule in POINTWISE.items() if name != "copy"}


@pytest.mark.parametrize("fault", ["relus", "add", "scale", "relu"])
def test_a_wrong_stage_says_what_is_wrong(fault: str) -> None:
    given = {
        "relus": (lambda: Element("relus"), "did you mean 'relu'"),
        "add": (lambda: Element("add"), "takes 1 operands beside the value, found 0"),
        "scale": (lambda: Element("scale"), "needs a number"),
        "relu": (lambda: Element("relu", value=1.0), "takes no value"),
    }
    make, words = given[fault]
    with pytest.raises(InputError, match=words):
        make()


def test_an_extra_must_have_axes_of_the_value_and_one_shape() -> None:
    with pytest.raises(InputError, match="ascending"):
        PointwiseOperator((3, 4), [Element("add", (Extra("y", (1, 0)),))])
    with pytest.raises(InputError, match="in one stage"):
        PointwiseOperator((3, 4), [Element("add", (Extra("y", (0,)),)), Element("add", (Extra("y", (1,)),))])


@pytest.mark.parametrize(
    "operator",
    [
        PointwiseOperator((3, 4), [Element("gelu")]),
        PointwiseOperator((3, 4), [Element("scale", value=0.5)]),
        MatmulOperator(3, 4, 5, epilogue=[Element("exp")]),
        LayerNormOperator((3, 4)),
        RMSNormOperator((3, 4)),
        CrossEntropyOperator(3, 4),
        MseOperator((3, 4)),
        ReduceOperator((3, 4), (0,), "mean"),
    ],
    ids=lambda operator: operator.name,
)
def test_what_needs_fractions_refuses_whole_numbers_and_names_what_works(operator: Operator) -> None:
    with pytest.raises(InputError, match=r"cannot be computed in int8: precision must be one of fp64, fp32"):
        made(operator, "int8")


@pytest.mark.parametrize(
    "operator",
    [
        PointwiseOperator((3, 4), [Element("relu")]),
        MatmulOperator(3, 4, 5, epilogue=[BIAS, Element("relu")]),
        ReduceOperator((3, 4), (0,)),
        ReduceOperator((3, 4), (1,), "max"),
        TransposeOperator((3, 4)),
        EmbeddingOperator(3, 4, 5),
        StrassenOperator(6, 6, 6, levels=1),
        LowRankOperator(3, 4, 5, 2),
    ],
    ids=lambda operator: operator.name,
)
def test_what_needs_no_fractions_is_exact_in_whole_numbers(operator: Operator) -> None:
    for _, values, reference in ran(operator, "int8", lanes=4, cores=2).answers():
        np.testing.assert_array_equal(values, reference)


def test_an_epilogue_in_registers_loads_only_its_own_operands() -> None:
    """ijk finishes each sum in a register: C is stored once and never loaded."""
    seen = counts(made(MatmulOperator(4, 5, 6, epilogue=(BIAS, RESIDUAL)), math=False))
    assert (seen["loads.C"], seen["stores.C"]) == (0, 20)
    assert (seen["loads.bias"], seen["loads.residual"]) == (20, 20)


def test_an_epilogue_that_cannot_be_in_registers_runs_over_each_row_when_it_is_done() -> None:
    """ikj adds to a row of C six times (loading it five times), and then goes over it once more."""
    schedule = ProductSchedule(order="ikj")
    kernel = made(MatmulOperator(4, 5, 6, schedule=schedule, epilogue=(BIAS,)), math=False)
    seen = counts(kernel)
    assert seen["stores.C"] == 4 * 5 * 6 + 20
    names = [step.name for block in kernel.blocks() for step in block.steps()]
    assert names == ["matmul", "epilogue"] * 4


def test_tiles_of_c_are_finished_one_after_the_other() -> None:
    schedule = ProductSchedule(order="ijk", tile=2)
    kernel = made(MatmulOperator(4, 4, 4, schedule=schedule, epilogue=(Element("relu"),)), math=False)
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

    assert written(MatmulOperator(4, 5, 6)) == [{0, 1}, {2, 3}]
    assert written(MatmulOperator(2, 5, 6, batch=(4,))) == [{0, 1, 2, 3}, {4, 5, 6, 7}]


@pytest.mark.parametrize("tile", [None, 2])
def test_the_products_of_a_batch_run_one_after_the_other(tile: int | None) -> None:
    kernel = made(MatmulOperator(4, 4, 4, batch=(3,), schedule=ProductSchedule(tile=tile)), math=False)
    first = kernel.tensors["A"]
    last = first.address([2, 3, 3])
    seen = [(a - first.base) // (16 * 8) for a, _, _ in touches(kernel) if first.base <= a <= last]
    assert seen == sorted(seen)


def test_a_fused_chain_moves_five_vectors_where_passes_move_nine() -> None:
    """E = D + (A + B) * C, rows A4 and A5 of the course, as stages."""
    stages = [Element("add", (Extra("B"),)), Element("mul", (Extra("C"),)), Element("add", (Extra("D"),))]
    for fused, loads, stores in ((True, 4, 1), (False, 6, 3)):
        seen = counts(made(PointwiseOperator((10, 10), stages, fused=fused), math=False))
        assert (seen["loads"], seen["stores"]) == (loads * 100, stores * 100)


def test_an_update_in_place_takes_no_further_memory_and_is_checked_against_the_values_before() -> None:
    stage = Element("add_scaled", (Extra("dw"),), -0.5)
    in_place = ran(PointwiseOperator((4, 5), [stage], in_place=True))
    apart = ran(PointwiseOperator((4, 5), [stage]))
    assert in_place.space.peak_bytes == 2 * 20 * 8
    assert apart.space.peak_bytes == 3 * 20 * 8
    np.testing.assert_array_equal(in_place.output, apart.output)
    np.testing.assert_allclose(in_place.output, in_place.reference(), rtol=1e-15)
    assert not np.array_equal(in_place.output, apart.arrays["X"])


@pytest.mark.parametrize(("lanes", "cores"), [(1, 1), (4, 1), (4, 3), (16, 2)])
def test_an_embedding_touches_the_rows_that_its_numbers_name(lanes: int, cores: int) -> None:
    """Row by row: the number, then the row that it names and the row of the result, element by element."""
    kernel = made(EmbeddingOperator(7, 9, 6), "fp32", lanes=lanes, cores=cores)
    ids, table, result = (kernel.tensors[name] for name in ("ids", "W", "Y"))
    expected = []
    for token, number in enumerate(kernel.arrays["ids"]):
        expected.append((ids.address([token]), 4, False))
        for column in range(6):
            expected.append((table.address([int(number), column]), 4, False))
            expected.append((result.address([token, column]), 4, True))
    seen = [(address + byte, 4, write) for address, size, write in touches(kernel) for byte in range(0, size, 4)]
    assert sorted(seen) == sorted(expected)
    if lanes == 1:
        assert seen == expected


def test_numbers_of_rows_are_there_without_math_and_must_lie_in_the_table() -> None:
    with_math, without = made(EmbeddingOperator(7, 9, 6)), made(EmbeddingOperator(7, 9, 6), math=False)
    assert touches(with_math) == touches(without)
    with pytest.raises(ShapeError, match="from 0 to 8"):
        made(EmbeddingOperator(2, 9, 6), given={"ids": np.array([3, 9])})


def test_a_prefetcher_follows_a_row_that_was_looked_up_but_not_the_rows() -> None:
    def streams(width: int) -> bool:
        (step,) = (step for block in made(EmbeddingOperator(8, 9, width), "fp32").blocks() for step in block.steps())
        return all(is_stream(nest, a, 64) for nest in step.nests for a in nest.accesses if a.tensor == "W")

    assert streams(64)
    assert not streams(16)


def test_the_loss_looks_its_logit_up() -> None:
    kernel = made(CrossEntropyOperator(5, 6), math=False)
    logits = kernel.tensors["X"]
    loss = [step for block in kernel.blocks() for step in block.steps() if step.name == "loss"]
    seen = [address for step in loss for nest in step.nests for address, _, _ in nest.addresses()]
    wanted = [logits.address([row, int(label)]) for row, label in enumerate(kernel.arrays["labels"])]
    assert set(wanted) <= set(seen)


def test_a_stable_softmax_survives_large_logits() -> None:
    x = np.array([[1000.0, 999.0, -1000.0]])
    found = answers(ran(CrossEntropyOperator(1, 3), "fp32", given={"X": x, "labels": np.array([0])}))
    share = 1 / (1 + np.exp(-1))
    assert found["loss"][0] == pytest.approx(-np.log(share), rel=1e-6)
    np.testing.assert_allclose(found["dX"], [[share - 1, 1 - share, 0]], rtol=1e-6)


def test_a_row_is_normalised_before_the_next_begins() -> None:
    names = [step.name for block in made(LayerNormOperator((3, 4))).blocks() for step in block.steps()]
    assert names == ["mean", "variance", "normalise"] * 3
    passes = [step.name for block in made(LayerNormOperator((3, 4), rows=3)).blocks() for step in block.steps()]
    assert passes == ["mean", "variance", "normalise"]


def test_reducing_the_rows_adds_to_results_in_memory_or_walks_down_columns() -> None:
    stored = counts(made(ReduceOperator((8, 5), (0,), order="stored", vector=False), math=False))
    result = counts(made(ReduceOperator((8, 5), (0,), order="result", vector=False), math=False))
    assert stored["loads.X"] == result["loads.X"] == 40
    assert (stored["stores.Y"], result["stores.Y"]) == (40, 5)


def test_wrong_axes_are_refused() -> None:
    with pytest.raises(ShapeError, match="are not all axes"):
        ReduceOperator((3, 4), (2,))
    with pytest.raises(ShapeError, match="is not an order"):
        TransposeOperator((3, 4), (0, 0))


@pytest.mark.parametrize(
    ("n", "cutoff", "most", "levels"), [(64, 64, None, 0), (65, 64, None, 1), (256, 64, None, 2), (256, 64, 1, 1)]
)
def test_strassen_halves_down_to_the_cutoff(n: int, cutoff: int, most: int | None, levels: int) -> None:
    assert strassen_levels(n, n, n, cutoff, most) == levels


def test_strassen_pads_only_what_cannot_be_halved() -> None:
    even, odd = (made(StrassenOperator(n, n, n, levels=1), math=False) for n in (8, 7))
    assert not any("padded" in name for name in even.tensors)
    assert [name for name in odd.tensors if "padded" in name] == ["A padded", "B padded", "C padded"]
    assert odd.operator.outputs[0].shape == (7, 7)


def test_low_rank_in_the_right_order_saves_work() -> None:
    """m r (k + n) multiply-adds instead of m k n."""
    assert made(LowRankOperator(32, 32, 32, 4)).useful_flops * 4 == 2 * 32**3
    assert inputs(made(LowRankOperator(3, 4, 5, 2))).keys() == {"A", "U", "V"}
