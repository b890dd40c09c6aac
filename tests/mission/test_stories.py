"""What a user reads: commands of the first hour, and the lesson that their screens and pictures have to tell."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import hwsim
from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.sweep.compare import LADDERS
from tests.cli.command_line import hwsim as command


def printed(*words: str) -> str:
    done = command(*words)
    assert done.code == 0, done.err
    return done.out


def rows(text: str, *, first: tuple[str, ...]) -> dict[str, list[str]]:
    """Lines of a table by their first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(first)}


def factors(text: str, first: tuple[str, ...]) -> list[float]:
    """The speed-ups that a table prints, from top to bottom."""
    lines = [line for line in text.splitlines() if line.startswith(first) and "×" in line]
    return [float(word.rstrip("×").replace(",", "")) for line in lines for word in line.split() if word.endswith("×")]


def test_l4_every_table_shows_the_error_that_rounding_of_the_inputs_makes(tmp_path: Path) -> None:
    """L4: fewer bits are faster, and further from the truth; no format is free."""
    formats = ("fp32", "bf16", "fp8_e4m3", "int8", "int4", "mxfp4")
    data = json.loads(
        printed(
            "compare", "course_cpu", "matmul", "n=64", f"precision={','.join(formats)}", "convert=true", "--json", "-"
        )
    )
    error = {row["precision"]: row["error_max_rel"] for row in data}
    assert 0 < error["fp32"] < 1e-5 < error["int8"] < error["fp8_e4m3"] < error["int4"]
    assert error["bf16"] > 1e-3 and error["mxfp4"] > 1e-2
    assert {row["precision"]: row["error_of_arithmetic"] for row in data}["int8"] < 1e-6, "named apart"
    table = printed("compare", "course_cpu", "matmul", "n=64", "precision=fp32,int8")
    assert "0.00e+00" not in table and re.search(r"int8\b.*e-3", table)
    swept = printed(
        "sweep", "course_cpu", "matmul", "n=32", "precision=fp32,bf16,int8", "--out", str(tmp_path / "l4.db")
    )
    assert "0.00e+00" not in swept and "largest error" in swept


def test_l4_the_ladder_of_precisions_gets_faster_with_every_step() -> None:
    text = printed("ladder", "precision", "n=128")
    gains = factors(text, ("fp64", "fp32", "bf16", "int8"))
    assert gains == sorted(gains) and gains[-1] > 6
    assert "0.00e+00" not in text


def test_compare_sets_like_against_like() -> None:
    """Machines whose own choices differ compute in one format and with all their units, and the screen says so."""
    text = printed("compare", "course_cpu,a100_40,tpu_v1", "matmul", "n=128", "--no-math")
    assert "precision=int8 everywhere: the narrowest format that all of these machines have" in text
    assert "parallel=rows on course_cpu: all cores that find work take part" in text
    for word in (r"course_cpu +\d of 4 cores", "a100_40 +108 sm", "tpu_v1 +1 array"):
        assert re.search(word, text)
    data = json.loads(printed("compare", "course_cpu,a100_40,tpu_v1", "softmax", "n=64", "--no-math", "--json", "-"))
    assert {row["precision"] for row in data} == {"bf16"}, "softmax has no meaning in whole numbers"
    chosen = printed("compare", "course_cpu,zen3", "matmul", "n=64", "--no-math", "parallel=none")
    assert "1 of 4 cores" in chosen and "1 of 8 cores" in chosen and "fp32" in chosen


def test_compare_says_what_differs_and_nothing_else() -> None:
    """Formats that were asked for are no surprise; machines without a common one are told of."""
    asked = " ".join(
        printed("compare", "course_cpu,zen3", "matmul", "n=32", "precision=fp32,fp64", "--no-math").split()
    )
    assert "compare unlike things" not in asked
    own = " ".join(printed("compare", "zen3,tpu_v1", "matmul", "n=32", "--no-math").split())
    assert "machines differ in precision (no format is computed by all)" in own


def test_a_speed_up_is_against_a_run_that_does_the_same() -> None:
    text = printed("compare", "a100_40,h100", "matmul,add", "n=512", "--no-math")
    data = json.loads(printed("compare", "a100_40,h100", "matmul,add", "n=512", "--no-math", "--json", "-"))
    time = {(row["machine"], row["workload"]): row["time_s"] for row in data}
    for row in data:
        assert row["speed_up"] == pytest.approx(time["a100_40", row["workload"]] / row["time_s"])
    assert "speed-up is against the first row of the same workload" in text


def test_a4_a5_three_kernels_on_a_gpu_move_nine_tensors_and_one_moves_five() -> None:
    """A4, A5: 9 n against 5 n elements of 4 bytes; the time follows, 1.8 times."""
    n = 2**24
    three, one = (hwsim.run("a100_40", name, n=n, math=False) for name in ("unfused", "fused"))
    moved = [run.memory["dram"].bytes_read + run.memory["dram"].bytes_written for run in (three, one)]
    assert moved == [9 * 4 * n, 5 * 4 * n]
    assert len(three.work["gpu"]["launches"]) == 3
    assert three.time_s / one.time_s == pytest.approx(1.8, rel=0.03)
    assert (three.work.flops, one.work.flops) == (3 * n, 3 * n)


def test_n5_never_storing_the_scores_pays_on_gpus_and_arrays() -> None:
    ladder = LADDERS["attention"]
    assert ladder.common["precision"] == "bf16", "one precision everywhere"
    text = printed("ladder", "attention", "--no-math")
    gains = factors(text, ("naive", "fused"))
    assert gains[0::2] == [1, 1, 1] and min(gains[1::2]) > 1.5
    assert text.count("all rows: bf16") == 3


def test_n5_scratch_of_fused_attention_stays_on_an_array() -> None:
    """Q, K, V and O cross the pins once: 4 n d elements of 2 bytes, and nothing of S."""
    n, d, heads = 1024, 64, 8
    fused, naive = (
        hwsim.run("tpu_v3", f"attention_{name}", n=n, d=d, heads=heads, precision="bf16", math=False)
        for name in ("fused", "naive")
    )
    dram = [run.memory["dram"].bytes_read + run.memory["dram"].bytes_written for run in (fused, naive)]
    assert dram[0] == pytest.approx(4 * n * d * heads * 2, rel=0.01)
    assert dram[1] > 10 * dram[0]
    assert fused.time_s < naive.time_s


def speed_up(text: str, row: str) -> float:
    """What the line of a table that begins with this word says in its column with ×."""
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [row] and "×" in line]
    (word,) = [word for word in line.split() if word.endswith("×")]
    return float(word.rstrip("×"))


@pytest.mark.parametrize("machine", ["course_cpu", "zen3", "zen4"])
@pytest.mark.parametrize(
    ("size", "tile", "low", "high"), [(512, 16, 1.25, 12), (1024, 8, 1.25, 12), (1024, 16, 1.4, 2.3)]
)
def test_a_transpose_by_tiles_is_faster(machine: str, size: int, tile: int, low: float, high: float) -> None:
    """Measured in compiled code on a Zen 3: 2.7 times at 512 x 512; at 1024 x 1024 the rows of a tile share one set of
    eight ways, and tiles of 8 are 3 to 5 times as fast, those of 16 1.5 to 1.9 times. Those of 16 on a quiet Zen 4:
    2.2 times."""
    whole = hwsim.run(machine, "transpose", m=size, n=size, math=False)
    tiles = hwsim.run(machine, "transpose_tiled", m=size, n=size, tile=tile, math=False)
    assert low < whole.time_s / tiles.time_s < high


@pytest.mark.parametrize("machine", ["course_cpu", "zen3"])
def test_s12_a_sum_along_rows_is_several_times_as_fast(machine: str) -> None:
    assert speed_up(printed("compare", machine, "sum_columns,sum_rows"), "sum_rows") > 4


def test_n4_softmax_in_chunks_is_set_against_softmax_in_passes() -> None:
    """The same in two ways, of which one makes more operations: a speed-up is printed all the same."""
    assert speed_up(printed("compare", "course_cpu", "softmax,softmax_online", "n=128"), "softmax_online") > 1.1


def test_a11_one_pass_pays_on_a_phone() -> None:
    """Five streams in a cache of four ways: not if all arrays begin at a power of two, which no allocator does."""
    gains = factors(printed("ladder", "fusion", "cortex_a78", "--no-math"), ("three passes", "vectors", "one pass"))
    assert len(gains) == 3 and gains[2] > 1.6


def test_a10_a_folded_norm_is_not_slower() -> None:
    """It makes fewer operations and moves fewer bytes; its stores stream, and wait for no set."""
    text = printed("compare", "course_cpu", "conv_bn,conv_bn_folded", "--no-math")
    assert 1 <= speed_up(text, "conv_bn_folded") < 1.3


def times_ms(*words: str) -> float:
    found = re.search(r"^time +([\d.]+) (ms|µs)", printed("run", "course_cpu", *words), re.M)
    assert found is not None
    return float(found[1]) / (1 if found[2] == "ms" else 1000)


def test_m4_a_perfect_cache_is_faster_where_misses_are_waited_for() -> None:
    """M4, and the pair of runs on the page of the first run."""
    tiled = ("matmul_tiled", "n=256", "tile=64", "vector=true")
    assert times_ms(*tiled) > 3 * times_ms(*tiled, "--set", "l1.size=inf")


def test_t19_vectors_help_where_the_screen_advises_them() -> None:
    tiled = ("matmul_tiled", "n=256", "tile=16")
    (advice,) = re.findall(r"^next +hwsim run course_cpu (.*)$", printed("run", "course_cpu", *tiled), re.M)
    assert advice.split() == [*tiled, "vector=true"]
    assert times_ms(*tiled) > 1.3 * times_ms(*advice.split())


ADVISED = (
    "zen3 matmul_tiled n=512 vector=true tile=8",
    "zen3 matmul_tiled n=256 vector=true order=ikj tile=64",
    "zen4 matmul_tiled n=256 order=ikj vector=true tile=16",
    "zen4 matmul_naive n=256 vector=true",
    "zen4 matmul_tiled n=256 vector=true",
    "zen4 matmul_ikj n=256 vector=true",
    "zen4 matmul_bt n=256 vector=true",
    "zen4 matmul_parallel n=256",
    "zen4 transpose_tiled n=1024 m=512",
    "zen4 transpose_tiled n=1024",
    "zen4 sum_columns n=1024",
    "zen4 pointer_chase bytes=256KiB",
    "zen4 rope",
    "zen4 embedding",
    "course_cpu matmul_tiled n=128 tile=8",
    "course_cpu triad n=65536",
    "cortex_a78 fused n=262144 parallel=rows",
    "cortex_a78 unfused n=262144",
    "rp2040 matmul_naive n=32",
)
"""Runs whose advice differs: a register tile, longer rows, padding, cores, one part of the machine made faster."""


@pytest.mark.parametrize("words", ADVISED)
def test_what_the_screen_advises_makes_the_run_shorter(words: str) -> None:
    """By 2 % at least, whether it is a better schedule or a part of the machine left out to see what it costs."""

    def seconds(*more: str) -> float:
        return float(json.loads(printed("run", *more, "--no-math", "--json", "-"))["time_s"])

    screen = printed("run", *words.split(), "--no-math")
    (advice,) = re.findall(r"^next +hwsim run (.*)$", screen, re.M)
    assert seconds(*shlex.split(advice)) <= 0.98 * seconds(*words.split())


def test_a_bound_is_explained_by_the_level_and_the_tensor_that_it_is_about() -> None:
    """512 x 1024 and its transpose: 2 x 32,768 lines, each of which comes from memory once."""
    screen = " ".join(printed("run", "zen4", "transpose_tiled", "m=512", "n=1024", "--no-math").split())
    assert "each of 65,536 lines comes once" in screen
    assert "sets of l1" not in screen


def test_padding_that_saves_no_misses_is_said_to_let_them_overlap() -> None:
    """Columns of A and C, 256 lines, in a cache of 128: they miss with and without sets, but in 2 of 16 at a time."""
    words = ("run", "zen4", "matmul_naive", "n=128", "order=jki", "--no-math", "--set", "l1.size=8 KiB")
    padded = json.loads(printed(*words, "ld=144", "--json", "-"))
    plain = json.loads(printed(*words, "--json", "-"))
    assert padded["memory"]["l1"]["read_misses"] == pytest.approx(plain["memory"]["l1"]["read_misses"], rel=0.02)
    assert padded["time_s"] < plain["time_s"] / 2
    printed(*words)
    text = " ".join(printed("explain").split())
    assert "Padding saves hardly any of these" in text and "every set gets about as many" in text
    assert "falls into 2 of 16 sets" in text and "Padding lets them overlap" in text and "(ld=144)" in text
    printed(*words[:4], "order=ikj", *words[5:])
    assert "Padding" not in printed("explain"), "rows are walked, not columns"


def test_memory_whose_rows_are_opened_all_the_time_does_not_deliver_all_that_it_can() -> None:
    """Four cores, five arrays each: what is moved over the time is far from the bandwidth."""
    words = ("run", "cortex_a78", "fused", "n=1048576", "parallel=rows", "--no-math")
    result = json.loads(printed(*words, "--json", "-"))
    dram = result["memory"]["dram"]
    rate = (dram["bytes_read"] + dram["bytes_written"]) / result["time_s"] / 1e9
    assert rate < 0.8 * 51.2
    opened = dram["row_misses"] + dram["row_conflicts"]
    screen = " ".join(printed(*words).split())
    bursts = (dram["bytes_read"] + dram["bytes_written"]) // 32
    assert (
        f"Bound by opening rows of dram: {opened:,} of {bursts:,} bursts" in screen
        and f"{rate:.3g} GB/s of its 51.2 GB/s" in screen
    )
    assert "delivers all that it can" not in screen


def test_a_run_says_where_vectors_are_gathered() -> None:
    """B is walked down its columns where k is innermost, and so are A and C where i is."""
    told = {
        order: "".join(printed("run", "zen4", "matmul_naive", "n=64", f"order={order}", "vector=true").split("\n"))
        for order in ("ijk", "ikj", "jki")
    }
    assert "vectors along k do little for B:" in told["ijk"] and "vectors along i do little for A and C" in told["jki"]
    assert "gather" not in told["ikj"]
    assert "gather" not in printed("run", "zen4", "matmul_naive", "n=64", "order=ijk")


def test_formats_that_a_core_does_not_have_are_refused() -> None:
    for machine in ("zen3", "skylake_avx512"):
        for precision in ("bf16", "int8"):
            done = command("run", machine, "matmul", "n=32", f"precision={precision}")
            assert done.code == 2 and f"does not compute in {precision}" in done.err


def test_e5_fixed_function_needs_less_energy_than_a_gpu_and_is_faster() -> None:
    data = json.loads(printed("ladder", "specialisation", "n=128", "--no-math", "--json", "-"))
    row = {each["step"]: each for each in data}
    assert row["fixed function"]["energy_j"] < row["GPU"]["energy_j"] < row["vectors"]["energy_j"]
    assert row["fixed function"]["time_s"] < row["GPU"]["time_s"]


MEASURED_LADDER = (1, 6.43, 9.64, 27.4, 51.7, 59.0, 70.5)
"""S. Boehm, How to optimize a CUDA matmul kernel (2022): GFLOP/s of kernels on an A6000 at n = 4096, over the first."""


def test_the_cuda_ladder_climbs_to_the_library() -> None:
    """Every step is faster than the one before, by as much as was measured within a factor of 1.5."""
    gains = factors(printed("ladder", "cuda"), tuple(rung.name for rung in LADDERS["cuda"].rungs))
    assert len(gains) == 10
    assert list(gains[:8]) == sorted(gains[:8])
    for simulated, measured in zip(gains, MEASURED_LADDER, strict=False):
        assert 1 / 1.5 < simulated / measured < 1.5
    assert gains[8] > 3 * gains[7]


def test_e1_a_cap_just_below_the_power_of_a_run_costs_little() -> None:
    free = hwsim.run("tpu_v1", "matmul", n=1024, math=False)
    text = printed("run", "tpu_v1", "matmul", "n=1024", "--no-math", "--set", "energy.tdp.power=43 W")
    capped = re.search(r"^time\s+([\d.]+) µs", text, re.M)
    assert capped is not None
    assert 1 < float(capped[1]) / (free.time_s * 1e6) < 1.1
    assert "the clock was lowered to" in " ".join(text.split())


def test_more_bandwidth_is_not_slower_under_a_power_limit() -> None:
    slow, fast = (
        hwsim.run("phone_npu", "transpose", math=False, set={"dram.bandwidth": rate})
        for rate in ("45 GB/s", "51.2 GB/s")
    )
    assert fast.time_s <= slow.time_s


def test_tpu_v4_keeps_to_the_most_that_was_measured() -> None:
    """Jouppi et al., ISCA 2023, table 4: 192 W."""
    result = hwsim.run("tpu_v4", "matmul", n=2048, precision="bf16", math=False)
    assert 170 < (result.power_w or 0) <= 192


@pytest.mark.parametrize(
    ("workload", "least"),
    [
        ("softmax", 2 * 512 * 512 * 2),
        ("transpose", 2 * 512 * 512),
        ("embedding", 2 * 480 * 128),  # 512 tokens of 8192 words: some 480 to 512 different rows, and the result
        ("mlp_train_step", (64 * 128 + 128 * 32) * 2),
    ],
)
def test_tpu_v1_moves_what_it_computes_with(workload: str, least: int) -> None:
    """Inputs of a kernel that follows no layer, tables and weights come from DRAM."""
    dram = hwsim.run("tpu_v1", workload, math=False).memory["dram"]
    assert dram.bytes_read + dram.bytes_written >= least


def test_a_gpu_without_a_fused_attention_kernel_says_so() -> None:
    fused, naive = (hwsim.run("mali_g78", f"attention_{name}", math=False) for name in ("fused", "naive"))
    assert any("has no fused attention kernel" in warning for warning in fused.warnings)
    assert fused.peak_memory_bytes > 0.9 * naive.peak_memory_bytes
    assert "has no fused attention kernel" in " ".join(
        printed("run", "mali_g78", "attention_fused", "--no-math").split()
    )


def test_a_machine_of_integers_blames_no_precision_that_nobody_chose() -> None:
    done = command("run", "eyeriss", "attention_naive")
    assert done.code == 2
    assert "int16" not in done.err and "multiply integers of 16 bits" in done.err


def test_screens_use_the_words_of_the_field() -> None:
    gpu = printed("run", "a100_40", "add", "--no-math")
    core = printed("run", "course_cpu", "matmul", "n=64", "--no-math")
    assert "hit rate" in gpu and "memory traffic" in gpu and "launch overhead" in gpu and "flop/byte" in gpu
    assert "hit rate" in core and "arithmetic intensity" in core and "flop/byte" in core
    tuned = printed("tune", "course_cpu", "matmul_tiled", "n=32", "tile=4,8")
    assert "Pareto front of time and energy" in tuned
    shown = printed("show", "attention_fused")
    for word in ("shows:", "None", "N5"):
        assert word not in shown
    everything = gpu + core + tuned
    for word in ("found there", "never rests", "do not fill", "starts kernels", "to and from", "nothing beats"):
        assert word not in everything


def test_energy_is_split_where_it_is_dynamic_with_static_power_beside_it(tmp_path: Path) -> None:
    text = printed("run", "course_cpu", "matmul_tiled", "n=64", "tile=16", "--plot", str(tmp_path / "p.svg"))
    shares = re.search(r"dynamic .*?:((.|\n)*?)static (\S+ \S+): 13 W of the whole machine", text)
    assert shares is not None and "1 of 4 cores at work" in text
    assert sum(float(each) for each in re.findall(r"([\d.]+) %", shares[1])) == pytest.approx(100, abs=1)
    assert "static" not in shares[1]
    figure = hwsim.run("course_cpu", "matmul_tiled", n=64, tile=16).plot.split()
    title = figure.axes[1].get_title(loc="left")
    assert title.startswith("dynamic energy") and title.endswith("static")
    assert "static" not in [label.get_text() for label in figure.axes[1].get_yticklabels()]


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize(
    "words",
    [
        ("compare", "course_cpu,a100_40,tpu_v1", "attention_naive,attention_fused", "n=64", "--no-math"),
        ("ladder", "matmul", "n=32"),
        ("show", "a100_40"),
    ],
    ids=lambda words: words[0],
)
def test_tables_fit_the_screen_and_lose_no_column(
    words: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwsim.cli.console._WIDTH_IN_PIPES", width)
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(*words)
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(("from ", "Matrix product"))]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    flat = " ".join(text.split())
    heads = (
        ("speed-up", "bound by", "traffic", "memory", "of peak", "J·s") if words[0] != "show" else ("ridge at dram",)
    )
    for head in heads:
        assert head in flat


def test_show_tells_peak_ridge_and_levels_on_one_screen() -> None:
    """312 Tflop/s of fp16 over 1.555 TB/s is a ridge of 201 flop per byte (NVIDIA A100 data sheet)."""
    text = printed("show", "a100_40")
    assert len(text.splitlines()) <= 45
    assert "{'" not in text
    assert re.search(r"fp16.*312 TFLOP/s\s+201 flop/byte", text)
    for level in ("regs", "shared", "l1", "l2", "dram"):
        assert re.search(rf"^{level}\b", text, re.M)


def test_a8_a_roofline_prints_the_share_of_what_is_attainable() -> None:
    """Triad is bound by DRAM: its speed over intensity × 25.6 GB/s."""
    text = printed("roofline", "course_cpu", "triad:n=65536", "matmul_simd", "n=64")
    row = rows(text, first=("triad",))["triad"]
    result = hwsim.run("course_cpu", "triad", n=65536, math=False)
    attainable = (result.intensity.levels["dram"] or 0) * 25.6e9
    share = float(row[row.index("%") - 1])
    assert row[-1] == "dram" and share == pytest.approx(100 * result.work.flops_per_s / attainable, abs=0.1)
    assert 10 < share < 100


def test_a_roofline_takes_no_math_as_the_other_commands_do() -> None:
    words = ("roofline", "course_cpu", "matmul_simd", "n=32")
    assert printed(*words, "--no-math") == printed(*words)


def test_a8_every_mark_of_a_roofline_lies_inside_the_axes_and_levels_of_one_bandwidth_share_a_name() -> None:
    from hwsim.cli.compare import probes
    from hwsim.results.plot.run import make_roofline, plot_roofline

    machine = load_machine("a100_40").spec
    runs = {name: hwsim.run("a100_40", name, n=4096, math=False) for name in ("add", "attention_fused")}
    axes = plot_roofline(make_roofline(machine, runs, probes(machine))).axes[0]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    marks = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    assert len(marks) >= 3
    for line in marks:
        x, y = float(line.get_xdata()[0]), float(line.get_ydata()[0])  # type: ignore[index, arg-type]
        assert left < x < right and bottom < y < top
    texts = [text.get_text() for text in axes.texts]
    assert sum("19.5 TB/s" in text for text in texts) == 1 and any(text.startswith("shared, l1:") for text in texts)
    assert "log scale" in axes.get_xlabel() and "arithmetic intensity" in axes.get_xlabel()


def test_a_plot_shows_the_metric_that_was_asked_for() -> None:
    results = hwsim.sweep("course_cpu", "matmul", n=32, precision=["fp32", "int8"], executor="inprocess")
    figure = results.plot("auto", metrics=["error"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["largest error (log scale)"]
    with pytest.raises(InputError, match="takes no --metric"):
        results.plot("energy", metrics=["time"])


def test_a_pareto_plot_has_its_front() -> None:
    results = hwsim.sweep("course_cpu", "matmul", n=32, precision=["fp64", "fp32", "int8"], executor="inprocess")
    figure = results.plot("pareto", metrics=["energy", "error"])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("energy", "largest error (log scale)")
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "Pareto front" in labels
    (front,) = [line for line in figure.axes[0].lines if line.get_label() == "Pareto front"]
    assert len(front.get_xdata()) == 3  # type: ignore[arg-type]


# Numbers that nothing else would notice -------------------------------------------------------------------------------


def test_a3_a_multiplication_is_issued_as_one() -> None:
    work = hwsim.run("course_cpu", "mul", n=1000, vector=False, math=False).work
    assert (work.instructions["mul"], work.instructions["add"], work.flops) == (1000, 0, 1000)


def test_e16_dram_energy_of_a_gpu_is_bits_times_the_price_of_a_bit() -> None:
    """Two arrays of n fp32 are read and one is written; the price is that of the machine's file."""
    n = 2**20
    result = hwsim.run("a100_40", "add", n=n, math=False)
    prices = load_machine("a100_40").spec.energy
    assert prices is not None and result.energy_by_cause is not None
    for action, arrays in (("dram.read", 2), ("dram.write", 1)):
        bits = arrays * 32 * n
        line = result.energy_by_cause["memory"][action]
        assert line.count == bits
        assert line.joules == pytest.approx(bits * line.price * 1e-12)
        assert line.price == float(prices.actions[action].energy.picojoules)


def test_h2_a_gpu_does_as_many_operations_as_the_mathematics_needs() -> None:
    n = 256
    assert hwsim.run("a100_40", "matmul", n=n, math=False).work.flops == 2 * n**3
    assert hwsim.run("a100_40", "add", n=n, math=False).work.flops == n
    assert hwsim.run("a100_40", "gpu_matmul_shared", n=n, math=False).work.flops == 2 * n**3


def test_c1_the_formula_of_a_convolution_counts_outputs_not_inputs() -> None:
    """3 x 3 without padding on 10 x 10 gives 8 x 8: 2·4·64·9 products."""
    result = hwsim.run("course_cpu", "conv2d_direct", ci=2, co=4, height=10, width=10, padding=0, math=False)
    (row,) = [row for row in result.formulas if row.compare == "macs"]
    assert row.predicted == row.simulated == 2 * 4 * 8 * 8 * 9


def test_t20_the_formula_of_a_tiled_product_counts_the_tiles_at_the_edge() -> None:
    """10 columns in tiles of 4 and registers of 2 are 2 + 2 + 1 blocks that read A; so are 9 rows, which read B."""
    m, k, n = 9, 6, 10
    result = hwsim.run("course_cpu", "matmul_tiled", m=m, k=k, n=n, tile=4, v1=2, v2=2, math=False)
    said = {row.compare: row.predicted for row in result.formulas}
    assert said["loads.A"] == result.tensors["A"].loads
    assert said["loads.B"] == result.tensors["B"].loads
    whole = hwsim.run("course_cpu", "matmul_tiled", m=8, k=k, n=8, tile=4, v1=2, v2=2, math=False)
    assert said["loads.A"] == m * k * 5 and whole.tensors["A"].loads == 8 * k * 4


@pytest.mark.parametrize("workload", ["matmul", "matvec"])
def test_an_array_that_memory_keeps_waiting_is_not_called_bound_by_its_cells(workload: str) -> None:
    """Weights of tpu_v1 come at 32 GB/s: twice as many bytes a second help more than twice the clock, and the screen
    says so although values stream into the cells for most of the cycles."""
    words = ("run", "tpu_v1", workload, "n=1024", "--no-math")
    text = printed(*words)
    assert re.search(r"Bound by weights: the array waits .* dram \(30 GiB/s, busy \d", " ".join(text.split()))
    assert "dram.bandwidth=inf" in text, "the next command follows the bound"
    run = hwsim.run("tpu_v1", workload, n=1024, math=False)
    wider = hwsim.run("tpu_v1", workload, n=1024, math=False, set={"dram.bandwidth": "60 GiB/s"})
    faster = hwsim.run("tpu_v1", workload, n=1024, math=False, set={"clock.core.frequency": "1.4 GHz"})
    assert run.time_s / wider.time_s > 1.2 > run.time_s / faster.time_s
    assert "Bound by the array" in printed("run", "tpu_v4", "matmul", "n=2048", "--no-math")


def test_lines_of_a_screen_go_on_below_themselves() -> None:
    """A long line that is wrapped does not begin again at the edge."""
    lines = printed("run", "tpu_v1", "transpose").splitlines()
    first = next(number for number, line in enumerate(lines) if "of it the arithmetic alone" in line)
    assert lines[first + 1].startswith("  ") or not lines[first + 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("matmul", "eyeriss", "n=64"), "eyeriss chooses its own loops"),
        (("precision", "eyeriss", "n=64"), "eyeriss takes as long in each of these formats"),
        (("fusion", "tpu_v3"), "at this size tpu_v3 keeps on the chip"),
    ],
)
def test_a_ladder_that_a_machine_cannot_show_says_so(words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(printed("ladder", *words, "--no-math").split())


def test_a_ladder_with_steps_that_differ_has_no_excuse() -> None:
    larger = printed("ladder", "fusion", "tpu_v3", "n=33554432", "--no-math")
    assert "keeps on the chip" not in larger
    assert factors(larger, ("one pass",)) == [pytest.approx(9 / 5, rel=0.03)], "elements moved by three passes and one"
    steps = printed("ladder", "matmul", "tpu_v3", "n=256", "--no-math")
    assert "chooses its own loops" not in steps
    assert "What does each step bring on this machine?" in steps and "vectors, tiles and cores" not in steps


@pytest.mark.parametrize("size", [64, 512])
def test_a_sum_that_reads_every_line_once_is_told_what_would_help_it(size: int) -> None:
    """No tile and no padding moves fewer bytes than all of them once; what the screen advises makes it faster."""
    words = ("run", "zen4", "sum_rows", f"n={size}", "vector=true", "--no-math")
    text = printed(*words)
    assert f"each of {16 * size**2 // 256:,} lines comes once" in " ".join(text.split())
    assert not re.search(r"crowd|of the \d+ sets|loop order|ld=|size=inf", text)
    (advised,) = re.findall(r"next  hwsim run .*--set '(.*)'", text)
    before, after = (
        hwsim.run("zen4", "sum_rows", n=size, vector=True, math=False, set=changes).time_s
        for changes in ({}, dict([advised.split("=")]))
    )
    assert after < 0.8 * before


def test_a_sum_by_columns_is_still_told_of_its_crowded_sets() -> None:
    text = printed("run", "zen4", "sum_rows", "n=512", "vector=true", "order=columns", "--no-math")
    assert "of the 64 sets of l1" in text
    assert "ld=528" in text


@pytest.mark.parametrize(("machine", "pad"), [("trainium", "psum"), ("edge_npu", "sram")])
def test_an_array_that_a_scratchpad_cannot_feed_blames_it_and_more_of_its_bandwidth_helps(
    machine: str, pad: str
) -> None:
    words = ("run", machine, "matmul", "n=1024", "--no-math")
    text = printed(*words)
    assert f"Bound by {pad}: it cannot feed the array in time" in text
    (advised,) = re.findall(r"^next  .*", text, re.MULTILINE)
    changes = dict(change.split("=") for change in re.findall(r"--set (\S+)", advised))
    assert all(name.startswith(f"{pad}.") for name in changes)
    found, faster = (hwsim.run(machine, "matmul", n=1024, math=False, set=each).time_s for each in ({}, changes))
    assert faster < 0.85 * found
