"""`hwsim view`, `trace`, `gradient`, `rewrite` and `explain TERM`: what they print, and what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import hwsim

from hwsim.cli.layout import PHASES, _why
from hwsim.cli.view import _print_rewrites
from hwsim.errors import InputError
from hwsim.program.gradient import build_graph
from hwsim.sweep.search import Rewritten
from hwsim.systems.parallel import ParallelStep
from hwsim.trace.view import start
from tests.unit.results.made import small


def data(*words: str) -> dict[str, object]:
    done = hwsim(*words, "--json", "-")
    assert done.code == 0, done.err
    found: dict[str, object] = json.loads(done.out)
    return found


@pytest.mark.parametrize(
    ("steps", "array"),
    [
        (("order=column",), np.arange(12).reshape(4, 3).T),
        (("permute=1,0",), np.arange(12).reshape(3, 4).T),
        (("slice=1:3,0:4:2",), np.arange(12).reshape(3, 4)[1:3, 0:4:2]),
        (("slice=2,:",), np.arange(12).reshape(3, 4)[2]),
        (("reshape=2,-1",), np.arange(12).reshape(2, 6)),
        (("permute=1,0", "contiguous", "reshape=12"), np.arange(12).reshape(3, 4).T.copy().reshape(12)),
    ],
)
def test_a_view_is_what_numpy_makes_of_it(steps: tuple[str, ...], array: np.ndarray) -> None:
    """NumPy is the oracle: shape, values and, in elements, strides."""
    found = data("view", "3x4", *steps)
    assert found["shape"] == list(array.shape)
    assert found["values"] == array.ravel().tolist()
    assert found["strides"] == [stride // array.itemsize for stride in array.strides]
    assert found["contiguous"] == array.flags.c_contiguous


def test_a_view_draws_the_lines_that_it_touches() -> None:
    """A column of a 4 x 16 matrix of fp32 lies on four lines of 64 bytes, and uses 4 bytes of each."""
    done = hwsim("view", "4x16", "slice=:,3:4")
    assert "It touches 4 lines of 4: 16 of 256 bytes" in " ".join(done.out.split())
    assert sum(line.count("[") for line in done.out.splitlines() if line.startswith("  line")) == 4
    assert start("4x16").then("slice", ":,3:4").changes_of_line(64) == 4


@pytest.mark.parametrize(
    ("rows", "drawn", "more"), [(23, 23, ""), (24, 24, ""), (25, 24, "1 line"), (40, 24, "16 lines")]
)
def test_of_a_long_storage_the_first_lines_are_drawn_and_the_others_counted(rows: int, drawn: int, more: str) -> None:
    """Sixteen numbers of four bytes to a line of 64."""
    done = hwsim("view", f"{rows}x16")
    lines = [line.strip() for line in done.out.splitlines() if line.startswith("  line")]
    assert [line.split()[1] for line in lines] == [str(number) for number in range(drawn)]
    assert (f"… and {more} more" in done.out) == ("…" in done.out) == bool(more)
    assert f"It touches {rows} lines of {rows}: {64 * rows} of {64 * rows} bytes" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("4x4", "reshape=2,2,2,2", "permute=2,1,0,3", "reshape=4,4"), "put contiguous before it"),
        (("4x4", "turn=1"), "there are: order, permute"),
        (("4by4",), "a shape is written as 4x5"),
        (("100x100",), "too many to look at"),
        (("4x4", "strides=5,1"), "outside the storage"),
        (("4x4", "contiguous=yes"), "without a value"),
        (("0x4",), "at least 1"),
    ],
)
def test_what_cannot_be_is_explained(words: tuple[str, ...], said: str) -> None:
    done = hwsim("view", *words)
    assert done.code == 2
    assert said in done.err


def test_a_trace_has_addresses_and_labels() -> None:
    """T18: 4 x 4 in blocks of 2 is 192 accesses; the first sum loads C, then A and B in turn, then stores C."""
    found = data("trace", "course_cpu", "matmul_tiled", "n=4", "tile=2")
    shown = found["shown"]
    assert isinstance(shown, list)
    assert found["accesses"] == 2 * 64 + 2 * 32
    assert [(each["kind"], each["element"]) for each in shown[:6]] == [
        ("load", "C[0, 0]"), ("load", "A[0, 0]"), ("load", "B[0, 0]"), ("load", "A[0, 1]"), ("load", "B[1, 0]"),
        ("store", "C[0, 0]"),
    ]  # fmt: skip
    assert shown[4]["address"] - shown[2]["address"] == 16


def test_a_vector_load_names_its_elements() -> None:
    done = hwsim("trace", "course_cpu", "add", "n=16", "--limit", "2")
    assert "A[0..7]" in done.out
    assert "… and 4 more" in done.out


@pytest.mark.parametrize("machine", ["a100_40", "tpu_v1", "eyeriss", "gddr6_aim"])
def test_machines_that_move_tiles_have_no_trace_of_accesses(machine: str) -> None:
    done = hwsim("trace", machine, "matmul", "n=16")
    assert done.code == 2
    assert "no list of single accesses" in done.err


def test_the_graph_of_the_notes_is_built_and_differentiated() -> None:
    """(exp(v1) + 1) · exp(v1): exp is one node that two others read; the derivative is (2 e^v + 1) e^v."""
    graph = build_graph("(exp(v1) + 1)·exp(v1)")
    assert [node.name for node in graph.nodes] == ["v2", "v3", "v4"]
    (second,) = [each for each in graph.gradient() if each.node == "v2"]
    assert set(second.sent) == {"v3", "v4"}
    point = 0.7
    assert graph.derivatives({"v1": point})["v1"] == pytest.approx((2 * math.exp(point) + 1) * math.exp(point))


def test_the_example_of_the_notes_has_its_numbers() -> None:
    """D1: y = 11.652, 5.5, 1.716 at (2, 5)."""
    found = data("gradient", "ln(x1) + x1*x2 - sin(x2)", "x1=2", "x2=5")
    assert found["value"] == pytest.approx(math.log(2) + 10 - math.sin(5))
    gradient = found["gradient"]
    assert isinstance(gradient, dict)
    assert gradient["x1"] == pytest.approx(5.5)
    assert gradient["x2"] == pytest.approx(2 - math.cos(5))


@pytest.mark.parametrize("text", ["x*x/y", "sqrt(x) * tanh(y) - x**2", "max(x, y) + abs(x - y)", "x / (1 + exp(-y))"])
def test_reverse_mode_agrees_with_central_differences(text: str) -> None:
    """D5: differences are the oracle; about eight digits of them hold."""
    graph, given = build_graph(text), {"x": 1.3, "y": 0.6}
    found, checked = graph.derivatives(given), graph.differences(given)
    for name in graph.inputs:
        assert found[name] == pytest.approx(checked[name], rel=1e-6, abs=1e-8)


def test_forward_mode_grows_with_the_inputs_and_reverse_mode_does_not() -> None:
    """D2: a product of n numbers: reverse mode takes twice the evaluation, forward mode n passes, n²/2 operations."""
    small, large = (build_graph("*".join(f"x{i}" for i in range(n))) for n in (4, 16))
    assert large.reverse_operations() == 2 * large.operations() == 2 * 15
    assert (
        large.forward_operations() / large.reverse_operations()
        > small.forward_operations() / small.reverse_operations()
    )


def test_a_rewrite_is_kept_only_if_the_time_falls() -> None:
    """A17: folding and fusing help a residual block; where merging changes nothing, it is not kept."""
    found = data("rewrite", "a100_40", "resnet_block_plain", "h=8", "w=8")
    assert found["kept"] == ["fold_batch_norm", "fuse_pointwise"]
    assert found["after_s"] < found["before_s"]  # type: ignore[operator]
    assert hwsim("rewrite", "course_cpu", "add").code == 2


def test_a_term_is_explained_and_a_missing_file_is_still_missed() -> None:
    assert "fetching, decoding and ordering instructions" in " ".join(hwsim("explain", "control").out.split())
    assert hwsim("explain", "arithmetic", "intensity").code == 0
    assert "did you mean hit rate" in hwsim("explain", "hitrate").err
    assert hwsim("explain", "nothing.json").code == 2


@pytest.mark.parametrize("text", ["int8(x) * x", "x + A[i]"])
def test_what_has_no_slope_is_no_expression_to_differentiate(text: str) -> None:
    with pytest.raises(InputError, match="an expression is made of numbers, names and functions of them"):
        build_graph(text)


def test_a_rewrite_is_told_by_how_much_it_is_faster(capsys: pytest.CaptureFixture[str]) -> None:
    """A run of twice the time before: it is twice as fast."""
    after = small()
    _print_rewrites(Rewritten(replace(after, time_s=2 * after.time_s), after, ()))
    assert "2× as fast as written, with no rewrite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("compute", "exposed", "waiting", "batch", "said"),
    [
        (
            80,
            10,
            10,
            8,
            "80.0 % of the time of a {} the devices compute, bound by 75.0 % arithmetic, 25.0 % bandwidth of dram.",
        ),
        (
            50,
            30,
            20,
            8,
            "50.0 % of the time of a {} the devices compute, bound by 75.0 % arithmetic, 25.0 % bandwidth of "
            "dram; 30.0 % they talk and nothing hides it.",
        ),
        (50, 20, 30, 8, "30.0 % of the time of a {} is the bubble of the pipeline; more microbatches (micro=8) would"),
        (50, 20, 30, 7, "30.0 % of the time of a {} is the bubble of the pipeline; a larger batch, cut into more"),
    ],
)
def test_the_longest_part_of_a_divided_step_is_said(
    compute: int, exposed: int, waiting: int, batch: int, said: str
) -> None:
    """One stage of 100 fs in all; four microbatches, so that eight need a batch of eight."""
    stage = SimpleNamespace(compute_fs=compute, exposed_fs=exposed, waiting_fs=waiting)
    step = SimpleNamespace(
        seconds=1.0,
        elapsed_fs=100,
        stages=[stage],
        phase=SimpleNamespace(name="train", batch=batch),
        bounds={"arithmetic": 3.0, "bandwidth of dram": 1.0},
    )
    step.share = lambda name: ParallelStep.share(step, name)  # type: ignore[arg-type]
    run = SimpleNamespace(steps=[(step, 1)], layout=SimpleNamespace(micro=4, dp=1, ep=1))
    assert _why(run).startswith(said.format(PHASES["train"]))  # type: ignore[arg-type]
