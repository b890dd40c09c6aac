"""Section 3 of the mission: the matrix product, its register tiles and its cache tiles."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

import hwsim
from hwsim import RunResult
from hwsim.api import simulate
from hwsim.catalog import load_machine
from hwsim.errors import CapacityError
from tests.cli.command_line import hwsim as command
from tests.unit.kernels.helpers import kernel

SMALL_L1 = {"l1.size": "8 KiB", "l1.ways": "full"}
"""Room for a strip of A, two of B, and some of C at n = 64, b1 = b2 = 8; no set conflicts."""


def loads(result: RunResult) -> tuple[int, int, int]:
    """Loads of A and of B, stores of C."""
    tensors = result.tensors
    return tensors["A"]["loads"], tensors["B"]["loads"], tensors["C"]["stores"]


def l1_misses(result: RunResult) -> dict[str, int]:
    return {name: tensor["misses"]["l1"] for name, tensor in result.tensors.items()}


def formula(result: RunResult, compare: str) -> dict[str, Any]:
    return next(row for row in result.formulas if row["compare"] == compare)


def test_t1_b_by_rows_streams_and_b_by_columns_strides() -> None:
    """T1: a row of B[j][k] is read line by line; a column of B[k][j] touches a line for each element.

    In 8 KiB no column of 256 lines stays until the next one comes."""
    rows, columns = (
        hwsim.run("course_cpu", name, n=256, m=16, math=False, set=SMALL_L1) for name in ("matmul_bt", "matmul_naive")
    )
    assert rows.work["macs"] == columns.work["macs"] == 16 * 256 * 256
    assert l1_misses(columns)["B"] == 16 * 256 * 256
    assert l1_misses(rows)["B"] == 16 * 256 * 256 // 16


def test_t2_naive_loads() -> None:
    """T2: n³, n³ and n²; three registers."""
    result = hwsim.run("course_cpu", "matmul_naive", n=64)
    assert loads(result) == (262_144, 262_144, 4_096)
    assert result.verified


@pytest.mark.parametrize("v3", [1, 2, 4])
def test_t3_t5_a_register_tile_divides_the_loads_whatever_v3(v3: int) -> None:
    """T3: n³/v2, n³/v1 and n². T5: v3 does not matter."""
    result = hwsim.run("course_cpu", "matmul_register", n=64, v1=4, v2=8, v3=v3)
    assert loads(result) == (32_768, 65_536, 4_096)


@pytest.mark.parametrize(("v3", "registers"), [(1, 44), (4, 80)])
def test_t4_the_register_budget_is_tight(v3: int, registers: int) -> None:
    """T4: v1*v3 + v2*v3 + v1*v2 registers run; one less is refused, with both numbers."""
    tile = {"n": 16, "v1": 4, "v2": 8, "v3": v3}
    fits = {"regs.count": registers, "regs.spill": "refuse"}
    assert hwsim.run("course_cpu", "matmul_register", set=fits, **tile).verified
    with pytest.raises(CapacityError, match=f"needs {registers} values in regs, which holds {registers - 1}"):
        hwsim.run("course_cpu", "matmul_register", set=fits | {"regs.count": registers - 1}, **tile)


def test_t4_or_spills_are_counted() -> None:
    """T4: 40 of 44 values have no register, and are loaded and stored again; the answer stays the same."""
    tile = {"n": 16, "v1": 4, "v2": 8}
    roomy, tight = (hwsim.run("course_cpu", "matmul_register", set={"regs.count": count}, **tile) for count in (44, 4))
    spilled = tight.work["instructions"]["load"] - roomy.work["instructions"]["load"]
    assert spilled == tight.work["instructions"]["store"] - roomy.work["instructions"]["store"] > 0
    assert tight.time_s > roomy.time_s
    assert np.array_equal(tight.output, roomy.output)


def test_t7_a_tensor_is_reused_along_the_index_that_it_does_not_have() -> None:
    """T7: A has no j and is used v2 times for each load, B has no i and is used v1 times. The notes say v1 for A."""
    result = hwsim.run("course_cpu", "matmul_register", n=64, v1=4, v2=8)
    assert result.work["macs"] // result.tensors["A"]["loads"] == 8
    assert result.work["macs"] // result.tensors["B"]["loads"] == 4
    assert command("run", "matmul_register", "n=64", "v1=4", "v2=8").code == 0
    rows = [line.split() for line in command("explain").out.splitlines()]
    uses = {row[0]: row[5] for row in rows if row[:1] in (["A"], ["B"])}
    assert uses == {"A": "8", "B": "4"}


def test_t8_packed_tiles_need_no_padding() -> None:
    """T8: with each tile in one piece the lines are those of the formula; in rows of 1 KiB they crowd into few sets."""
    packed, strided = (hwsim.run("course_cpu", name, n=256, math=False) for name in ("matmul_packed", "matmul_tiled"))
    assert packed.memory["l1"].misses == 69_632
    assert strided.memory["l1"].misses == 5_041_152


@pytest.mark.parametrize("b2", [4, 8])
def test_t9_t10_strips_bring_a_once_and_b_once_for_each_strip_of_a(b2: int) -> None:
    """T9: n² elements of A. T10: n³/b1 = 32,768 of B; b2 cancels. In lines of 16 elements."""
    result = hwsim.run("course_cpu", "matmul_strips", n=64, b1=8, b2=b2, set=SMALL_L1)
    misses = l1_misses(result)
    assert misses["A"] * 16 == 64**2
    assert misses["B"] * 16 == 64**3 // 8 == 32_768


def test_t11_beyond_the_condition_traffic_jumps() -> None:
    """T11: b1*n + b2*n elements are 4 KiB. The edge lies higher: while one strip of B follows another both are in use,
    and C beside them, so that A stays above 6 KiB. At 2 KiB a strip of B does not stay either."""
    by_size = {
        size: l1_misses(
            hwsim.run("course_cpu", "matmul_strips", n=64, math=False, set=SMALL_L1 | {"l1.size": f"{size} B"})
        )
        for size in (2048, 4096, 6144, 6656)
    }
    assert by_size[6656]["A"] == 256
    assert by_size[6144]["A"] > 6 * by_size[6656]["A"]
    assert by_size[4096]["A"] == 8 * 256
    assert by_size[4096]["B"] == 2_048
    assert by_size[2048]["B"] == 8 * 2_048


def test_t12_strips_bring_far_less_than_no_strips() -> None:
    """T12: n² + n³/b1 elements against up to 2n³; the untiled product of the same layout finds A in the cache."""
    strips, naive = (
        hwsim.run("course_cpu", name, n=64, math=False, set=SMALL_L1) for name in ("matmul_strips", "matmul_bt")
    )
    assert l1_misses(strips)["A"] + l1_misses(strips)["B"] == (64**2 + 64**3 // 8) // 16
    assert l1_misses(naive)["A"] + l1_misses(naive)["B"] > 7 * (64**2 + 64**3 // 8) // 16
    assert strips.work["loads"] == naive.work["loads"] == 2 * 64**3


def test_t13_t14_strips_and_register_tile_together() -> None:
    """T13: n² + n³/b1, where the last slide prints n²/b1. T14: n³/v2 + n³/v1."""
    result = hwsim.run("course_cpu", "matmul_blocked", n=64, b1=8, b2=8, v1=4, v2=4, set=SMALL_L1)
    assert (l1_misses(result)["A"] + l1_misses(result)["B"]) * 16 == 64**2 + 64**3 // 8 != 64**2 + 64**2 // 8
    assert result.work["loads"] == 64**3 // 4 + 64**3 // 4


def test_t15_the_counts_of_the_model_stand_beside_the_simulated_ones_with_the_reason_for_a_gap() -> None:
    """T15: (n² + n³/b1) elements from DRAM to L1 and (n³/v1 + n³/v2) from L1 to registers."""
    result = hwsim.run("course_cpu", "matmul_blocked", n=64, set=SMALL_L1)
    lines, registers = formula(result, "l1.fills"), formula(result, "loads")
    assert lines["predicted"] * 16 == 64**2 + 64**3 // 8
    assert lines["simulated"] - lines["predicted"] == 64**2 // 16
    assert "leaves C out" in lines["reason"]
    assert registers["predicted"] == registers["simulated"] == 64**3 // 4 + 64**3 // 4
    assert registers["ratio"] == 1
    total = formula(result, "time_s")
    from_dram, from_l1 = 4 * (64**2 + 64**3 // 8), 4 * 2 * 64**3 // 4
    assert total["predicted"] == pytest.approx(from_dram / 25.6e9 + from_l1 / (64 * 2e9))
    assert total["simulated"] == result.time_s
    assert "leaves out arithmetic" in total["reason"]


def test_t17_the_blocked_product_is_the_product() -> None:
    """T17: block 64, three block loops, edges by min()."""
    result = hwsim.run("course_cpu", "matmul_tiled", n=100, tile=64, precision="fp64")
    assert result.verified
    assert result.error is not None
    assert result.error.max_rel < 1e-14


def test_t18_the_trace_of_4x4_with_blocks_of_2_can_be_read_whole() -> None:
    """T18: eight block products of eight steps each; A and B are touched at every step, C before and after each sum."""
    made = kernel("matmul", {"n": 4}, tile=2)
    touched = [
        touch for block in made.blocks() for step in block.steps() for nest in step.nests for touch in nest.addresses()
    ]
    result = hwsim.run("course_cpu", "matmul_tiled", n=4, tile=2)
    assert len(touched) == result.work["loads"] + result.work["stores"] == 2 * 64 + 2 * 32
    first = made.tensors["C"].base, made.tensors["A"].base, made.tensors["B"].base
    assert tuple(address for address, _, _ in touched[:3]) == first


@pytest.mark.parametrize("tile", [2, 4])
def test_t20_blocks_that_do_not_divide(tile: int) -> None:
    """T20: (8x6)@(6x10); the edges are in the counts too."""
    result = hwsim.run("course_cpu", "matmul_tiled", m=8, k=6, n=10, tile=tile)
    assert result.verified
    assert loads(result) == (480, 480, 80 * ceil(6 / tile))
    assert result.output is not None
    assert result.output.shape == (8, 10)


@pytest.mark.parametrize("schedule", [{}, {"tile": 1}, {"order": "kji"}, {"v1": 2, "v2": 2}])
def test_t21_golden_products(schedule: dict[str, Any]) -> None:
    """T21: both products of the notes, simulated on the course's machine."""
    machine = load_machine("course_cpu").spec
    square = kernel(
        "matmul", {"n": 2}, inputs={"A": np.array([[1, 2], [3, 4]]), "B": np.array([[5, 6], [7, 8]])}, **schedule
    )
    row = kernel("matmul", {"m": 1, "n": 1, "k": 3}, inputs={"A": [[1, 2, 3]], "B": [[4], [5], [6]]}, **schedule)
    for made in (square, row):
        simulate(machine, made)
    assert square.output.tolist() == [[19, 22], [43, 50]]
    assert row.output.tolist() == [[32]]


def test_done_when_2_padding_takes_the_set_conflicts_away() -> None:
    """256³ fp32, tile 32: 2n³/(16·32) + n²/16 lines with rows of 272 elements, 72 times as many with rows of 256."""
    padded = hwsim.run("course_cpu", "matmul_tiled", n=256, tile=32, ld=272, math=False)
    plain = hwsim.run("course_cpu", "matmul_tiled", n=256, tile=32, math=False)
    assert padded.memory["l1"].misses == 69_632 == 2 * 256**3 // (16 * 32) + 256**2 // 16
    assert plain.memory["l1"].misses == 5_041_152


def test_done_when_2_explain_says_set_conflicts_which_sets_and_that_padding_helps() -> None:
    assert command("run", "course_cpu", "matmul_tiled", "n=256", "tile=32", "--no-math").code == 0
    words = " ".join(command("explain").out.split())
    assert "set conflicts" in words
    assert "4 of 64 sets (0, 16, 32, 48)" in words
    assert "Padding helps: with rows of 1,088 B (ld=272)" in words
