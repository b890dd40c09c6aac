"""`hwsim run` and `hwsim validate gpu` are one path: for rows of every family both give the same time on the device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hwsim
from hwsim.catalog import load_machine, load_workload
from hwsim.program.contraction import ConvShape
from hwsim.spec.variant import with_parameters
from hwsim.spec.workload import WorkloadSpec
from hwsim.targets.gpu.lower import Conditions
from hwsim.targets.gpu.model import GpuModel
from hwsim.targets.gpu.target import GpuTarget
from hwsim.validation.gpu import covered
from hwsim.validation.gpu_workload import COLUMNS, PIECES, KernelPiece, MeasuredKernel, pieces_of, play_piece
from hwsim.validation.table import read_table, shipped

EACH = 3
"""Rows of each family that are run."""


@cache
def target(machine: str) -> GpuTarget:
    return GpuTarget(load_machine(machine).spec)


def _rows() -> list[MeasuredKernel]:
    """The first rows of each kind of measured kernel; of the ladder the rung that is replayed quickest."""
    path = shipped("gpu.csv")
    found: defaultdict[tuple[str, str], list[MeasuredKernel]] = defaultdict(list)
    for record in read_table(path, COLUMNS):
        row = MeasuredKernel(path, record)
        if covered(row) and (record["op"] != "sgemm_ladder" or record["impl"] == "10_warptile"):
            found[row.family, record["op"]].append(row)
    return [row for rows in found.values() for row in rows[:EACH]]


@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row.family}-{row.record['op']}-{row.name}")
def test_a_run_takes_as_long_as_what_is_validated(row: MeasuredKernel) -> None:
    for piece in pieces_of(target(row.machine).device, row):
        if not isinstance(piece.work, WorkloadSpec):
            continue  # rounding activations to 8 bits has no workload file: it has a kernel, played the same way
        played = play_piece(target(row.machine), KernelPiece(piece.work))
        result = hwsim.run(target(row.machine).machine, piece.work, math=False)
        device = target(row.machine).device
        starting = device.launch_seconds("stream") + (played.launches - 1) * device.launch_seconds("following")
        assert result.time_s - starting == pytest.approx(played.seconds, rel=1e-6, abs=1e-12)


ELSEWHERE = {"attention_backward": {"attention_fused", "attention_unfused", "memory_bound"}}
"""Families whose rows are simulated by kernels of others; gradients of kept scores are products and passes."""


@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row.family}-{row.record['op']}-{row.name}")
def test_a_run_takes_its_error_bar_from_the_family_of_its_rows(row: MeasuredKernel) -> None:
    """The longest kernel of a row belongs, as the lowering says, to the family that the table puts the row into."""
    mine = target(row.machine)
    launches = [
        launch
        for piece in pieces_of(mine.device, row)
        if isinstance(piece.work, WorkloadSpec)
        for launch in mine.crew(mine.prepare(piece.work, math=False), piece.work, conditions=piece.conditions).launches
    ]
    longest = max(launches, key=lambda launch: launch.cost.seconds)
    assert longest.family in ELSEWHERE.get(row.family, {row.family})


def test_every_family_of_the_table_is_among_them() -> None:
    assert {row.record["op"] for row in _rows()} >= set(PIECES) - {"add"}


def test_a_warm_product_is_quicker_than_the_cold_one_that_a_run_starts_with() -> None:
    """The conditions of a measurement are read: what lies in the L2 need not come from DRAM."""
    work = load_workload("matmul").spec
    work = with_parameters(work, {"m": 16, "n": 4096, "k": 2048, "precision": "fp16"})
    warm = KernelPiece(work, Conditions(warm=frozenset({"B"})))
    assert play_piece(target("a100_80"), warm).seconds < 0.8 * play_piece(target("a100_80"), KernelPiece(work)).seconds


def test_the_first_layer_of_resnet_is_the_librarys_convolution() -> None:
    """Three channels are padded to whole vectors, and patches are searched for on the lanes."""
    sizes: dict[str, Any] = {"batch": 32, "ci": 3, "co": 64, "height": 224, "kernel": 7, "stride": 2, "padding": 3}
    result = hwsim.run("a100_40", "conv2d", math=False, precision="fp16", **sizes)
    cost = GpuModel(load_machine("a100_40").spec).conv(ConvShape(3, 64, (224, 224), (7, 7), 32, (2, 2), (3, 3)), "fp16")
    (launch,) = result.work["gpu"]["launches"]
    assert launch["seconds"] == pytest.approx(cost.seconds)


@pytest.mark.parametrize(("workload", "library"), [("softmax", "softmax"), ("layernorm", "layernorm")])
def test_rows_are_given_to_the_librarys_kernel_over_rows(workload: str, library: str) -> None:
    result = hwsim.run("a100_40", workload, math=False, precision="fp16", m=4096, n=4096)
    cost = getattr(GpuModel(load_machine("a100_40").spec), library)(4096, 4096, "fp16")
    (launch,) = result.work["gpu"]["launches"]
    assert launch["name"] == cost.name
    assert launch["seconds"] == pytest.approx(cost.seconds)


def test_each_stage_of_unfused_attention_has_its_own_operations() -> None:
    result = hwsim.run("a100_40", "attention_naive", math=False, precision="fp16", n=96, d=40, heads=3)
    stages = {launch["stage"] for launch in result.work["gpu"]["launches"]}
    assert len(result.work["gpu"]["launches"]) == 3 and len(stages) == 1
    exact = hwsim.run("course_cpu", "attention_naive", math=False, precision="fp32", n=96, d=40, heads=3)
    assert result.work["flops"] == exact.work["flops"]
    assert result.work["macs"] == exact.work["macs"]


def _product(machine: str, n: int, k: int) -> MeasuredKernel:
    """A row of 16 rows of activations whose weights take turns with five others in a graph."""
    about = {"family": "gemm_tensor", "machine": machine, "op": "gemm", "dtype": "bf16", "timing": "cuda_graph"}
    sizes = {"m": "16", "n": str(n), "k": str(k), "latency_us": "1", "__line__": "2"}
    return MeasuredKernel(Path("made_up.csv"), dict.fromkeys(COLUMNS, "") | about | sizes)


@pytest.mark.parametrize(("n", "shares"), [(1024, [1.0]), (2048, [0.46, 0.54]), (4096, [1.0])])
def test_weights_between_half_of_the_l2_and_more_than_it_are_found_in_part(n: int, shares: list[float]) -> None:
    """Six times 7.3, 14.7 or 29.4 MB of weights on L40S, whose L2 has 100.7: all, 0.46 or nothing is found."""
    l40s = target("l40s")
    (piece,) = pieces_of(l40s.device, _product("l40s", n, 3584))
    parts = [piece, *piece.others]
    assert [each.repeat for each in parts] == pytest.approx(shares, abs=0.005)
    assert ["B" in each.conditions.warm for each in parts] == [True, False][: len(parts)] if n < 4096 else [False]
    alone = [play_piece(l40s, replace(each, repeat=1.0, others=())).seconds for each in parts]
    mixed = sum(share * seconds for share, seconds in zip(shares, alone, strict=True))
    assert play_piece(l40s, piece).seconds == pytest.approx(mixed, rel=0.01)
    assert alone == sorted(alone)
