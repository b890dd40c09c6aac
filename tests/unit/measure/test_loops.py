"""Loops as source: the same places in the same order as the simulator walks, run in plain Python on small sizes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import hwsim
from hwsim.api import resolve_machine, resolve_workload
from hwsim.catalog import load_machine
from hwsim.cli.app import main
from hwsim.cli.measure import Compared, _verdict
from hwsim.errors import InputError
from hwsim.measure import here
from hwsim.measure.calibrate import Calibration, machine_file
from hwsim.measure.here import Computer, KnownCache, this_computer
from hwsim.measure.loops import Bench, LoopTiming, make_job
from hwsim.measure.probes import reading_of
from hwsim.measure.worker import HARDWARE, ProcessorCounters
from hwsim.results.metrics import about
from hwsim.target import find_target
from hwsim.units import seconds


class Watched:
    """A tensor that remembers which of its bytes were touched."""

    dtype = np.dtype(np.float32)

    def __init__(self, start: int, seen: list[int]) -> None:
        self.start, self.seen = start, seen

    def __getitem__(self, place: Any) -> float:
        self.seen.append(self.start + int(place) * 4)
        return 1.0

    def __setitem__(self, place: Any, value: float) -> None:
        self.seen.append(self.start + int(place) * 4)


def touched(workload: str, **settings: object) -> list[int]:
    """Addresses in the order of the written source."""
    job, _ = make_job(resolve_machine("course_cpu"), resolve_workload(workload, settings))
    seen: list[int] = []
    for stage in job["stages"]:
        for share in stage:
            for number, bounds in share:
                function = job["functions"][number]
                room: dict[str, Any] = {"U": int}
                exec(function["text"], room)
                tensors = [Watched(job["tensors"][name][0], seen) for name in function["tensors"]]
                room[function["name"]](*tensors, *bounds)
    return seen


def walked(workload: str, **settings: object) -> list[int]:
    """Addresses in the order of the simulator."""
    target = find_target(resolve_machine("course_cpu"))
    kernel = target.prepare(resolve_workload(workload, settings), math=False)
    steps = [step for block in kernel.blocks() for step in block.steps()]
    return [address for step in steps for nest in step.nests for address, _, _ in nest.addresses()]


@pytest.mark.parametrize(
    ("workload", "settings"),
    [
        ("matmul_naive", {"n": 6}),
        ("transpose_tiled", {"m": 8, "n": 12, "tile": 4}),
        ("copy", {"n": 50, "vector": False}),
        ("matmul_bt", {"n": 5}),
    ],
)
def test_source_touches_what_the_simulator_walks_in_its_order(workload: str, settings: dict[str, object]) -> None:
    assert touched(workload, **settings) == walked(workload, **settings)


def test_tiles_and_orders_touch_the_same_places_as_often() -> None:
    """A compiler keeps what does not move in a register, which source cannot say; so as a set."""
    for settings in ({"order": "ikj"}, {"tile": 4, "order": "ijk"}, {"v1": 2, "v2": 2}):
        assert set(touched("matmul_naive", n=8, **settings)) == set(walked("matmul_naive", n=8, **settings))


def test_what_numba_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="looked up"):
        make_job(resolve_machine("zen4"), resolve_workload("embedding", {}))
    with pytest.raises(InputError, match="fp64, fp32, int32"):
        make_job(resolve_machine("zen4"), resolve_workload("copy", {"precision": "bf16"}))


def test_a_copy_is_measured() -> None:
    with Bench() as bench:
        found = bench.measure("copy", {"n": 1 << 16, "vector": False}, repeats=3, cold=False)
    assert 1e-7 < found.seconds <= found.median < 1


def test_a_calibrated_file_is_a_machine(tmp_path: Path) -> None:
    """With the fields that calibrate writes, it loads without complaint and says what was measured."""
    computer = Computer("Some CPU", 4, this_computer().caches, 256, "zen3")
    found = Calibration(computer, 3e9, clock=("3 GHz", "measured, median of the faster half of 9, spread 1%"))
    found.core["latency.add"] = ("3", "measured, median of the faster half of 9, spread 1%")
    found.core["tlb"] = ("{entries: 64, page: 4 KiB, miss: 2}", "measured")
    found.levels["l1"] = {"latency": ("5 cycles", "measured"), "set_refill": ("9.5 cycles", "measured")}
    found.left_out.append("dram.latency: spread 40%, too noisy; left to zen3")
    text = machine_file(found, "here")
    assert "# Left out: dram.latency" in text
    file = tmp_path / "here.yaml"
    file.write_text(text)
    machine = load_machine(file).spec
    assert machine.caches[0].latency is not None and machine.clocks[0].frequency == 3_000_000_000


def test_what_the_processor_counts_is_read_or_said_to_be_unreadable() -> None:
    """Linux itself counts CPU time everywhere; a number that no event has is refused with a reason."""
    with ProcessorCounters({"clock": (1, 1)}) as counters:
        sum(range(100_000))
    assert counters.counts["clock"] > 0 if counters.counts else counters.reason
    with ProcessorCounters({"none": (HARDWARE, 1 << 40)}) as counters:
        pass
    assert counters.counts == {} and counters.reason


def test_a_sweep_needs_several_values_and_one_point_has_none() -> None:
    assert main(["measure", "matmul_tiled", "n=16", "tile=4,8"]) == 2
    assert main(["measure", "sweep", "matmul_tiled", "n=16"]) == 2
    assert main(["measure", "copy", "n=16", "--plot", "copy.png"]) == 2


def test_a_sweep_draws_both_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "tiles.svg"
    words = ["measure", "sweep", "matmul_tiled", "n=16", "tile=4,8", "--repeats", "1", "--plot", str(picture)]
    assert main([*words, "--json", str(tmp_path / "tiles.json")]) == 0
    shown = capsys.readouterr().out
    assert "measured" in shown and "simulated" in shown and "fastest:" in shown
    assert picture.stat().st_size > 1000
    rows = json.loads((tmp_path / "tiles.json").read_text())
    assert [row["parameters"]["tile"] for row in rows] == [4, 8]


def test_times_of_measured_curves_are_drawn_with_their_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr("hwsim.results.plot.sweep.plot_lines", lambda lines, metrics, *_, **__: drawn.extend(metrics))
    words = ["measure", "sweep", "copy", "n=16,32", "--repeats", "1", "--plot", str(tmp_path / "copy.png")]
    assert main(words) == 0
    assert [about(name).unit for name in drawn] == ["s"]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["measure", *words, "--repeats", "1"]) == 0
    return capsys.readouterr().out


def test_the_screen_says_what_hwsim_run_prints_and_why_it_differs(capsys: pytest.CaptureFixture[str]) -> None:
    """Scalar loops are compiled with products and sums apart; of four cycles for both, one waits for three of a sum."""
    words = ("zen4", "matmul_naive", "n=32")
    fused = hwsim.run("zen4", "matmul_naive", n=32, math=False).time_s
    apart = hwsim.run("zen4", "matmul_naive", n=32, math=False, set={"core.ports.fma": 0}).time_s
    assert fused != apart
    text = shown(capsys, *words)
    assert f"simulated  {seconds(apart)}" in text
    assert f"hwsim run  {seconds(fused)}" in text and "multiplications and additions of scalar loops apart" in text
    swept = shown(capsys, "sweep", *words, "order=ijk,ikj")
    assert "hwsim run simulates them fused" in swept
    for same in (("zen4", "matmul_naive", "n=32", "vector=true", "order=ikj"), ("zen4", "transpose", "n=32")):
        assert "hwsim run " not in shown(capsys, *same).replace("hwsim run here", "")


def test_the_screen_names_every_size_and_the_machine_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        here, "this_computer", lambda: Computer("Some CPU", 8, (), 256, "zen3")
    )  # what a computer is, not what a loop takes
    text = shown(capsys, "layernorm", "n=64")
    assert text.startswith("layernorm m=128 n=64\n")
    assert "zen3 is the stock machine nearest to this computer (Some CPU)" in text and "hwsim calibrate" in text
    assert "zen4 is a stock machine" in shown(capsys, "zen4", "transpose", "n=16")
    file = tmp_path / "here.yaml"
    file.write_text("format: 1\nname: here\nextends: zen4\n")
    text = shown(capsys, str(file), "transpose", "n=16")
    assert f"simulated on {file}" in text and "calibrate" not in text


@pytest.mark.parametrize(
    ("measured_s", "words"), [(1.0, "within a factor of 1.5"), (1.6, "within"), (0.6, "a factor of 1.67 apart")]
)
def test_the_screen_says_whether_a_point_lies_within_the_known_spread(measured_s: float, words: str) -> None:
    result = cast(Any, SimpleNamespace(time_s=1.0 if measured_s != 1.6 else 1.2))
    point = Compared(LoopTiming(measured_s, measured_s, 1), result, result)
    assert _verdict(point).startswith(words)


def test_measuring_says_at_once_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "zen4", "transpose", "n=16", "--repeats", "1"]) == 0
    assert capsys.readouterr().err.startswith("measuring transpose: 1 of 1")


def test_caches_are_read_from_the_folder_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first level, one for instructions, two of unknown ways, one that says no size."""
    written = {
        "index0": {"type": "Data", "level": "1", "size": "48K", "coherency_line_size": "64",
                   "ways_of_associativity": "12"},
        "index1": {"type": "Instruction", "level": "1", "size": "32K"},
        "index2": {"type": "Unified", "level": "2", "size": "2M", "ways_of_associativity": "0",
                   "coherency_line_size": "128"},
        "index3": {"type": "Unified", "level": "3", "size": "32M"},
        "index4": {"type": "Unified", "level": "4", "size": ""},
    }  # fmt: skip
    for folder, files in written.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text + "\n")
    monkeypatch.setattr(here, "CACHES", tmp_path)
    assert here._sys_caches() == (
        KnownCache(1, 48 * 1024, 64, 12), KnownCache(2, 2 * 1024**2, 128, None),
        KnownCache(3, 32 * 1024**2, 64, None),
    )  # fmt: skip


def test_a_mac_answers_questions_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that it does not know ends with an error, and what it prints then is no answer."""
    says = {
        "hw.cachelinesize": "128", "hw.perflevel0.l1dcachesize": "131072", "hw.l2cachesize": "16777216",
        "hw.physicalcpu": "8", "machdep.cpu.brand_string": "Apple M2",
    }  # fmt: skip

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        known = words[-1] in says
        return subprocess.CompletedProcess(words, 0 if known else 1, says.get(words[-1], "unknown oid") + "\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(here.platform, "machine", lambda: "arm64")
    caches = (KnownCache(1, 131072, 128, None), KnownCache(2, 16777216, 128, None))
    assert here._macos() == Computer("Apple M2", 8, caches, 128, "apple_m2")
    monkeypatch.setattr(here.platform, "machine", lambda: "x86_64")
    assert (here._macos().vector_bits, here._macos().nearest) == (256, "skylake_avx512")


@pytest.mark.parametrize(
    ("features", "bits"), [({"avx512f", "avx2"}, 512), ({"avx2"}, 256), ({"avx"}, 256), ({"sse2"}, 128), (set(), 128)]
)
def test_the_widest_vectors_count(features: set[str], bits: int) -> None:
    assert here._vector_bits(features) == bits


def test_the_spread_of_a_reading_is_how_far_it_moves_between_moments() -> None:
    """The fastest eighth alone would agree with itself, however slow every other moment was."""
    assert reading_of([[1.0] * 8] * 8).spread == 0
    moved = reading_of([[1.0] * 8, [1.3] * 8] * 4)
    assert (moved.value, moved.repeats) == (1.0, 64)
    assert moved.spread == pytest.approx(0.3)
    assert reading_of([[1.0, 1.1, 1.2, *[9.0] * 21]]).spread == pytest.approx(0)
    assert reading_of([[1.0, 1.1, 1.3, 1.3, *[9.0] * 28]]).spread == pytest.approx(0.2 / 2.2)
