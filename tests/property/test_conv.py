"""Any shape, algorithm and schedule: the convolution is the one of its definition, and its work is the closed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwsim.ops.conv import ConvWorkload, FoldedConv
from hwsim.program.contraction import conv_problem
from hwsim.program.loop_kernel import OperatorKernel, build_kernel
from tests.unit.kernels.helpers import counts, steps, touches, workload

quick = settings(max_examples=60, deadline=None)
few = settings(max_examples=30, deadline=None)
IMAGE = {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}
FILTER = {"oihw": (0, 1, 2, 3), "ohwi": (0, 3, 1, 2), "hwio": (3, 2, 0, 1)}
GEMM, DIRECT = ("n", "co", "h", "w", "k"), ("n", "co", "h", "w", "ci", "kh", "kw")


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    made = {
        "batch": draw(st.integers(1, 2)),
        "groups": groups,
        "ci": groups * draw(st.integers(1, 3)),
        "co": groups * draw(st.integers(1, 3)),
    }
    for name, low, high in (("kernel", 1, 3), ("stride", 1, 3), ("padding", 0, 2), ("dilation", 1, 2)):
        made |= {name: draw(st.integers(low, high)), f"{name}_w": draw(st.integers(low, high))}
    made |= {"height": draw(st.integers(1, 8)), "width": draw(st.integers(1, 9))}
    pairs = [(made[name], made[f"{name}_w"]) for name in ("kernel", "padding", "dilation")]
    assume(not conv_problem(made["ci"], made["co"], groups, (made["height"], made["width"]), *pairs))
    return made


@st.composite
def schedules(draw: st.DrawFn, algorithms: tuple[str, ...] = ("direct", "im2col", "implicit")) -> dict[str, Any]:
    algorithm = draw(st.sampled_from(algorithms))
    loops = DIRECT if algorithm == "direct" else GEMM
    cut = ("co", "h", "w", "ci") if algorithm == "implicit" else loops
    few_cuts = st.dictionaries(st.sampled_from(cut), st.integers(1, 4), max_size=3)
    schedule: dict[str, Any] = {
        "algorithm": algorithm,
        "layout": draw(st.sampled_from(list(IMAGE))),
        "w_layout": draw(st.sampled_from(list(FILTER))),
        "tile": draw(few_cuts),
        "unroll": draw(st.dictionaries(st.sampled_from(loops), st.integers(1, 3), max_size=2)),
        "vector": draw(st.booleans()),
    }
    if draw(st.booleans()):
        schedule["order"] = tuple(draw(st.permutations(loops)))
    if draw(st.booleans()):
        schedule |= {"parallel": "rows", "split": draw(st.sampled_from(["static", "dynamic"]))}
    return schedule


epilogues = st.lists(st.sampled_from(["bias", "relu", "add", "scale_shift", "batch_norm", "tanh", "mul"]), max_size=4)


def made_conv(size: dict[str, int], schedule: dict[str, Any], **more: Any) -> OperatorKernel:
    setting = {key: more.pop(key) for key in ("lanes", "cores", "math") if key in more}
    spec = workload("conv2d", size, **schedule, **more)
    assert isinstance(spec, ConvWorkload)
    made = build_kernel(spec, **setting)
    assert isinstance(made, OperatorKernel)
    return made


def by_definition(made: OperatorKernel, size: dict[str, int], schedule: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Y(n,c,h,w) = Σ X(n,d,h s + u,w s + v) W(c,d,u,v), output by output, in float64."""
    x = made.arrays["x"].astype(np.float64).transpose(IMAGE[schedule["layout"]])
    w = made.arrays["w"].astype(np.float64).transpose(FILTER[schedule["w_layout"]])
    x = np.pad(x, ((0, 0), (0, 0), (size["padding"],) * 2, (size["padding_w"],) * 2))
    reach = [size[f"dilation{axis}"] * (size[f"kernel{axis}"] - 1) + 1 for axis in ("", "_w")]
    rows = (x.shape[2] - reach[0]) // size["stride"] + 1
    columns = (x.shape[3] - reach[1]) // size["stride_w"] + 1
    inner, outer = size["ci"] // size["groups"], size["co"] // size["groups"]
    y = np.zeros((size["batch"], size["co"], rows, columns))
    for c, i, j in np.ndindex(size["co"], rows, columns):
        first, top, left = c // outer * inner, i * size["stride"], j * size["stride_w"]
        seen = x[
            :,
            first : first + inner,
            top : top + reach[0] : size["dilation"],
            left : left + reach[1] : size["dilation_w"],
        ]
        y[:, c, i, j] = (seen * w[c]).sum(axis=(1, 2, 3))
    return y


def close(found: Any, wanted: Any, tolerance: float) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


@settings(max_examples=150, deadline=None)
@given(
    sizes(), schedules(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), st.sampled_from(["fp64", "fp32", "int8"])
)
def test_any_schedule_gives_the_convolution(
    size: dict[str, int], schedule: dict[str, Any], lanes: int, cores: int, precision: str
) -> None:
    made = made_conv(size, schedule, lanes=lanes, cores=cores, precision=precision)
    macs = sum(step.work.macs for step in steps(made))
    wanted = by_definition(made, size, schedule)
    close(made.output.transpose(IMAGE[schedule["layout"]]), wanted, made.tolerance)
    close(made.reference().transpose(IMAGE[schedule["layout"]]), wanted, 1e-13)
    terms = size["ci"] // size["groups"] * size["kernel"] * size["kernel_w"]
    assert macs == wanted.size * terms
    assert made.useful_flops == 2 * macs


@quick
@given(sizes(), schedules(), epilogues, st.booleans(), st.sampled_from([1, 4]))
def test_any_epilogue_is_the_operations_one_after_the_other(
    size: dict[str, int], schedule: dict[str, Any], epilogue: list[str], fused: bool, lanes: int
) -> None:
    """In registers, tile by tile, or in passes of their own: all as in float64, where batch norm is its definition."""
    made = made_conv(size, schedule, lanes=lanes, cores=2, precision="fp64", fused=fused, epilogue=tuple(epilogue))
    done = steps(made)
    close(made.output, made.reference(), made.tolerance)
    assert made.useful_flops == sum(step.work.flops for step in done)


@quick
@given(sizes(), schedules(), st.sampled_from([1, 4]))
def test_every_schedule_writes_every_output_and_reads_every_weight(
    size: dict[str, int], schedule: dict[str, Any], lanes: int
) -> None:
    made = made_conv(size, schedule, lanes=lanes, cores=2, math=False)
    seen: dict[tuple[str, bool], set[int]] = {}
    for nest in (nest for step in steps(made) for nest in step.nests):
        for access in nest.accesses:
            touched = seen.setdefault((access.tensor, access.write), set())
            for address, nbytes, _ in type(nest)(nest.trips, (access,)).addresses():
                touched.update(range(address, address + nbytes, 4))
    assert len(seen["y", True]) == made.tensor("y").size
    assert len(seen["w", False]) == made.tensor("w").size
    if ("block", True) in seen:
        assert seen["block", False] <= seen["block", True]
    if ("windows", True) in seen:
        assert seen["windows", False] == seen["windows", True]
        assert len(seen["windows", True]) == made.tensor("windows").size


def read_by_definition(made: OperatorKernel, size: dict[str, int], rows: int, columns: int) -> Iterator[int]:
    """The address of the image element of each product, in the order of the loops of the definition."""
    layout = made.operator.schedule.layout  # type: ignore[attr-defined]
    halo = (0, 0, size["padding"], size["padding_w"])
    view = made.padded("x", halo if layout == "nchw" else (0, halo[2], halo[3], 0))[0].permute(*IMAGE[layout])
    inner, outer = size["ci"] // size["groups"], size["co"] // size["groups"]
    for n, c, i, j in np.ndindex(size["batch"], size["co"], rows, columns):
        for d, u, v in np.ndindex(inner, size["kernel"], size["kernel_w"]):
            row = i * size["stride"] + u * size["dilation"]
            column = j * size["stride_w"] + v * size["dilation_w"]
            yield view.address((n, c // outer * inner + d, row, column))


@few
@given(sizes(), st.sampled_from(list(IMAGE)))
def test_the_plain_loops_read_the_image_in_the_order_of_the_definition(size: dict[str, int], layout: str) -> None:
    made = made_conv(size, {"layout": layout, "order": ("n", "g", "co", "h", "w", "ci", "kh", "kw")}, math=False)
    rows, columns = made.operator.shape.out  # type: ignore[attr-defined]
    low, view = made.tensors["x"].base, made.tensors["x"]
    high = low + view.size * view.element_bytes
    found = [address for address, _, _ in touches(made) if low <= address < high]
    assert found == list(read_by_definition(made, size, rows, columns))


@quick
@given(sizes(), schedules(), st.sampled_from([1, 4]), st.integers(1, 2))
def test_every_algorithm_reads_just_the_elements_that_some_output_sees(
    size: dict[str, int], schedule: dict[str, Any], lanes: int, side: int
) -> None:
    pool = side > 1 and schedule["algorithm"] == "direct"
    schedule |= {"order": (), "tile": {}, "unroll": {}} if pool else {}
    probe = made_conv(size, schedule, math=False)
    rows, columns = (extent // side * side if pool else extent for extent in probe.operator.shape.out)  # type: ignore[attr-defined]
    assume(rows and columns)
    made = made_conv(size, schedule, lanes=lanes, cores=2, math=False, **({"pool": side} if pool else {}))
    seen = set()
    for nest in (nest for step in steps(made) for nest in step.nests):
        for access in (access for access in nest.accesses if access.tensor == "x"):
            for address, nbytes, _ in type(nest)(nest.trips, (access,)).addresses():
                seen.update(range(address, address + nbytes, 4))
    assert seen == set(read_by_definition(made, size, rows, columns))


@quick
@given(sizes(), schedules(("direct",)), st.integers(2, 4))
def test_cores_share_the_accesses_and_add_none(size: dict[str, int], schedule: dict[str, Any], cores: int) -> None:
    schedule |= {"parallel": "rows", "order": DIRECT, "tile": {}, "unroll": {}}
    alone = counts(made_conv(size, schedule, math=False, cores=1))
    assert counts(made_conv(size, schedule, math=False, cores=cores)) == alone


@few
@given(sizes(), schedules(("direct",)), st.integers(1, 3), st.sampled_from([1, 4]), st.booleans())
def test_a_fused_pool_stores_the_maximum_of_each_square_once(
    size: dict[str, int], schedule: dict[str, Any], side: int, lanes: int, bias: bool
) -> None:
    schedule |= {"order": (), "tile": {}, "unroll": {}}
    plain = made_conv(size, schedule, precision="fp64")
    steps(plain)
    full = plain.output.transpose(IMAGE[schedule["layout"]])
    rows, columns = full.shape[2] // side, full.shape[3] // side
    assume(rows and columns)
    more: dict[str, Any] = {"epilogue": ("bias", "relu") if bias else (), "pool": side, "precision": "fp64"}
    made = made_conv(size, schedule, lanes=lanes, cores=2, **more)
    stores = sum(step.work.instructions.store for step in steps(made))
    if bias:
        full = np.maximum(full + made.arrays["b"][:, None, None], 0)
    wanted = full[:, :, : rows * side, : columns * side].reshape(*full.shape[:2], rows, side, columns, side)
    close(made.output.transpose(IMAGE[schedule["layout"]]), wanted.max(axis=(3, 5)), 1e-13)
    close(made.output, made.reference(), 1e-13)
    assert stores == made.output.size if lanes == 1 else stores <= made.output.size
    apart = made_conv(size, schedule, fused=False, **more)
    steps(apart)
    close(made.output, apart.output, 1e-13)


@few
@given(sizes(), schedules(), st.booleans(), st.lists(st.sampled_from(["relu", "add", "tanh"]), max_size=2))
def test_a_folded_batch_norm_changes_nothing_but_rounding(
    size: dict[str, int], schedule: dict[str, Any], bias: bool, rest: list[str]
) -> None:
    """Both start from the same tensors, and both are held to the same reference."""
    more: dict[str, Any] = {"epilogue": (*(("bias",) if bias else ()), "batch_norm", *rest), "precision": "fp64"}
    apart = made_conv(size, schedule, fused=False, **more)
    folded = made_conv(size, schedule, fold=True, **more)
    assert isinstance(folded, FoldedConv)
    steps(apart), steps(folded)
    np.testing.assert_array_equal(folded.reference(), apart.reference())
    close(folded.output, apart.output, 1e-12)
    assert "gamma" not in folded.tensors


@few
@given(
    st.integers(1, 2), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from(["max_pool", "avg_pool", "global_avg_pool"]), st.sampled_from(list(IMAGE)), st.sampled_from([1, 4]),
)  # fmt: skip
def test_pools_are_their_definition(
    batch: int, channels: int, height: int, width: int, window: int, stride: int, op: str, layout: str, lanes: int
) -> None:
    assume(op == "global_avg_pool" or window <= min(height, width))
    size = {"batch": batch, "channels": channels, "height": height, "width": width, "window": window, "stride": stride}
    made = build_kernel(
        workload(op, size, precision="fp64", layout=layout, vector=True, parallel="rows"), lanes=lanes, cores=2
    )
    steps(made)
    x, y = (array.transpose(IMAGE[layout]) for array in (made.arrays["x"], made.output))
    if op == "global_avg_pool":
        window_h, window_w, stride_h, stride_w = height, width, height, width
    else:
        window_h, window_w, stride_h, stride_w = window, window, stride, stride
    reduce = np.max if op == "max_pool" else np.mean
    for i, j in np.ndindex(*y.shape[2:]):
        seen = x[:, :, i * stride_h : i * stride_h + window_h, j * stride_w : j * stride_w + window_w]
        np.testing.assert_allclose(y[:, :, i, j], reduce(seen, axis=(2, 3)), rtol=1e-13, atol=1e-14)
    assert (y.shape[2] - 1) * stride_h + window_h <= height < y.shape[2] * stride_h + window_h


@few
@given(st.integers(1, 2), st.integers(1, 9), st.integers(1, 7), st.sampled_from(list(IMAGE)), st.sampled_from([1, 4]))
def test_batch_norm_is_its_definition(batch: int, channels: int, height: int, layout: str, lanes: int) -> None:
    size = {"batch": batch, "channels": channels, "height": height, "width": 5}
    made = build_kernel(
        workload("batch_norm", size, precision="fp64", layout=layout, vector=True, parallel="rows"),
        lanes=lanes,
        cores=3,
    )
    seen = Counter(step.name for step in steps(made))
    assert set(seen) == {"scale", "shift", "norm"}
    a = {name: array if array.ndim == 4 else array[:, None, None] for name, array in made.arrays.items()}
    x, y = (a[name].transpose(IMAGE[layout]) for name in ("x", "y"))
    wanted = (x - a["mean"]) / np.sqrt(a["var"] + 1e-5) * a["gamma"] + a["beta"]
    np.testing.assert_allclose(y, wanted, rtol=1e-11, atol=1e-11)
