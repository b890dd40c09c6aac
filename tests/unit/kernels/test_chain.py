"""Chains: answers against NumPy, shapes, liveness, fusion, and rewrites that must not change the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import InputError, ShapeError
from hwsim.kernels.build import build_kernel
from hwsim.kernels.chain import ChainKernel
from hwsim.kernels.graph import make_graph
from hwsim.kernels.rewrite import RULES, rewrite
from hwsim.spec.ops.chain import ChainWorkload
from hwsim.spec.workload import WorkloadSpec


def chain(operations: list[dict[str, Any]], tensors: dict[str, list[Any]], /, **more: Any) -> ChainWorkload:
    data = {
        "format": 1, "name": "made", "description": "A chain for a test.", "op": "chain",
        "sizes": {"n": 6, "d": 8, "h": 10},
        "tensors": {name: tuple(shape) for name, shape in tensors.items()},
        "operations": tuple({**step, "inputs": tuple(step["inputs"])} for step in operations),
        "precision": "fp64",
    }  # fmt: skip
    spec = WorkloadSpec.model_validate(data | more)
    assert isinstance(spec, ChainWorkload)
    return spec


def run(workload: ChainWorkload, **setting: Any) -> ChainKernel:
    made = build_kernel(workload, **setting)
    assert isinstance(made, ChainKernel)
    for block in made.blocks():
        list(block.steps())
    return made


def step(name: str, op: str, *inputs: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "inputs": list(inputs), **more}


LAYER = [
    step("up", "matmul", "x", "w"),
    step("biased", "add", "up", "b"),
    step("act", "relu", "biased"),
    step("y", "mul", "act", "scale"),
]
LAYER_TENSORS = {"x": ["n", "d"], "w": ["d", "h"], "b": ["h"], "scale": ["n", "h"]}


def layer(a: dict[str, np.ndarray]) -> np.ndarray:
    return np.maximum(a["x"] @ a["w"] + a["b"], 0) * a["scale"]


FUSIONS = [
    (),
    (("up", "biased"),),
    (("up", "biased", "act", "y"),),
    (("biased", "act"),),
    (("up", "biased"), ("act", "y")),
]


@pytest.mark.parametrize("fuse", FUSIONS)
@pytest.mark.parametrize("setting", [{}, {"lanes": 4}, {"lanes": 4, "cores": 3}])
def test_the_answer_does_not_depend_on_what_is_fused(fuse: Any, setting: dict[str, int]) -> None:
    schedule = {"fuse": fuse, "parallel": "rows" if "cores" in setting else "none"}
    made = run(chain(LAYER, LAYER_TENSORS, schedule=schedule), **setting)
    np.testing.assert_allclose(made.output, layer(made.arrays), rtol=1e-13, atol=1e-13)
    assert len(made.stages()) == 4 - sum(len(group) - 1 for group in fuse)
    assert made.useful_flops == 6 * 10 * (2 * 8 + 3)


@pytest.mark.parametrize("fuse", FUSIONS)
def test_what_is_fused_is_never_stored(fuse: Any) -> None:
    made = build_kernel(chain(LAYER, LAYER_TENSORS, schedule={"fuse": fuse}))
    touched = {a.tensor for b in made.blocks() for s in b.steps() for nest in s.nests for a in nest.accesses}
    inside = {name for group in fuse for name in group[:-1]}
    assert touched == {*LAYER_TENSORS, "up", "biased", "act", "y"} - inside


def test_a_tensor_is_freed_after_its_last_reader() -> None:
    """x, w, b and scale stay: 48 + 80 + 10 + 60 elements. At most two of the 60-element results live at once."""
    made = build_kernel(chain(LAYER, LAYER_TENSORS))
    assert made.space.peak_bytes == 8 * (48 + 80 + 10 + 60 + 2 * 60)
    fused = build_kernel(chain(LAYER, LAYER_TENSORS, schedule={"fuse": (("up", "biased", "act", "y"),)}))
    assert fused.space.peak_bytes == 8 * (48 + 80 + 10 + 60 + 60)


def test_a_tensor_lives_until_a_late_reader_has_seen_it() -> None:
    steps = [step("a", "relu", "x"), step("b", "exp", "a"), step("c", "exp", "b"), step("y", "add", "c", "a")]
    made = build_kernel(chain(steps, {"x": ["n", "d"]}))
    assert made.space.peak_bytes == 8 * 48 * 4
    short = build_kernel(chain(steps[:3], {"x": ["n", "d"]}))
    assert short.space.peak_bytes == 8 * 48 * 3


def test_every_result_that_nobody_reads_is_checked() -> None:
    made = run(chain([step("a", "exp", "x"), step("b", "square", "x")], {"x": ["n", "d"]}))
    answers = {name: (output, reference) for name, output, reference in made.answers()}
    assert set(answers) == {"a", "b"}
    made.arrays["a"][0, 0] += 1
    output, reference = answers["a"]
    assert abs(output - reference).max() == pytest.approx(1)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([step("y", "matmul", "x", "b")], r"y: \(6, 8\) and \(10,\) are not matrices"),
        ([step("y", "matmul", "x", "x")], "the columns of the first, 8, must be the rows of the second, 6"),
        ([step("y", "matmul", "x")], "a matmul has 2 inputs, found 1"),
        ([step("y", "add", "x", "b")], r"an operand of shape \(10,\) fits neither \(6, 8\) nor its last axes"),
        ([step("y", "layernorm", "x", "b", "b")], r"the weights have shape \(10,\); rows of \(6, 8\) need \(8,\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(steps: list[dict[str, Any]], message: str) -> None:
    used = {name for each in steps for name in each["inputs"]}
    tensors = {name: shape for name, shape in {"x": ["n", "d"], "b": ["h"]}.items() if name in used}
    with pytest.raises((ShapeError, InputError), match=message):
        build_kernel(chain(steps, tensors))


@pytest.mark.parametrize(
    ("fuse", "message"),
    [
        ((("up", "act"),), "act does not take up as its first input"),
        ((("up", "biased", "norm"),), "norm is a rmsnorm, which needs more than one element of biased"),
        ((("norm", "y"),), "nothing can be fused with norm, a rmsnorm"),
        ((("biased", "norm"),), "biased is read by y as well, so it has to be stored"),
    ],
)
def test_what_cannot_be_fused_is_refused_with_the_reason(fuse: Any, message: str) -> None:
    steps = [
        step("up", "matmul", "x", "w"),
        step("biased", "add", "up", "b"),
        step("act", "relu", "biased"),
        step("norm", "rmsnorm", "biased", "b"),
        step("y", "mul", "norm", "act"),
    ]
    if "y as well" in message:
        steps[2:] = [step("norm", "relu", "biased"), step("y", "mul", "norm", "biased")]
    if "rmsnorm, which" in message:
        steps = [*steps[:2], step("norm", "rmsnorm", "biased", "b")]
    with pytest.raises(InputError, match=message):
        build_kernel(chain(steps, {"x": ["n", "d"], "w": ["d", "h"], "b": ["h"]}, schedule={"fuse": fuse}))


def test_an_integer_chain_is_refused_with_the_formats_that_work() -> None:
    with pytest.raises(InputError, match="fp64, fp32"):
        build_kernel(chain(LAYER, LAYER_TENSORS, precision="int8"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operations": ({"name": "y", "op": "relu", "inputs": ("z",)},)}, "reads z, which nothing before it makes"),
        ({"operations": ({"name": "x", "op": "relu", "inputs": ("x",)},)}, "two tensors x"),
        ({"tensors": {"x": ("n", "q")}}, "no size q"),
        ({"schedule": {"fuse": (("y", "zz"),)}}, "there is no operation zz"),
        ({"schedule": {"fuse": (("y",), ("y",))}}, "y is in two groups"),
    ],
)
def test_a_file_that_names_what_is_not_there_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chain([step("y", "relu", "x")], {"x": ["n", "d"]}, **changes)


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


UNARY = ("relu", "square", "tanh", "sigmoid", "copy")


@given(st.lists(st.sampled_from((*UNARY, "add", "mul", "matmul")), min_size=1, max_size=6), st.booleans(), st.data())
def test_any_chain_gives_what_numpy_gives(ops: list[str], fused: bool, data: st.DataObject) -> None:
    functions: dict[str, Any] = {
        "relu": lambda x: np.maximum(x, 0), "square": lambda x: x * x, "tanh": np.tanh, "copy": lambda x: x,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "add": np.add, "mul": np.multiply, "matmul": np.matmul,
    }  # fmt: skip
    steps, known = [], ["x"]
    for number, op in enumerate(ops):
        first = data.draw(st.sampled_from(known))
        second = () if op in UNARY else ("m",) if op == "matmul" else (data.draw(st.sampled_from(known)),)
        steps.append(step(f"t{number}", op, first, *second))
        known.append(f"t{number}")
    tensors = {"x": ["d", "d"]} | ({"m": ["d", "d"]} if "matmul" in ops else {})
    if not any("x" in each["inputs"] for each in steps):
        return
    schedule = {"rewrite": ("fuse_pointwise",)} if fused else {}
    made = run(chain(steps, tensors, schedule=schedule))
    values = {name: np.array(made.arrays[name]) for name in tensors}
    for each in steps:
        values[each["name"]] = functions[each["op"]](*(values[name] for name in each["inputs"]))
    for name, output, _ in made.answers():
        np.testing.assert_allclose(output, values[name], rtol=1e-11, atol=1e-11)
