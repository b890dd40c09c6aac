"""Sweeping, tuning and comparing: rows A6, A8, A11, M7, M8, T6, T16, T19, V3, V4, X2, X4, X5, H1-H4 and E5."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hwsim
from hwsim.api import reuse_histogram
from hwsim.results.explanation import ALONE, CAPACITY, CONFLICT, tile_limits
from hwsim.sweep.compare import LADDERS, ladder_runs, run_named
from hwsim.sweep.grid import make_request
from hwsim.sweep.result_set import ResultSet
from hwsim.sweep.store import MEMORY, ResultStore
from hwsim.sweep.tune import find_best
from tests.cli.command_line import hwsim as command


@pytest.fixture(scope="module")
def tiles() -> ResultSet:
    """The first command of the README, without math."""
    page = Path(hwsim.__file__).parents[1] / "README.md"
    line = next(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("$ hwsim sweep"))
    _, _, _, machine, workload, *words = line.split()
    parameters = dict(word.split("=", maxsplit=1) for word in words if "=" in word)
    return hwsim.sweep(machine, workload, math=False, executor="inprocess", **parameters)


BEST = {"fp32": 32, "bf16": 64, "int8": 128}
"""A column of B lies in 4, 8 and 16 sets of 8 ways, so a tile of B fits up to 32, 64 and 128 rows."""


@pytest.mark.parametrize("metric", ["time", "energy"])
def test_t19_the_best_tile_moves_with_the_size_of_an_element(tiles: ResultSet, metric: str) -> None:
    """T19: in time and in energy the curve is a U; beyond the last tile that fits, conflicts cost three times."""
    best, least = [], []
    for precision, last in BEST.items():
        values = {row["tile"]: row[metric] for row in tiles.where(precision=precision)}
        best.append(min(values, key=lambda tile: values[tile]))
        least.append(values[best[-1]])
        assert best[-1] in (last // 2, last)
        assert values[8] > 1.4 * least[-1] and values[2 * last] > 2.5 * least[-1]
    assert best == sorted(set(best)), "it moves to larger tiles"
    assert least == sorted(least, reverse=True), "narrower numbers are faster and take less energy"


def test_t19_the_limits_in_the_plot_explain_it(tiles: ResultSet) -> None:
    """The best tile is the largest whose B fits its sets; by capacity alone (3·tile²) it could be larger."""
    for precision, expected in BEST.items():
        limits = tile_limits(tiles.result(tiles.where(precision=precision, tile=32)[0]))
        first = {limit.kind: limit.tile for limit in limits if limit.level == "l1"}
        assert first[CONFLICT] == expected / 2 < expected == first[ALONE] < 2 * first[CAPACITY]
    figure = tiles.plot("lines")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert {"time", "energy"} <= set(titles)
    rows = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert "B fits sets of l1" in rows


def test_t19_with_padded_rows_larger_tiles_win() -> None:
    """Rows of 272 elements fall into all sets: no wall at 64 any more, some four times as fast there."""
    plain, padded = (
        hwsim.run("course_cpu", "matmul_tiled", n=256, ld=ld, tile=64, vector=True, math=False) for ld in (None, 272)
    )
    assert plain.time_s > 3 * padded.time_s
    assert (plain.energy_j or 0) > 3 * (padded.energy_j or 0)


def test_a6_the_fused_program_is_faster_when_memory_bound(tmp_path: Path) -> None:
    """A6: `hwsim compare` of the two."""
    target = tmp_path / "c.json"
    done = command("compare", "course_cpu", "unfused,fused", "n=131072", "--json", str(target))
    assert done.code == 0
    rows = json.loads(target.read_text())
    assert [row["bound"] for row in rows] == ["bandwidth of dram"] * 2
    assert 1.6 < rows[1]["speed_up"] < 2.2
    assert rows[1]["dram.bytes"] < rows[0]["dram.bytes"]


def test_a8_no_run_is_above_its_roof(tmp_path: Path) -> None:
    """A8: attainable = min(peak, intensity × bandwidth), at every level; streaming add lies on the roof of DRAM."""
    target = tmp_path / "r.json"
    assert command("roofline", "course_cpu", "add,matmul_parallel", "n=256", "--json", str(target)).code == 0
    data = json.loads(target.read_text())
    for spot in data["spots"]:
        assert spot["flops_per_s"] <= 1.001 * min(
            max(data["ceilings"].values()), spot["intensity"] * data["roofs"][spot["level"]]
        )
    assert command("roofline", "course_cpu", "add", "n=1048576", "--json", str(target)).code == 0
    far = next(spot for spot in json.loads(target.read_text())["spots"] if spot["level"] == "dram")
    assert far["flops_per_s"] == pytest.approx(far["intensity"] * 25.6e9, rel=0.05)


def test_a11_how_much_a_step_of_fusion_brings_depends_on_the_machine() -> None:
    """A11: one pass instead of three is faster on every machine, by a factor that the machine decides."""
    done = command("ladder", "fusion", "course_cpu,cortex_a78,a100_40", f"n={2**19}")
    rows = [line for line in done.out.splitlines() if line.startswith(("three", "vectors", "one")) and "×" in line]
    gains = [float(word.rstrip("×")) for line in rows for word in line.split() if word.endswith("×")]
    course, phone, gpu = gains[:3], gains[3:6], gains[6:]
    assert course == sorted(course) and phone == sorted(phone) and len(gpu) == 2
    fused = [course[2] / course[1], phone[2] / phone[1], gpu[1] / gpu[0]]
    assert min(fused) > 1.1, "one pass as it is printed"
    assert max(fused) > 1.05 * min(fused)


def test_m7_a_tile_that_does_not_fit_is_pruned_by_the_named_rule() -> None:
    """M7: sizes of caches and registers are constraints on the choice of tiles."""
    request = make_request("course_cpu", "matmul_register", {"n": 24, "v1": "2,4,8", "v2": "2,4,8"}, {})
    search = find_best(request, "loads", ResultStore(MEMORY))
    assert list(search.pruned) == ["registers: regs has 16, and the register tile needs more"]


def test_m8_neighbours_are_used_together() -> None:
    """M8: down a column every use of a line is far from the last one; along a row 15 of 16 uses follow at once."""
    shares = {}
    for workload in ("sum_rows", "sum_columns"):
        histogram = reuse_histogram(hwsim.run("course_cpu", workload, n=64))
        shares[workload] = histogram.counts[0] / histogram.accesses if histogram.counts else 0.0
    assert shares["sum_rows"] == pytest.approx(15 / 16)
    assert shares["sum_columns"] == 0


def test_t6_tune_answers_how_to_set_v1_and_v2() -> None:
    """T6: 32 registers, 4 x 5 (29 of them); the command line says so."""
    words = ("matmul_register", "n=20", "v1=1..8", "v2=1..8", "--for", "loads", "--set", "regs.count=32", "--json", "-")
    best = json.loads(command("tune", "course_cpu", *words).out)["best"]
    assert {best["v1"], best["v2"]} == {4, 5}


def test_t16_six_tile_sizes_are_tuned_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: register tile, and tiles for two caches; the winner beats what one would guess first."""
    axes = {"n": 16, "v1": "1,2", "v2": "1,2", "b1": "2,4", "b2": "2,4", "c1": "4,8,16", "c2": "4,8,16"}
    caches = {"l1.size": "512 B", "l1.ways": "full", "l2.size": "2 KiB", "l2.ways": "full"}
    search = find_best(
        make_request("course_cpu", "matmul_strips", axes, caches, math=False), "time", ResultStore(MEMORY)
    )
    assert search.candidates == 144
    assert search.simulated <= search.candidates // 2
    guess = hwsim.run("course_cpu", "matmul_strips", set=caches, n=16, v1=1, v2=1, b1=2, b2=2, c1=16, c2=16)
    assert search.best["time"] < guess.time_s
    assert {"v1", "v2", "b1", "b2", "c1", "c2"} <= set(search.best.coordinates)


@pytest.mark.parametrize("c", [16, 32])
def test_t16_a_tile_for_the_second_cache_divides_what_dram_brings(c: int) -> None:
    """T16: with strips of c1 and c2 rows in L2, A comes once, B once for each c1 rows, C once: (2n² + n³/c1)/16 lines.

    L1 sees what the strips inside decide, whatever is around them.
    """
    caches = {"l1.size": "4 KiB", "l1.ways": "full", "l2.size": "64 KiB", "l2.ways": "full"}
    size = {"n": 128, "b1": 4, "b2": 4, "math": False}
    inside, both = (
        hwsim.run("course_cpu", "matmul_strips", set=caches, **size, **tile) for tile in ({}, {"c1": c, "c2": c})
    )
    assert both.memory["l2"].misses == (2 * 128**2 + 128**3 // c) // 16 < inside.memory["l2"].misses
    assert both.memory["l1"].misses == inside.memory["l1"].misses


def test_v3_v4_x5_the_ladder_climbs_in_the_order_of_the_notes() -> None:
    """V3, V4, X5: vectorise, then memory, then cores; each rung is faster. The gap is reported, not promised."""
    (steps,) = ladder_runs(LADDERS["matmul"], (), {"n": 128}).values()
    times = [run.time_s for run in run_named(steps).values()]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[1] > 5
    assert times[0] / times[-1] > 50


def test_x2_four_variants_on_50_by_50_in_one_table() -> None:
    """X2: baseline, vectorised, cache-optimised, parallel."""
    done = command("compare", "course_cpu", "matmul_naive,matmul_simd,matmul_tiled,matmul_parallel", "n=50")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines() if line.startswith("matmul_") and "×" in line]
    assert [line[0] for line in lines] == ["matmul_naive", "matmul_simd", "matmul_tiled", "matmul_parallel"]
    times = [hwsim.run("course_cpu", line[0], n=50).time_s for line in lines]
    printed = [float(word.rstrip("×")) for line in lines for word in line if word.endswith("×")]
    assert printed == pytest.approx([times[0] / time for time in times], rel=0.01)
    assert printed[0] == 1 < printed[1] < printed[3]


def test_x4_students_compute_speed_ups_themselves() -> None:
    """X4: results as plain dictionaries."""
    rows = hwsim.sweep("course_cpu", ["matmul_naive", "matmul_simd"], n=16).to_dicts()
    speed_up = rows[0]["time_s"] / rows[1]["time_s"]
    assert speed_up > 1


def test_h4_every_comparison_has_the_goals_as_columns() -> None:
    """H4: fast, memory-efficient, energy-efficient: time, peak memory, energy, utilisation."""
    (row,) = json.loads(command("compare", "course_cpu", "matmul_tiled", "n=16", "--json", "-").out)
    assert {"time_s", "energy_j", "peak_memory_bytes", "utilisation", "edp_js", "error_max_rel"} <= row.keys()


def test_h3_kinds_of_machines_stand_side_by_side(tmp_path: Path) -> None:
    """H1 to H3: naive and fused attention on a CPU, a GPU, a TPU and a phone core, in one command, with its plot."""
    machines, plot = "course_cpu,a100_40,tpu_v1,cortex_a78", tmp_path / "c.png"
    words = ("compare", machines, "attention_naive,attention_fused", "n=64", "--plot", str(plot), "--json", "-")
    rows = json.loads(command(*words).out)
    assert len(rows) == 8
    assert plot.stat().st_size > 10_000


def test_e5_more_specialised_hardware_takes_less_energy_for_the_same_product() -> None:
    """E5: programmable, vectors, GPU and DSP, FPGA, fixed function; the order is the test, the ratios are reported."""
    (steps,) = ladder_runs(LADDERS["specialisation"], (), {"n": 128}).values()
    energy = {name: run.energy_j or 0.0 for name, run in run_named(steps).items()}
    assert energy["scalar core"] > energy["vectors"] > max(energy["GPU"], energy["signal processor"])
    assert min(energy["GPU"], energy["signal processor"]) > energy["FPGA"] > energy["fixed function"] > 0
