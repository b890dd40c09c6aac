"""Rules that rewrite a chain: they keep its results, they are checked, and they step aside where they do not apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hwsim.ops.chain import RULES, rewrite
from hwsim.program import graph as graphs
from hwsim.program.graph import make_graph
from hwsim.program.loop_kernel import build_kernel
from hwsim.program.operation import find_operation
from tests.unit.kernels.chains import LAYER, LAYER_TENSORS, chain, convolved, layer, run, step

QKV = [
    step("q", "matmul", "x", "wq"),
    step("k", "matmul", "x", "wk"),
    step("v", "matmul", "x", "wv"),
    step("s", "matmul", "q", "k", transpose_b=True),
    step("y", "matmul", "s", "v"),
]
QKV_TENSORS = {"x": ["n", "d"], "wq": ["d", "h"], "wk": ["d", "h"], "wv": ["d", "d"]}


@pytest.mark.parametrize("cores", [1, 2])
def test_three_products_of_one_tensor_become_one(cores: int) -> None:
    schedule = {"rewrite": ("merge_matmuls",), "parallel": "rows" if cores > 1 else "none"}
    made = run(chain(QKV, QKV_TENSORS, schedule=schedule), cores=cores)
    assert [stage.name for stage in made.stages()] == ["q_k_v", "s", "y"]
    assert made.tensors["q_k_v"].shape == (6, 10 + 10 + 8)
    assert "wq" not in made.tensors
    a = {name: made.arrays[name] for name in QKV_TENSORS}
    expected = (a["x"] @ a["wq"]) @ (a["x"] @ a["wk"]).T @ (a["x"] @ a["wv"])
    np.testing.assert_allclose(made.output, expected, rtol=1e-12, atol=1e-13)
    plain = run(chain(QKV, QKV_TENSORS))
    assert made.useful_flops == plain.useful_flops


def test_element_wise_operations_are_fused_with_what_makes_their_input() -> None:
    made = run(chain(LAYER, LAYER_TENSORS, schedule={"rewrite": ("fuse_pointwise",)}))
    assert [stage.name for stage in made.stages()] == ["up+biased+act+y"]
    np.testing.assert_allclose(made.output, layer(made.arrays), rtol=1e-13)


def test_a_rewrite_that_finds_nothing_says_so() -> None:
    made = run(chain(LAYER, LAYER_TENSORS, schedule={"rewrite": ("merge_matmuls",)}))
    assert made.warnings() == ("merge_matmuls found nothing to do",)


def test_a_rewrite_that_changes_the_result_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Any) -> Any:
        return replace(graph, steps=tuple(each for each in graph.steps if each.name != "act"))

    def renamed(graph: Any) -> Any:
        made = wrong(graph)
        last = made.steps[-1].model_copy(update={"inputs": ("biased", "scale")})
        return replace(made, steps=(*made.steps[:-1], last))

    monkeypatch.setitem(RULES, "fuse_pointwise", renamed)
    graph = make_graph(chain(LAYER, LAYER_TENSORS, schedule={"rewrite": ("fuse_pointwise",)}))
    random = np.random.default_rng(0)
    inputs = {name: random.normal(size=shape) for name, shape in graph.given.items()}
    kept = rewrite(graph, inputs)
    assert kept.steps == graph.steps
    assert "was not taken: it changes the result by" in kept.notes[0]


def product_of(made: Any, name: str) -> np.ndarray:
    return np.asarray(made.arrays["x"] @ made.arrays[f"w{name}"])


@pytest.mark.parametrize("read", ["", "q", "k", "v"])
def test_merged_products_that_nobody_reads_stay_results(read: str) -> None:
    """x is 6 x 8, q, k and v together 6 x 28; what is made of one of them has its shape."""
    steps = QKV[:3] + ([step("y", "relu", read)] if read else [])
    made = run(chain(steps, QKV_TENSORS, schedule={"rewrite": ("merge_matmuls",)}))
    assert [stage.name for stage in made.stages()] == ["q_k_v", *(["y"] if read else [])]
    answers = {name: output for name, output, _ in made.answers()}
    assert list(answers) == [name for name in ("q", "k", "v", "y") if name != read and (name != "y" or read)]
    for name, output in answers.items():
        expected = np.maximum(product_of(made, read), 0) if name == "y" else product_of(made, name)
        np.testing.assert_allclose(output, expected, rtol=1e-13, atol=1e-14)
    made.arrays[next(iter(answers))][0, 0] += 1
    assert max(abs(output - exact).max() for _, output, exact in made.answers()) == pytest.approx(1), "one is wrong"


def test_the_memory_of_merged_products_is_kept_while_one_of_them_is_a_result() -> None:
    """x, the weights side by side, and the product; then y and z, of which only y may go."""
    steps = [*QKV[:3], step("y", "relu", "q"), step("z", "exp", "y"), step("u", "exp", "z")]
    made = build_kernel(chain(steps, QKV_TENSORS, schedule={"rewrite": ("merge_matmuls",)}))
    assert made.space.peak_bytes == 8 * (6 * 8 + 8 * 28 + 6 * 28 + 2 * 60)
    assert made.space.live_bytes == 8 * (6 * 8 + 8 * 28 + 6 * 28 + 60)


def test_a_merged_product_takes_a_name_that_nobody_has() -> None:
    steps = [*QKV[:3], step("q_k_v", "relu", "q"), step("q_k_v_2", "mul", "q_k_v", "k")]
    steps = [
        {**each, "inputs": ["q_k_v_weight" if name == "wv" else name for name in each["inputs"]]} for each in steps
    ]
    tensors = {**QKV_TENSORS, "q_k_v_weight": QKV_TENSORS["wv"]}
    del tensors["wv"]
    made = run(chain(steps, tensors, schedule={"rewrite": ("merge_matmuls",)}))
    assert [stage.name for stage in made.stages()] == ["q_k_v_3", "q_k_v", "q_k_v_2"]
    expected = np.maximum(product_of(made, "q"), 0) * product_of(made, "k")
    np.testing.assert_allclose(made.output, expected, rtol=1e-13, atol=1e-14)


def test_products_that_a_padded_convolution_reads_are_not_merged() -> None:
    """A part of another tensor has no room for zeros around it."""
    steps = [
        step("a", "matmul", "x", "wa"),
        step("b", "matmul", "x", "wb"),
        step("c", "matmul", "x", "wc"),
        step("y", "conv2d", "a", "w", padding=1),
        step("z", "conv2d", "b", "w"),
    ]
    tensors: dict[str, list[Any]] = {"x": [1, 2, 6, 5], "w": [3, 2, 3, 3]} | {f"w{n}": [5, 7] for n in "abc"}
    made = run(chain(steps, tensors, schedule={"rewrite": ("merge_matmuls",)}))
    assert [stage.name for stage in made.stages()] == ["a", "b_c", "y", "z"]
    answers = {name: output for name, output, _ in made.answers()}
    for name, of, padding in (("y", "a", 1), ("z", "b", 0)):
        expected = convolved(product_of(made, of), made.arrays["w"], padding)
        np.testing.assert_allclose(answers[name], expected, rtol=1e-12, atol=1e-13)
    (note,) = made.warnings()
    assert note == "merge_matmuls left a apart: y pads it with zeros, for which a part of a product has no room"


READERS = [
    step("y", "relu", "q"),
    step("y", "add", "k", "q"),
    step("y", "softmax", "q"),
    step("y", "rmsnorm", "q", "g"),
    step("y", "layernorm", "q", "g", "g"),
    step("y", "reduce_sum", "q", axis=0),
    step("y", "reduce_max", "q"),
    step("y", "attention", "q", "k", "v"),
    step("y", "attention", "k", "q", "v", heads=2, variant="fused", br=2, bc=4, causal=True),
    step("y", "matmul", "q", "k", transpose_a=True),
    step("y", "scale_add", "q", "v", value=2.0),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader["op"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_every_operation_can_read_a_part_of_a_merged_product(reader: dict[str, Any], lanes: int) -> None:
    """The same operation on products that were not merged says what is right."""
    tensors = {"x": ["n", "d"], "wq": ["d", "h"], "wk": ["d", "h"], "wv": ["d", "h"], "g": ["h"]}
    if "g" not in reader["inputs"]:
        del tensors["g"]
    merged, plain = (
        run(chain([*QKV[:3], reader], tensors, schedule={"rewrite": rules}), lanes=lanes)
        for rules in (("merge_matmuls",), ())
    )
    assert merged.stages()[0].name == "q_k_v"
    np.testing.assert_allclose(merged.output, plain.output, rtol=1e-12, atol=1e-13)


MAPS = [
    step("y", "max_pool", "q"),
    step("y", "avg_pool", "k", window=3),
    step("y", "batch_norm", "q", *("c" * 4)),
    step("y", "conv2d", "k", "w"),
    step("y", "reduce_sum", "q", axis=1),
    step("y", "relu_backward", "k", "q"),
]


@pytest.mark.parametrize("reader", MAPS, ids=lambda reader: reader["op"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_every_operation_on_images_can_read_a_part_of_a_merged_product(reader: dict[str, Any], lanes: int) -> None:
    known: dict[str, list[Any]] = {"x": [2, 3, 6, 5], "wq": [5, 7], "wk": [5, 7], "c": [3], "w": [4, 3, 3, 3]}
    used = {"x", "wq", "wk", *reader["inputs"]}
    tensors = {name: shape for name, shape in known.items() if name in used}
    merged, plain = (
        run(chain([*QKV[:2], reader], tensors, schedule={"rewrite": rules}), lanes=lanes)
        for rules in (("merge_matmuls",), ())
    )
    assert merged.stages()[0].name == "q_k"
    np.testing.assert_allclose(merged.output, plain.output, rtol=1e-12, atol=1e-13)


NORM = ("gamma", "beta", "mean", "var")
BLOCK = [step("conv", "conv2d", "x", "w", padding=1), step("bn", "batch_norm", "conv", *NORM)]
BLOCK_TENSORS: dict[str, list[Any]] = {"x": [2, 3, 6, 5], "w": [4, 3, 3, 3], **{name: [4] for name in NORM}}


def normed(sums: np.ndarray, statistics: list[np.ndarray]) -> np.ndarray:
    gamma, beta, mean, var = (each[:, None, None] for each in statistics)
    return np.asarray(gamma * (sums - mean) / np.sqrt(var + 1e-5) + beta)


@pytest.mark.parametrize("biased", [False, True])
def test_a_batch_norm_goes_into_the_weights_before_it(biased: bool) -> None:
    conv = step("conv", "conv2d", "x", "w", *(["b"] if biased else []), padding=1)
    tensors = BLOCK_TENSORS | ({"b": [4]} if biased else {})
    made = run(chain([conv, BLOCK[1]], tensors, schedule={"rewrite": ("fold_batch_norm",)}))
    assert [stage.name for stage in made.stages()] == ["bn"]
    a = made.arrays
    sums = convolved(a["x"], a["w"], 1) + (a["b"][:, None, None] if biased else 0)
    np.testing.assert_allclose(made.output, normed(sums, [a[name] for name in NORM]), rtol=1e-12, atol=1e-12)


def test_folded_weights_take_names_that_nobody_has() -> None:
    names = {"gamma": "bn_weight", "beta": "bn_bias"}
    tensors = {names.get(name, name): shape for name, shape in BLOCK_TENSORS.items()}
    steps = [BLOCK[0], step("bn", "batch_norm", "conv", "bn_weight", "bn_bias", "mean", "var")]
    made = run(chain(steps, tensors, schedule={"rewrite": ("fold_batch_norm",)}))
    assert [stage.name for stage in made.stages()] == ["bn"]
    assert {"bn_weight_2", "bn_bias_2"} < set(made.tensors)
    statistics = [made.arrays[name] for name in ("bn_weight", "bn_bias", "mean", "var")]
    expected = normed(convolved(made.arrays["x"], made.arrays["w"], 1), statistics)
    np.testing.assert_allclose(made.output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("made_by_chain", ["w", "gamma", "var"])
def test_a_batch_norm_of_what_the_chain_computes_stays_where_it_is(made_by_chain: str) -> None:
    steps = [{**each, "inputs": [f"{n}2" if n == made_by_chain else n for n in each["inputs"]]} for each in BLOCK]
    steps = [step(f"{made_by_chain}2", "square", made_by_chain), *steps]
    made = run(chain(steps, BLOCK_TENSORS, schedule={"rewrite": ("fold_batch_norm",)}))
    assert [stage.name for stage in made.stages()] == [f"{made_by_chain}2", "conv", *["bn"] * 2]
    assert made.warnings() == (
        f"fold_batch_norm left bn apart: the chain computes {made_by_chain}2, so nothing can be folded before it runs",
        "fold_batch_norm found nothing to do",
    )


def test_two_batch_norms_in_a_row_are_both_folded_and_only_the_last_weights_are_stored() -> None:
    steps = [*BLOCK, step("again", "batch_norm", "bn", *NORM)]
    made = run(chain(steps, BLOCK_TENSORS, schedule={"rewrite": ("fold_batch_norm",)}))
    assert [stage.name for stage in made.stages()] == ["again"]
    assert set(made.tensors) == {"x", "again_weight", "again_bias", "again"}
    statistics = [made.arrays[name] for name in NORM]
    expected = normed(normed(convolved(made.arrays["x"], made.arrays["w"], 1), statistics), statistics)
    np.testing.assert_allclose(made.output, expected, rtol=1e-12, atol=1e-12)


BEHIND = [
    (step("z", "scale", "conv", value=2.0), {}),
    (step("z", "scale_add", "conv", "image", value=2.0), {"image": [4, 6, 5]}),
    (step("z", "add", "conv", "row"), {"row": [5]}),
    (step("z", "sub", "conv", "map"), {"map": [6, 5]}),
    (step("z", "mul", "conv", "image"), {"image": [4, 6, 5]}),
]


@pytest.mark.parametrize(("behind", "tensors"), BEHIND, ids=["scale", "scale and add", "row", "map", "image"])
@pytest.mark.parametrize("cores", [1, 3])
def test_operations_with_a_number_or_with_some_axes_run_in_a_convolution(behind: Any, tensors: Any, cores: int) -> None:
    """The plain chain stores what the convolution makes, and broadcasts by the loops of the operation itself."""
    images = {name: BLOCK_TENSORS[name] for name in ("x", "w")}
    steps = [BLOCK[0], behind, step("y", "relu", "z")]
    parallel = "rows" if cores > 1 else "none"
    schedule = {"rewrite": ("fuse_pointwise",), "parallel": parallel}
    made = run(chain(steps, images | tensors, schedule=schedule), lanes=4, cores=cores)
    assert [stage.name for stage in made.stages()] == ["conv+z+y"]
    assert "conv" not in made.tensors
    plain = run(chain(steps, images | tensors))
    np.testing.assert_allclose(made.output, plain.output, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("head", "first", "shape", "room"),
    [
        (step("t0", "relu", "x"), {"x": [6, 8]}, [6, 8], 60),
        (step("t0", "matmul", "x", "w"), {"x": [6, 8], "w": [8, 11]}, [6, 11], 13),
        (step("t0", "conv2d", "x", "w"), {"x": [1, 2, 7, 7], "w": [5, 2, 3, 3]}, [1, 5, 5, 5], 13),
    ],
    ids=["relu", "matmul", "conv2d"],
)
@pytest.mark.parametrize("lanes", [1, 4])
def test_no_more_is_fused_than_a_loop_has_room_for(head: Any, first: Any, shape: Any, room: int, lanes: int) -> None:
    """64 accesses: of a tile of four rows, an operand takes 4, the output 8 and the inputs 2."""
    steps = [head, *(step(f"t{number}", "add", f"t{number - 1}", f"g{number}") for number in range(1, 64))]
    tensors = first | {f"g{number}": shape for number in range(1, 64)}
    made = run(chain(steps, tensors, schedule={"rewrite": ("fuse_pointwise",)}), lanes=lanes)
    assert made.nodes[0].output == f"t{room}"
    assert f"left t{room + 1} apart: {room + 1} operands are more than the {room}" in made.warnings()[0]
    plain = run(chain(steps, tensors), lanes=lanes)
    np.testing.assert_allclose(made.output, plain.output, rtol=1e-12, atol=1e-12)


def test_a_fusion_that_computes_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared runs through the operator of the group, not operation by operation."""
    graph = make_graph(chain(LAYER, LAYER_TENSORS, schedule={"rewrite": ("fuse_pointwise",)}))
    random = np.random.default_rng(0)
    inputs = {name: random.normal(size=shape) for name, shape in graph.given.items()}
    assert rewrite(graph, inputs).groups == (("up", "biased", "act", "y"),)
    original = graphs.fused_operator

    def broken(steps: Any, operators: Any) -> Any:
        fused = len(operators) > 1
        copy = find_operation("copy")
        members = [copy.apply([e.inputs[0].shape]) if fused and e.name == "relu" else e for e in operators]
        return original(steps, members)

    monkeypatch.setattr(graphs, "fused_operator", broken)
    kept = rewrite(graph, inputs)
    assert kept.groups == ()
    assert "fuse_pointwise was not taken: it changes the result by" in kept.notes[0]


def test_results_that_are_not_finite_cannot_be_compared() -> None:
    """exp of 1000 is no number of float64, and infinity less infinity is no difference."""
    steps = [step("a", "exp", "x"), step("y", "square", "a")]
    graph = make_graph(chain(steps, {"x": ["n", "d"]}, schedule={"rewrite": ("fuse_pointwise",)}))
    with np.errstate(over="ignore"):
        kept = rewrite(graph, {"x": np.full((6, 8), 1000.0)})
    assert kept.groups == ()
    assert kept.notes == ("fuse_pointwise was not taken: y is not finite everywhere, so it cannot be compared",)
