"""Chains: answers against NumPy, shapes, liveness and fusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import InputError, ShapeError
from hwsim.program.loop_kernel import build_kernel
from tests.unit.kernels.chains import LAYER, LAYER_TENSORS, chain, convolved, largest, layer, run, step

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


ATTENDED = [
    step("a", "attention", "x", "x", "x", heads=2, br=4, bc=3),
    step("h", "add", "a", "b"),
    step("z", "add", "h", "r"),
    step("y", "relu", "z"),
]


def attended(x: np.ndarray, heads: int) -> np.ndarray:
    """Attention of a matrix with itself whose heads lie side by side, by its definition."""
    found = []
    for part in np.split(x, heads, axis=-1):
        scores = np.exp(part @ np.swapaxes(part, -1, -2) / np.sqrt(part.shape[-1]))
        found.append(scores / scores.sum(axis=-1, keepdims=True) @ part)
    return np.concatenate(found, axis=-1)


@pytest.mark.parametrize("rows", [["n"], ["h", "n"]])
@pytest.mark.parametrize("setting", [{}, {"lanes": 4}, {"lanes": 4, "cores": 3}])
def test_elementwise_operations_run_where_fused_attention_finishes_a_row(rows: Any, setting: dict[str, int]) -> None:
    """Heads are loops of attention and columns of what follows: c = 4 head + e."""
    tensors = {"x": [*rows, "d"], "b": ["d"], "r": [*rows, "d"]}
    schedule = {"fuse": (("a", "h", "z", "y"),), "parallel": "rows" if "cores" in setting else "none"}
    made = run(chain(ATTENDED, tensors, schedule=schedule), **setting)
    x, b, r = (made.arrays[name] for name in "xbr")
    np.testing.assert_allclose(made.output, np.maximum(attended(x, 2) + b + r, 0), rtol=1e-12, atol=1e-13)
    touched = [
        (a.tensor, n.count(a) * a.nbytes // 8)
        for bl in made.blocks()
        for s in bl.steps()
        for n in s.nests
        for a in n.accesses
    ]
    assert not {"a", "h", "z"} & {name for name, _ in touched}
    assert sum(count for name, count in touched if name in "ry") == 2 * x.size


def test_attention_that_stores_all_scores_finishes_no_row_in_registers() -> None:
    naive = [{**ATTENDED[0], "variant": "naive"}, *ATTENDED[1:]]
    with pytest.raises(InputError, match="do not finish its results in registers, where add could go on"):
        build_kernel(
            chain(naive, {"x": ["n", "d"], "b": ["d"], "r": ["n", "d"]}, schedule={"fuse": (("a", "h", "z", "y"),)})
        )


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
        ([step("y", "matmul", "x")], r"matmul has 2 inputs \(A, B\), found 1"),
        ([step("z", "relu", "x"), step("y", "matmul", "x")], r"operation y: matmul has 2 inputs \(A, B\), found 1"),
        ([step("y", "add", "x", "b")], r"operation y: B of shape \(10,\) does not fit A of shape \(6, 8\)"),
        (
            [step("y", "layernorm", "x", "b", "b")],
            r"operation y: gamma of shape \(10,\) does not fit X of shape \(6, 8\)",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(steps: list[dict[str, Any]], message: str) -> None:
    used = {name for each in steps for name in each["inputs"]}
    tensors = {name: shape for name, shape in {"x": ["n", "d"], "b": ["h"]}.items() if name in used}
    for schedule in ({}, {"rewrite": ("merge_matmuls",)}):
        for math in (True, False):
            with pytest.raises((ShapeError, InputError), match=message):
                build_kernel(chain(steps, tensors, schedule=schedule), math=math)


@pytest.mark.parametrize(
    ("fuse", "message"),
    [
        ((("up", "act"),), "act does not take up as its first input"),
        ((("up", "biased", "norm"),), "norm is a rmsnorm, which needs more than one element of biased"),
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


@pytest.mark.parametrize(
    "norm", [step("norm", "rmsnorm", "x", "b"), step("norm", "layernorm", "x", "b", "b"), step("norm", "softmax", "x")]
)
@pytest.mark.parametrize("lanes", [1, 4])
def test_element_wise_operations_run_behind_a_norm(norm: dict[str, Any], lanes: int) -> None:
    steps = [norm, step("act", "relu", "norm"), step("y", "mul", "act", "x")]
    tensors = {"x": ["n", "d"], "b": ["d"]} if "b" in norm["inputs"] else {"x": ["n", "d"]}
    fused = run(chain(steps, tensors, schedule={"fuse": (("norm", "act", "y"),)}), lanes=lanes)
    assert not {"norm", "act"} & set(fused.tensors)
    np.testing.assert_allclose(fused.output, run(chain(steps, tensors)).output, rtol=1e-13, atol=1e-14)


def test_an_operand_that_is_read_twice_cannot_stay_in_a_register() -> None:
    steps = [step("h", "relu", "x"), step("z", "add", "h", "h")]
    with pytest.raises(InputError, match="z reads h 2 times, so it has to be stored; end the group at h"):
        build_kernel(chain(steps, {"x": ["n", "d"]}, schedule={"fuse": (("h", "z"),)}))


IMAGES: dict[str, list[Any]] = {"x": [2, 3, 9, 8], "w": [4, 3, 3, 3]}


@pytest.mark.parametrize("setting", [{}, {"lanes": 4}, {"lanes": 4, "cores": 2}])
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_runs_with_a_max_pool_behind_it(setting: dict[str, int], window: int, groups: int) -> None:
    """9 rows and 8 columns: some are left over behind the last square."""
    steps = [
        step("conv", "conv2d", "x", "w", "b", padding=1, groups=groups),
        step("act", "relu", "conv"),
        step("y", "max_pool", "act", window=window),
    ]
    tensors = {"x": [2, 3 * groups, 9, 8], "w": [4, 3, 3, 3], "b": [4]}
    schedule = {"fuse": (("conv", "act", "y"),), "parallel": "rows" if "cores" in setting else "none"}
    made = run(chain(steps, tensors, schedule=schedule), **setting)
    assert [stage.name for stage in made.stages()] == ["conv+act+y"]
    assert not {"conv", "act"} & set(made.tensors)
    x, w, b = (made.arrays[name] for name in ("x", "w", "b"))
    images, filters = np.split(x, groups, axis=1), np.split(w, groups, axis=0)
    sums = np.concatenate([convolved(*each, padding=1) for each in zip(images, filters, strict=True)], axis=1)
    expected = largest(np.maximum(sums + b[:, None, None], 0), window)
    np.testing.assert_allclose(made.output, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ([step("z", "avg_pool", "conv")], "z is an avg_pool, .*and a max-pool at its end, behind a convolution"),
        (
            [step("s", "add", "conv", "whole"), step("z", "max_pool", "s")],
            "schedule.fuse: .*add reads a tensor with rows or columns of the map that a fused pool never stores",
        ),
        (
            [step("s", "mul", "conv", "row"), step("z", "max_pool", "s")],
            "schedule.fuse: .*mul reads a tensor with rows or columns of the map that a fused pool never stores",
        ),
    ],
)
def test_what_cannot_run_in_a_convolution_is_refused_with_the_reason(tail: list[Any], message: str) -> None:
    steps = [step("conv", "conv2d", "x", "w", padding=1), *tail]
    others: dict[str, list[Any]] = {"row": [8], "whole": [2, 4, 9, 8]}
    tensors = IMAGES | {name: shape for name, shape in others.items() if name in tail[0]["inputs"]}
    group = tuple(each["name"] for each in steps)
    with pytest.raises(InputError, match=message):
        build_kernel(chain(steps, tensors, schedule={"fuse": (group,)}))
    apart = run(chain(steps, tensors))
    assert [stage.name for stage in apart.stages()] == list(group), "without fuse the same chain runs"


def test_the_scratch_space_of_an_operation_never_takes_the_name_of_a_tensor() -> None:
    """A batch norm keeps a scale and a shift for each channel; here the chain has a tensor called scale."""
    norm = ("gamma", "beta", "mean", "var")
    steps = [step("y", "batch_norm", "scale", *norm), step("z", "add", "y", "shift")]
    tensors: dict[str, list[Any]] = {"scale": [2, 3, 4, 4], "shift": [4], **{name: [3] for name in norm}}
    made = run(chain(steps, tensors))
    gamma, beta, mean, var = (made.arrays[name][:, None, None] for name in norm)
    expected = gamma * (made.arrays["scale"] - mean) / np.sqrt(var + 1e-5) + beta + made.arrays["shift"]
    np.testing.assert_allclose(made.output, expected, rtol=1e-12, atol=1e-13)


def test_a_number_may_be_a_formula_of_the_sizes() -> None:
    made = run(chain([step("y", "scale", "x", value="3 / (n * d * 5)")], {"x": ["n", "d"]}))
    np.testing.assert_allclose(made.output, made.arrays["x"] * 3 / (6 * 8 * 5), rtol=1e-15)


def test_an_integer_chain_is_refused_with_the_formats_that_work() -> None:
    with pytest.raises(InputError, match="fp64, fp32"):
        build_kernel(chain(LAYER, LAYER_TENSORS, precision="int8"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operations": ({"name": "y", "op": "relu", "inputs": ("z",)},)}, "reads z, which nothing before it makes"),
        ({"operations": ({"name": "x", "op": "relu", "inputs": ("x",)},)}, "two tensors x"),
        ({"tensors": {"x": ("n", "q")}}, "no size q"),
        (
            {"operations": ({"name": "y", "op": "scale", "inputs": ("x",), "value": "1 / q"},)},
            "operation y, value: no size q",
        ),
        ({"schedule": {"fuse": (("y", "zz"),)}}, "there is no operation zz"),
        ({"schedule": {"fuse": (("y",), ("y",))}}, "y is in two groups"),
    ],
)
def test_a_file_that_names_what_is_not_there_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chain([step("y", "relu", "x")], {"x": ["n", "d"]}, **changes)


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


def test_sums_count_as_stored_in_the_format_that_was_asked_for_and_otherwise_as_the_tensors() -> None:
    """A product in bf16 keeps 8 bits of a number; sums in fp16 keep 11, and those in bf16 no more than the tensors."""
    steps, tensors = [step("y", "matmul", "x", "w")], {"x": ["n", "d"], "w": ["d", "d"]}
    plain, asked = (
        build_kernel(
            chain(steps, tensors).model_copy(update={"precision": "fp16", "accumulate": sums, "scale": "none"})
        )
        for sums in (None, "bf16")
    )
    assert plain.rounding.kept == plain.rounding.stored == 2.0**-11
    assert asked.rounding.kept == 2.0**-8
