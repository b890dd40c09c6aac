"""Operators one by one: what they touch, what they refuse, and how they run as parts of something larger."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import find_format
from hwsim.ops.pointwise import POINTWISE, StageSpec
from hwsim.program.kernel import Setting
from hwsim.program.loop_kernel import LoopKernel
from hwsim.program.operation import Operator
from hwsim.program.tiling import flops_of
from hwsim.spec.base import ParallelSchedule
from hwsim.targets.cpu.hazards import followed
from tests.unit.kernels.helpers import counts, touches
from tests.unit.kernels.operators import answers, applied, made, ran, staged

BIAS = {"op": "add", "inputs": ("bias",), "along": "columns"}
RESIDUAL = {"op": "add", "inputs": ("residual",)}

PARTS: list[Operator] = [
    staged((5, 6), BIAS, "silu", RESIDUAL, fused=False),
    staged((5, 6), "tanh", RESIDUAL),
    applied("layernorm", (2, 5, 6), (6,), (6,)),
    applied("rmsnorm", (5, 6), (6,)),
    applied("reduce_mean", (5, 6), axis=0),
    applied("reduce_max", (5, 6), axis=1),
    applied("transpose", (5, 6), schedule={"tile": 4}),
    applied("embedding", (5,), (7, 6)),
    applied("cross_entropy", (5,), (5, 6)),
    applied("mse", (5, 6), (5, 6)),
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


@pytest.mark.parametrize("name", POINTWISE)
def test_the_second_formula_of_an_operation_is_the_first(name: str) -> None:
    """Element by element in float64: what the loop computes, and what the reference says."""
    rule, x = POINTWISE[name], np.linspace(-6, 6, 102)
    operator = applied(name, *[(102,)] * (1 + rule.operands), **({"value": 0.75} if rule.takes_number else {}))
    ports = [port.name for port in operator.inputs]
    given = dict(zip(ports, (np.abs(x) + 0.1 if rule.positive else x, x + 0.03, x[::-1]), strict=False))
    kernel = ran(operator, given=given)
    np.testing.assert_allclose(kernel.output, kernel.reference(), rtol=1e-12, atol=1e-14)


def test_known_values_of_activations() -> None:
    """GELU(1) = 0.8412 by tanh (0.8413 exactly), SiLU(1) = 0.7311: Hendrycks and Gimpel, 2016."""

    def at(name: str, x: float) -> float:
        return float(ran(applied(name, (1,)), given={"A": np.array([x])}).output[0])

    assert at("gelu", 1) == pytest.approx(0.8412, abs=5e-5)
    assert at("silu", 1) == pytest.approx(0.7311, abs=5e-5)
    assert at("relu", -1) == 0


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

    def counted(name: str) -> int:
        (group,) = applied(name, *[(4,)] * (1 + POINTWISE[name].operands)).groups
        return flops_of(group.body_cost)

    assert listed == {name: counted(name) for name in POINTWISE if name != "copy"}


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"op": "relus"}, "did you mean 'relu'"),
        ({"op": "add"}, "takes 1 operands beside the value, found 0"),
        ({"op": "scale"}, "needs a number"),
        ({"op": "relu", "value": 1.0}, "takes no value"),
    ],
)
def test_a_wrong_stage_says_what_is_wrong(stage: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        StageSpec.model_validate(stage)


def test_an_extra_must_have_one_shape() -> None:
    stages = [{"op": "add", "inputs": ("y",), "along": along} for along in ("rows", "columns")]
    with pytest.raises(InputError, match="in one stage"):
        staged((3, 4), *stages)


@pytest.mark.parametrize(
    "operator",
    [
        staged((3, 4), "gelu"),
        staged((3, 4), {"op": "scale", "value": 0.5}),
        applied("layernorm", (3, 4), (4,), (4,)),
        applied("rmsnorm", (3, 4), (4,)),
        applied("cross_entropy", (3,), (3, 4)),
        applied("mse", (3, 4), (3, 4)),
        applied("reduce_mean", (3, 4), axis=0),
    ],
    ids=lambda operator: operator.name,
)
def test_what_needs_fractions_refuses_whole_numbers_and_names_what_works(operator: Operator) -> None:
    with pytest.raises(InputError, match=r"cannot be computed in int8: precision must be one of fp64, fp32"):
        made(operator, "int8")


@pytest.mark.parametrize(
    "operator",
    [
        staged((3, 4), "relu"),
        applied("reduce_sum", (3, 4), axis=0),
        applied("reduce_max", (3, 4), axis=1),
        applied("transpose", (3, 4)),
        applied("embedding", (3,), (4, 5)),
    ],
    ids=lambda operator: operator.name,
)
def test_what_needs_no_fractions_is_exact_in_whole_numbers(operator: Operator) -> None:
    for _, values, reference in ran(operator, "int8", lanes=4, cores=2).answers():
        np.testing.assert_array_equal(values, reference)


def test_a_fused_chain_moves_five_vectors_where_passes_move_nine() -> None:
    """E = D + (A + B) * C, rows A4 and A5 of the course, as stages."""
    stages = [{"op": op, "inputs": (name,)} for op, name in (("add", "b"), ("mul", "c"), ("add", "d"))]
    for fused, loads, stores in ((True, 4, 1), (False, 6, 3)):
        seen = counts(made(staged((10, 10), *stages, fused=fused), math=False))
        assert (seen["loads"], seen["stores"]) == (loads * 100, stores * 100)


def test_an_update_in_place_takes_no_further_memory_and_is_checked_against_the_values_before() -> None:
    stage = {"op": "add_scaled", "inputs": ("dw",), "value": -0.5}
    in_place = ran(staged((4, 5), stage, in_place=True))
    apart = ran(staged((4, 5), stage))
    assert in_place.space.peak_bytes == 2 * 20 * 8
    assert apart.space.peak_bytes == 3 * 20 * 8
    np.testing.assert_array_equal(in_place.output, apart.output)
    np.testing.assert_allclose(in_place.output, in_place.reference(), rtol=1e-15)
    assert not np.array_equal(in_place.output, apart.arrays["X"])


@pytest.mark.parametrize(("lanes", "cores"), [(1, 1), (4, 1), (4, 3), (16, 2)])
def test_an_embedding_touches_the_rows_that_its_numbers_name(lanes: int, cores: int) -> None:
    """Row by row: the number, then the row that it names and the row of the result, element by element."""
    kernel = made(applied("embedding", (7,), (9, 6), schedule={"vector": True}), "fp32", lanes=lanes, cores=cores)
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
    with_math, without = (made(applied("embedding", (7,), (9, 6)), math=math) for math in (True, False))
    assert touches(with_math) == touches(without)
    with pytest.raises(ShapeError, match="from 0 to 8"):
        made(applied("embedding", (2,), (9, 6)), given={"ids": np.array([3, 9])})


def test_a_prefetcher_follows_a_row_that_was_looked_up_but_not_the_rows() -> None:
    def streams(width: int) -> bool:
        kernel = made(applied("embedding", (8,), (9, width)), "fp32")
        (step,) = (step for block in kernel.blocks() for step in block.steps())
        return all(
            ahead
            for nest in step.nests
            for a, ahead in zip(nest.accesses, followed(nest, 64), strict=True)
            if a.tensor == "W"
        )

    assert streams(64)
    assert not streams(16)


def test_the_loss_looks_its_logit_up() -> None:
    kernel = made(applied("cross_entropy", (5,), (5, 6)), math=False)
    logits = kernel.tensors["X"]
    loss = [step for block in kernel.blocks() for step in block.steps() if step.name == "loss"]
    seen = [address for step in loss for nest in step.nests for address, _, _ in nest.addresses()]
    wanted = [logits.address([row, int(label)]) for row, label in enumerate(kernel.arrays["labels"])]
    assert set(wanted) <= set(seen)


def test_a_stable_softmax_survives_large_logits() -> None:
    x = np.array([[1000.0, 999.0, -1000.0]])
    found = answers(ran(applied("cross_entropy", (1,), (1, 3)), "fp32", given={"X": x, "labels": np.array([0])}))
    share = 1 / (1 + np.exp(-1))
    assert found["loss"][0] == pytest.approx(-np.log(share), rel=1e-6)
    np.testing.assert_allclose(found["dX"], [[share - 1, 1 - share, 0]], rtol=1e-6)


def test_a_row_is_normalised_before_the_next_begins() -> None:
    def names(rows: int) -> list[str]:
        kernel = made(applied("layernorm", (3, 4), (4,), (4,), schedule={"rows": rows}))
        return [step.name for block in kernel.blocks() for step in block.steps()]

    assert names(1) == ["mean", "variance", "normalise"] * 3
    assert names(3) == ["mean", "variance", "normalise"]


def test_reducing_the_rows_adds_to_results_in_memory_or_walks_down_columns() -> None:
    stored, result = (
        counts(made(applied("reduce_sum", (8, 5), axis=0, schedule={"order": order, "vector": False}), math=False))
        for order in ("stored", "result")
    )
    assert stored["loads.X"] == result["loads.X"] == 40
    assert (stored["stores.Y"], result["stores.Y"]) == (40, 5)


def test_wrong_axes_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"2 is no axis of shape \(3, 4\)"):
        applied("reduce_sum", (3, 4), axis=2)
    with pytest.raises(ShapeError, match=r"\(3, 4, 5\)"):
        applied("transpose", (3, 4, 5))
