"""`hwsim run`, `explain` and `validate` on machines with arrays, and what they say to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hwsim

from hwsim.catalog import shipped_folder
from hwsim.result import RunResult


@pytest.fixture(autouse=True)
def _own_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwsim.cli.run.last_run_files", lambda: [tmp_path / "cache" / "last-run.json"])


def test_the_first_screen_shows_utilisation_traffic_and_the_bound() -> None:
    outcome = hwsim("run", "tpu_v1", "matmul", "n=1024")
    assert (outcome.code, outcome.err) == (0, "")
    for fact in (
        "matmul on tpu_v1: n=1024 int8 scale=tensor, 1 array of 256 x 256, ws, pipelined",
        "✓ verified",
        "of the peak of 1 array (91.8 TOP/s)",
        "utilisation",
        "mapping 100 %",
        "tiles of m 256 x n 256 x k 256",
        "unified_buffer",
        "traffic of the array",
        "why: cycles of the array",
        "values stream through the array",
        "waits for weights",
        "Bound by",
        "if all parts overlapped",
        "next  hwsim run tpu_v1 matmul n=1024",
    ):
        assert fact in outcome.out, fact
    assert len(outcome.out.splitlines()) <= 45


@pytest.mark.parametrize("workload", ["conv2d", "attention_fused", "resnet_block", "transformer_block"])
def test_the_workloads_of_the_course_run_on_the_first_tpu(workload: str) -> None:
    outcome = hwsim("run", "tpu_v1", workload)
    assert outcome.code == 0, outcome.err
    assert "✓ verified" in outcome.out
    assert "utilisation" in outcome.out


def test_settings_of_the_array_change_it() -> None:
    changes = ("array.rows=12", "array.columns=14", "array.dataflow=os")
    outcome = hwsim("run", "scalesim_32", "matmul", "n=64", *(word for each in changes for word in ("--set", each)))
    assert outcome.code == 0, outcome.err
    assert "1 array of 12 x 14, os, serial" in outcome.out


def test_a_mapping_can_be_asked_for() -> None:
    outcome = hwsim("run", "scalesim_32", "matmul", "n=128", "mapping.order=knm", "mapping.tile_m=64", "--json", "-")
    data = json.loads(outcome.out)
    (only,) = data["work"]["array"]["passes"]
    assert (only["order"], only["tile"]["m"]) == ("knm", 64)
    assert RunResult.from_json(outcome.out).to_json() == outcome.out


def test_intermediates_stay_on_the_chip_unless_told_otherwise() -> None:
    kept, sent = (
        json.loads(hwsim("run", "edge_npu", "mlp", f"mapping.keep={keep}", "--json", "-").out)
        for keep in ("auto", "none")
    )
    assert kept["work"]["array"]["levels"]["act"] == "sram"
    assert sent["work"]["array"]["levels"]["act"] == "dram"
    assert kept["time_s"] < sent["time_s"]


def test_explain_tells_tiles_use_and_traffic() -> None:
    hwsim("run", "edge_npu", "mlp")
    outcome = hwsim("explain")
    assert outcome.code == 0, outcome.err
    for title in ("How the cells were used", "Which tiles", "What went to and from main memory", "Energy, by cause"):
        assert title in outcome.out
    assert hwsim("explain", "--json").code == 0


def test_plots_and_timelines_are_made(tmp_path: Path) -> None:
    outcome = hwsim(
        "run",
        "gemmini16",
        "matmul",
        "n=64",
        "--plot",
        str(tmp_path / "run.png"),
        "--timeline",
        str(tmp_path / "run.json"),
    )
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "run.png").stat().st_size > 1000
    lanes = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert "array[0]" in lanes and "weights from dram" in lanes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "array.rows=0"), "array.rows: must be at least 1, found 0"),
        (("--set", "array.dataflow=wss"), "array.dataflow: 'wss' is not one of is, os, ws; did you mean 'ws'?"),
        (("--set", "array.folding=serail"), "did you mean 'serial'?"),
        (("precision=fp16",), "has no rate for fp16; its formats are int8, bf16"),
        (("mapping.order=mn",), "mapping.order=mn: must be auto | mnk | mkn | nmk | nkm | kmn | knm"),
        (("mapping.tile_m=0",), "mapping.tile_m=0: must be a whole number of at least 1"),
        (("n=8192", "mapping.tile_m=4096", "mapping.tile_n=4096", "--no-math"), "the largest square tile that fits is"),
        (("--set", "array.activations=unified_bufer"), "did you mean 'unified_buffer'?"),
    ],
)  # fmt: skip
def test_bad_input_is_told_with_what_is_allowed(words: tuple[str, ...], says: str) -> None:
    outcome = hwsim("run", "tpu_v1", "matmul", *words)
    assert outcome.code == 2
    assert says in outcome.err, outcome.err
    assert "Traceback" not in outcome.err


def changed(tmp_path: Path, *changes: tuple[str, str]) -> str:
    text = (shipped_folder("machine") / "gemmini16.yaml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "gemmini16.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "int8: {rate: 1, accumulate: int32}",
            "int8: {accumulate: int32}",
            "formats.int8.rate: missing; it is: Multiply",
        ),
        ("int8: {rate: 1, accumulate: int32}", "int8: {rate: 0, accumulate: int32}", "rate: must be at least 1e-06"),
        ("int8: {rate: 1,", "int9: {rate: 1,", "'int9' is not one of the number formats"),
        ("accumulate: int32}", "accumulate: int23}", "'int23' is not one of the number formats"),
        ("holds: [input, weight, output]", "holds: [input, output]", "no scratchpad holds 'weight'"),
        ("    rows: 16\n", "    rows: 16\n    count: 2\n", "2 arrays work on one tile together: write 'all', found 1"),
        ("    rows: 16\n", "    row: 16\n", "did you mean 'rows'?"),
        ("kind: systolic", "kind: systollic", "did you mean 'systolic'?"),
    ],
)
def test_a_bad_file_is_told_with_its_line(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = changed(tmp_path, (old, new))
    outcome = hwsim("check", path)
    assert outcome.code == 2
    assert says in outcome.err, outcome.err
    assert "gemmini16.yaml:" in outcome.err


def test_a_mapping_is_refused_where_there_is_no_array() -> None:
    outcome = hwsim("run", "course_cpu", "matmul", "n=32", "mapping.order=mnk")
    assert outcome.code == 2
    assert "mapping.order means nothing on course_cpu" in outcome.err


def test_a_chase_through_pointers_is_no_work_for_an_array() -> None:
    outcome = hwsim(
        "run",
        "scalesim_32",
        "pointer_chase",
        "--set",
        "array.formats.fp64.rate=1",
        "--set",
        "array.formats.fp64.accumulate=fp64",
    )
    assert outcome.code == 2
    assert "run it on a machine with a CPU core" in outcome.err


def test_validate_has_the_families() -> None:
    outcome = hwsim("validate", "systolic", "--sample", "2")
    assert outcome.code == 0
    assert "holds: cycles, reads, writes, mapping" in outcome.out
    outcome = hwsim("validate", "systolic", "--data", "missing.csv")
    assert outcome.code == 2


def test_a_bad_table_is_told_with_line_and_column(tmp_path: Path) -> None:
    from hwsim.validation.table import shipped

    lines = shipped("systolic.csv").read_text(encoding="utf-8").splitlines()
    table = tmp_path / "mine.csv"
    place = lines[0].split(",").index("dataflow")
    cells = lines[1].split(",")
    cells[place] = "rs"
    table.write_text("\n".join([lines[0], ",".join(cells)]) + "\n", encoding="utf-8")
    outcome = hwsim("validate", "systolic", "--data", str(table))
    assert outcome.code == 2
    assert "mine.csv:2: dataflow: 'rs' is not one of ws, os, is" in outcome.err


THROTTLED = ("tpu_v4", "matmul", "n=1024", "distribution=normal", "--no-math")
"""Eight arrays of 128 x 128 at 1.05 GHz: 275 TFLOP/s, as `hwsim show` has it; the power limit lowers the clock."""


def test_the_peak_of_a_run_that_power_slows_is_said_at_full_clock_and_at_what_is_left() -> None:
    outcome = hwsim("run", *THROTTLED, "precision=bf16")
    text = " ".join(outcome.out.split())
    assert "275 TFLOP/s" in hwsim("show", "tpu_v4").out
    assert "of the peak of 8 arrays (275 TFLOP/s at full clock)" in text
    assert "79.2 % of the 250 TFLOP/s at the 954.45 MHz that the power limit leaves" in text
    assert "utilisation 79.2 % =" in text


def test_shares_of_the_peak_are_comparable_between_clocks() -> None:
    """Two times 1024³ operations over the time, of 8 x 128² cells at 1.05 GHz, whatever the clock fell to."""
    outcome = hwsim("compare", *THROTTLED, "precision=bf16,int8", "--json", "-")
    for row in json.loads(outcome.out):
        assert row["utilisation"] == pytest.approx(2 * 1024**3 / row["time_s"] / (2 * 8 * 128**2 * 1.05e9))
    told = " ".join(hwsim("compare", *THROTTLED, "precision=bf16,int8").out.split())
    assert "lowered the clock of tpu_v4 to 90.9 %; of peak is of that at full clock" in told


def test_waits_that_exceed_the_lower_bound_are_explained() -> None:
    hwsim("run", *THROTTLED, "precision=bf16")
    text = " ".join(hwsim("explain").out.split())
    assert "the lower bound leaves them out" in text
    hwsim("run", "tpu_v1", "matmul", "n=1024", "--no-math")
    assert "the lower bound leaves them out" not in " ".join(hwsim("explain").out.split())


def test_results_that_are_wider_than_their_format_are_named() -> None:
    """A and B in a byte each, C in four: as many bytes as three matrices of two bytes."""
    told = hwsim("compare", "tpu_v4", "matmul", "n=512", "precision=bf16,int8", "distribution=normal", "--no-math").out
    assert told.count("1.57 MB   1.57 MB") == 2
    assert "C is stored in 32 bits, 4 times as wide as int8" in told
    assert "C is stored as int32" in hwsim("run", "scalesim_32", "matmul", "n=64", "precision=int8", "scale=none").out
    assert "is stored" not in hwsim("run", "tpu_v4", "matmul", "n=64", "precision=bf16").out


def test_a_comparison_says_which_format_stands_for_another() -> None:
    told = hwsim("compare", "tpu_v1", "matmul", "n=64", "precision=bf16", "--no-math").out
    assert "tpu_v1 computes in 16-bit integers: bf16 stands in for them" in told


@pytest.mark.parametrize(
    ("machine", "precision", "unit"),
    [("tpu_v4", "bf16", "TFLOP/s"), ("tpu_v4", "int8", "TOP/s"), ("a100_40", "fp16", "TFLOP/s"),
     ("a100_40", "int8", "TOP/s"), ("a100_40", "w4a16", "TFLOP/s")],
)  # fmt: skip
def test_operations_are_flop_where_numbers_have_a_floating_point_and_op_where_not(
    machine: str, precision: str, unit: str
) -> None:
    out = hwsim("run", machine, "matmul", "n=2048", f"precision={precision}", "--no-math").out
    line = next(line for line in out.splitlines() if "% of the peak" in line)
    assert f" {unit}," in line
    assert "op/byte" in out
    assert ("flop/byte" in out) == (unit == "TFLOP/s")


def test_a_bandwidth_is_shown_in_the_unit_that_says_it_shortest() -> None:
    """30 GiB/s are 32.21225472 GB/s."""
    out = hwsim("show", "tpu_v1").out
    assert "30 GiB/s" in out
    assert "32.2122" not in out


def test_the_bar_of_energy_names_its_shades() -> None:
    out = hwsim("run", *THROTTLED, "precision=bf16").out
    drawn = next(line for line in out.splitlines() if "██" in line and "%" not in line)
    named = " ".join(out[out.index("dynamic") : out.index("static")].split())
    for shade, part in zip("█▓▒░", ("arithmetic", "dram", "vmem", "operand supply"), strict=True):
        assert shade in drawn
        assert f"{shade} {part} " in named


def test_a_sweep_says_why_error_bars_change(tmp_path: Path) -> None:
    """7 µs and 11 µs are of two decades, which were measured apart."""
    sizes = ("n=1024", "k=1024", "precision=bf16", "--no-math", "--out", str(tmp_path / "s.db"))
    told = " ".join(hwsim("sweep", "tpu_v3", "matmul", "m=256,512", *sizes).out.split())
    assert "−15 to +36 %" in told and "−26 to +64 %" in told
    assert "error bars differ where kernels are of another family or decade of time" in told
    assert "decade of simulated time" in " ".join(hwsim("explain", "error", "bar").out.split())
    assert "error bars differ" not in hwsim("sweep", "tpu_v3", "matmul", "m=128,256", *sizes).out


def test_a_bar_of_few_rows_says_that_it_is_mostly_that_of_other_machines() -> None:
    out = " ".join(
        hwsim("run", "a100_40", "attention_fused", "n=4096", "heads=16", "precision=fp16", "--no-math").out.split()
    )
    assert "2 measured rows that were not fitted, so few that those of 7 other machines count more" in out
    many = hwsim("run", "h100", "matmul", "n=4096", "precision=fp16", "--no-math").out
    assert "measured rows that were not fitted\n" in many


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("a100_40", "with its registers, shared memory and control, which measured power does not tell apart"),
        ("ladder_gpu", "with the shared memory and the caches that feed it, which are not counted apart"),
        ("ladder_asic", ""),
    ],
)
def test_what_the_price_of_a_multiply_add_holds_is_said_on_gpus(machine: str, said: str) -> None:
    """A GPU's power was measured as a whole; the prices of the ladder name control apart."""
    for words in (("run", machine, "matmul", "n=128", "precision=fp16"), ("explain",)):
        text = " ".join(hwsim(*words).out.split())
        assert said in text
        assert ("arithmetic: a multiply-add" in text) == bool(said)
    assert "holds its registers, shared memory and control" in " ".join(hwsim("explain", "arithmetic").out.split())


def test_no_number_is_parted_from_its_percent_sign() -> None:
    for machine, workload in (("tpu_v3", "matmul"), ("ladder_gpu", "matmul"), ("course_cpu", "matmul_tiled")):
        lines = hwsim("run", machine, workload, "n=64").out.splitlines()
        assert not [line for line in lines if line.strip().startswith("%")]
