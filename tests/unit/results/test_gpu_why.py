"""Why a run on a GPU takes as long as it does: the largest row of its table, and advice that fits its room."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import hwsim
from hwsim import RunResult
from hwsim.results.explanation import explain
from hwsim.target import Table


@cache
def base() -> RunResult:
    return hwsim.run("a100_40", "matmul", n=64)


def made(busy: dict[str, int], waiting: dict[str, int], **launch: Any) -> RunResult:
    """A run whose cycles went as stated, and whose only launch is as stated."""
    result = base()
    gpu = result.work["gpu"]
    changed = {**gpu["launches"][0], "power_limited": False, "blocks": 10_000, "resident": 2, **launch}
    return replace(
        result,
        attribution={"gpu": {"busy": busy, "waiting": waiting}},
        bounds=replace(result.bounds, parts={}),
        work=replace(result.work, use={"gpu": {**gpu, "launches": [changed]}}),
    )


@pytest.mark.parametrize(
    ("busy", "waiting", "part", "kind"),
    [
        ({"math": 58}, {"dram": 40, "launch": 2}, "math", "compute"),
        ({"math": 40}, {"dram": 58, "launch": 2}, "dram", "bandwidth"),
        ({"math": 40}, {"dram": 18, "launch": 42}, "launch", "launch"),
        ({"load/store": 70}, {"tail": 30}, "load/store", "load/store"),
        ({"math": 30}, {"tail": 70}, "tail", "tail"),
    ],
)
def test_the_bound_is_the_largest_row_of_the_table(
    busy: dict[str, int], waiting: dict[str, int], part: str, kind: str
) -> None:
    bound = explain(made(busy, waiting, bound="dram", bound_in_words="the bandwidth of DRAM")).bound
    assert (bound.part, bound.kind) == (part, kind)
    assert bound.share == max(*busy.values(), *waiting.values()) / 100
    assert f"{100 * bound.share:.1f} %" in bound.words


@pytest.mark.parametrize("part", ["launch", "start", "step latency", "tail"])
def test_where_work_is_too_little_no_more_sms_are_proposed(part: str) -> None:
    advice = explain(made({"math": 1}, {part: 9})).advice
    assert advice.parameters == (("n", "256"),)
    assert advice.settings == ()


def test_naive_attention_of_three_kernels_is_told_to_fuse() -> None:
    advice = explain(hwsim.run("a100_40", "attention_naive", n=64)).advice
    assert advice.parameters == (("variant", "fused"), ("precision", "fp16"))  # one kernel is for tensor cores alone


@pytest.mark.parametrize(
    ("blocks", "says", "settings", "parameters"),
    [
        (60, "leave room on the 108 SMs", (), (("n", "256"),)),
        (128, "leave room on the 108 SMs", (), (("n", "256"),)),
        (216, "", (), (("precision", "bf16"),)),
        (512, "", (), (("precision", "bf16"),)),
    ],
)
def test_blocks_that_fill_the_gpu_are_not_told_to_leave_room(
    blocks: int, says: str, settings: tuple[str, ...], parameters: tuple[tuple[str, str], ...]
) -> None:
    """108 SMs hold two blocks each: 216 fill them."""
    why = explain(made({"math": 9}, {"launch": 1}, blocks=blocks))
    assert ("leave room" in why.bound.words) == bool(says)
    assert says in why.bound.words
    assert (why.advice.settings, why.advice.parameters) == (settings, parameters)


def test_details_tell_how_blocks_fill_the_gpu() -> None:
    why = explain(made({"math": 9}, {"launch": 1}, blocks=324))
    titles = [section.title for section in why.details.sections]
    assert titles == [
        "How the blocks fill the GPU",
        "Where the bytes went",
        "What went to and from main memory",
        "The run beside closed forms",
    ]
    table = why.details.sections[0].body[0]
    row = dict(zip(table.columns, table.rows[0], strict=True))  # type: ignore[union-attr]
    assert (row["blocks"], row["at a time"], row["room used"]) == ("324", "216", "75.0 %")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"dram_bytes": 100}, ""),
        ({"dram_bytes": 80}, "the L2 still has tiles of the blocks before"),
        ({"dram_bytes": 120}, "tiles are pushed out of the L2 before they are used again"),
        ({"dram_bytes": 100, "seconds": 2.0}, "waves differ in what they find in the L2"),
        ({"dram_bytes": 100, "seconds": 2.0, "power_limited": True}, "power lowers the clock"),
        ({"dram_bytes": 100, "walked": 0.5}, "50.0 % of the replay was walked"),
    ],
)
def test_a_difference_from_the_closed_form_has_a_reason(run: dict[str, object], words: str) -> None:
    result = made(
        {"math": 9},
        {"launch": 1},
        **{"seconds": 1.0, "walked": 1.0, "closed": {"seconds": 1.0, "dram_bytes": 100}, **run},
    )
    table = explain(result).details.sections[-1].body[0]
    assert isinstance(table, Table)
    assert table.rows[0][-1] == words


def test_the_bytes_of_all_tensors_are_the_traffic_of_dram() -> None:
    """Tiles of A and B that the L2 did not keep are read again: more than A, B and C once, as the level says."""
    result = hwsim.run("a100_40", "matmul", n=4096, precision="fp16", math=False)
    moved, dram = result.work["gpu"]["tensors"], result.memory["dram"]
    assert sum(each["bytes_read"] for each in moved.values()) == dram.bytes_read
    assert sum(each["bytes_written"] for each in moved.values()) == dram.bytes_written
    section = next(each for each in explain(result).details.sections if each.title.startswith("What went to and from"))
    table = section.body[0]
    assert isinstance(table, Table)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    size = 4096 * 4096 * 2
    assert rows["C"]["times"] == f"{moved['C']['bytes_written'] / size:.2f}" == "1.00"
    assert float(rows["A"]["times"]) > 2
    assert moved["A"]["bytes_read"] > 2 * size


def test_the_bound_of_several_kernels_is_what_takes_most_cycles_and_most_of_the_longest_one() -> None:
    """DRAM is in use longest in all, under three kernels of which the longest waits for exponentials."""
    result = hwsim.run("a100_40", "attention_naive", n=4096, heads=16, precision="fp16", math=False)
    bound, parts = explain(result).bound, result.bounds.parts
    (agent,) = result.attribution.values()
    most = max({**agent["busy"], **agent["waiting"]}.items(), key=lambda row: row[1])
    assert max(parts, key=lambda name: parts[name]) == "dram"
    longest = max(result.work["gpu"]["launches"], key=lambda launch: launch["seconds"])
    assert bound.part == most[0] == longest["bound"] == "special"
    assert "DRAM" not in bound.words


def test_fused_attention_is_bound_by_products_and_softmax_and_told_of_no_format_it_cannot_have() -> None:
    """The A100 has no fp8, and attention cannot be computed in int8."""
    why = explain(hwsim.run("a100_40", "attention_fused", n=4096, heads=16, precision="fp16", math=False))
    assert why.bound.part == "products and softmax"
    assert why.part(why.bound.part) == "products and softmax on the SMs"
    assert "special-function rates" in why.bound.words
    assert "format" not in why.bound.words


@pytest.mark.parametrize(("machine", "named"), [("h100", "fp8_e4m3"), ("a100_40", "")])
def test_a_faster_format_is_named_where_the_machine_computes_in_it(machine: str, named: str) -> None:
    set_ = {"l2.bandwidth": "inf"}
    why = explain(hwsim.run(machine, "matmul", n=8192, precision="fp16", math=False, set=set_))
    assert why.bound.part == "math"
    assert ("A format with a higher rate" in why.bound.words) == bool(named)
    assert named in why.bound.words
    if named:
        faster = hwsim.run(machine, "matmul", n=8192, precision=named, math=False, set=set_)
        assert faster.verified is None


def test_larger_tiles_are_proposed_where_somebody_chose_them() -> None:
    """What the library takes is the fastest by its own estimate: larger ones took 600 µs, not 566."""
    plain = explain(hwsim.run("a100_40", "matmul", n=4096, precision="fp16", math=False)).bound
    small = explain(
        hwsim.run(
            "a100_40", "matmul", n=4096, precision="fp16", math=False,
            **{"tile.shared.m": 64, "tile.shared.n": 64},
        )
    ).bound  # fmt: skip
    assert plain.part == small.part == "l2"
    assert "Larger tiles would" in small.words
    assert "Larger tiles would" not in plain.words
