"""Every plot is written in each format, the same bytes each time, and says what it should."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import hwsim
from hwsim.api import Run, run_all, set_pressure
from hwsim.catalog import load_machine
from hwsim.errors import InputError
from hwsim.result import bytes_moved, machine_of
from hwsim.results.plot.compare import ComparedRun, plot_compare, plot_ladder, plot_steps
from hwsim.results.plot.diagram import _thickness, as_svg, as_text, draw_machine, fit_words, level_words, link_words
from hwsim.results.plot.run import Spot, _draw, _draw_spots, make_roofline
from hwsim.results.plot.style import LOOKS, look_of, plot_energy_stack, plot_traffic, series_looks, spread
from hwsim.results.plot.sweep import Curve, _draw_bars, _label_axis, plot_lines
from hwsim.results.plot.timeline import plot_collective, plot_knee
from hwsim.sweep.result_set import ResultSet
from hwsim.units import percent
from tests.unit.results.made import small


@pytest.fixture(scope="module")
def sweep() -> ResultSet:
    return hwsim.sweep("course_cpu", "matmul_tiled", n=64, tile=[4, 8, 16, 32, 64], precision=["fp32", "bf16", "int8"])


Draw = Callable[[Path, ResultSet], object]
RUN = {"naive": small("matmul_naive"), "tiled": small()}
PLOTS: dict[str, Draw] = {
    **{kind: (lambda path, sweep, kind=kind: sweep.plot(kind, path)) for kind in ("lines", "heat", "pareto")},
    "energy": lambda path, sweep: sweep.where(precision="fp32").plot("energy", path),
    "traffic": lambda path, sweep: sweep.where(precision="fp32").plot("traffic", path),
    "compare": lambda path, _: plot_compare(
        [ComparedRun("course_cpu", name, run) for name, run in RUN.items()], path, "t"
    ),
    "ladder": lambda path, _: plot_ladder(RUN, path, "t"),
    "steps": lambda path, _: plot_steps({"one": RUN, "two": RUN}, path, "t"),
    "split": lambda path, _: small().plot.split(path),
    "roofline": lambda path, _: small().plot.roofline(path),
    "diagram": lambda path, _: small().plot.diagram(path),
    "timeline": lambda path, _: small().plot.timeline(
        run_all("course_cpu", "matmul_tiled", timeline=True, parameters={"n": 32}).outcome.spans, path
    ),
    "sets": lambda path, _: small().plot.sets(set_pressure(small()), path),  # type: ignore[arg-type]
    "stack": lambda path, _: plot_energy_stack(RUN, path, "t"),
    "shares": lambda path, _: plot_energy_stack(RUN, path, "t", shares=True),
    "knee": lambda path, _: plot_knee([("1", 90, 0.011, 0.012), ("8", 600, 0.013, 0.02)], path, "t", "8"),
    "collective": lambda path, _: plot_collective({"ring": [(1024, 1e-5), (2**20, 1e-4)]}, path, "t"),
    "blocks": lambda path, _: gpu_blocks().result.plot.timeline(gpu_blocks().outcome.spans, path),
}


@cache
def gpu_blocks() -> Run:
    return run_all("a100_40", "matmul", timeline=True, parameters={"n": 1024}, math=False)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Those that are saved."""
    found: list[Figure] = []
    save = Figure.savefig

    def noted(self: Figure, *words: Any, **more: Any) -> None:
        found.append(self)
        save(self, *words, **more)

    monkeypatch.setattr(Figure, "savefig", noted)
    return found


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_readable_and_the_same_bytes_each_time(
    name: str, tmp_path: Path, sweep: ResultSet, figures: list[Figure]
) -> None:
    files = [tmp_path / f"{number}.svg" for number in range(2)]
    for file in files:
        PLOTS[name](file, sweep)
    assert files[0].read_bytes().startswith(b"<?xml")
    assert files[0].read_bytes() == files[1].read_bytes()
    for figure in figures[:1]:
        is_readable(figure)


def is_readable(figure: Figure) -> None:
    """Letters of a size that can be read and that fits, lines of a grid fainter than those of data, long bars that
    fill their axis and leave room for a number."""
    sizes = [each.get_fontsize() for each in figure.findobj(Text) if each.get_text()]
    assert min(sizes) >= 7 and max(sizes) <= 14
    for axes in figure.axes:
        data = [line.get_linewidth() for line in axes.lines if len(line.get_xdata()) > 1 and line.get_alpha() is None]
        grid = [line.get_linewidth() for line in (*axes.get_xgridlines(), *axes.get_ygridlines()) if line.get_visible()]
        assert max(grid, default=0.0) <= min([1.0, *data])
        bars = [patch for each in axes.containers for patch in each if isinstance(patch, Rectangle)]
        if bars and not axes.lines and axes.get_xscale() == "linear":
            ends = [patch.get_x() + patch.get_width() for patch in bars]
            tops = [patch.get_y() + patch.get_height() for patch in bars]
            upright = len({round(patch.get_width(), 9) for patch in bars}) == 1
            end, limit = (max(tops), max(axes.get_ylim())) if upright else (max(ends), max(axes.get_xlim()))
            assert 0.45 * limit <= end <= limit


def test_a_link_is_as_thick_as_its_share_of_the_traffic() -> None:
    """From 1.2 points for none to 9 more for the busiest, in proportion."""
    result = small()
    machine = machine_of(result)
    moved = {name: bytes_moved(counts) for name, counts in result.memory.items()}
    thick = {name: _thickness(machine.level(name), result) - 1.2 for name in moved}
    most = max(moved, key=lambda name: moved[name])
    assert thick[most] == pytest.approx(9)
    for name, count in moved.items():
        assert thick[name] == pytest.approx(9 * count / moved[most])
    assert all(_thickness(level, None) == 1.2 for level in machine.memory)


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_a_plot_is_written_in_the_format_of_its_name(
    suffix: str, begins: bytes, tmp_path: Path, sweep: ResultSet
) -> None:
    PLOTS["lines"](tmp_path / f"a{suffix}", sweep)
    assert (tmp_path / f"a{suffix}").read_bytes().startswith(begins)


def words_of(draw: Callable[[Path], object], tmp_path: Path) -> str:
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(tmp_path / "a.svg")
    return (tmp_path / "a.svg").read_text()


def test_a_ladder_names_rungs_times_and_speed_ups(tmp_path: Path) -> None:
    text = words_of(lambda path: plot_ladder(RUN, path), tmp_path)
    for word in ("naive", "tiled", "1×", "dram", "static"):
        assert f">{word}" in text or word in text


def test_lines_name_their_series_and_mark_both_limits(tmp_path: Path) -> None:
    results = hwsim.sweep(
        "course_cpu", "matmul_tiled", n=256, tile=[16, 32, 64], precision=["fp32", "int8"], math=False
    )
    text = words_of(lambda path: results.plot("lines", path), tmp_path)
    for word in ("fp32", "int8", "tile", "time", "energy", "3·tile² = l1", "A, B fit sets of l1"):
        assert word in text


def test_the_plot_follows_the_axes(sweep: ResultSet, tmp_path: Path) -> None:
    assert "3·tile²" not in words_of(lambda path: sweep.plot("pareto", path), tmp_path)
    grid = hwsim.sweep("course_cpu", "add", n="64..384:64", set={"l1.size": "8KiB..256KiB:x2"})
    text = words_of(lambda path: grid.plot("auto", path), tmp_path)
    assert "l1.size" in text and "8 KiB" in text


def test_what_cannot_be_drawn_is_said(sweep: ResultSet) -> None:
    with pytest.raises(InputError, match="did you mean 'heat'"):
        sweep.plot("haet")
    with pytest.raises(InputError, match="is not swept here"):
        sweep.plot("lines", x="n")
    with pytest.raises(InputError, match="two swept axes"):
        hwsim.sweep("course_cpu", "add", n=[64, 128]).plot("heat")
    with pytest.raises(InputError, match="no axis to draw over"):
        hwsim.sweep("course_cpu", "add", n=64).plot("lines")
    with pytest.raises(InputError, match="no timeline"):
        small().plot.timeline(())
    with pytest.raises(InputError, match=r"\.pdf, \.png, \.svg"):
        small().plot.split(Path("run.bmp"))


def test_labels_move_apart_as_little_as_needed() -> None:
    assert spread([0.5, 0.9], 0.1) == [0.5, 0.9]
    moved = spread([0.5, 0.5, 0.52], 0.1)
    ordered = sorted(moved)
    assert all(b - a >= 0.1 - 1e-6 for a, b in pairwise(ordered))
    assert sum(moved) == pytest.approx(sum([0.5, 0.5, 0.52]))  # none is favoured
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])


def test_formats_keep_their_colour_and_others_never_take_it() -> None:
    looks = series_looks(["fp32", "odd", "int8"])
    assert looks["fp32"].colour == LOOKS["fp32"].colour
    assert looks["odd"].colour not in (LOOKS["fp32"].colour, LOOKS["int8"].colour)
    assert len({look.marker for look in looks.values()}) == 3


def test_a_level_looks_the_same_everywhere_and_unknown_names_do_too() -> None:
    assert look_of("l1") is LOOKS["l1"]
    assert look_of("l7") == look_of("l7")
    together = [LOOKS[name] for name in ("arithmetic", "operand supply", "control", "l1", "l2", "l3", "dram")]
    assert len({look.colour for look in together}) == len(together)


def test_a_roofline_is_the_lesser_of_peak_and_bandwidth() -> None:
    """course_cpu, one core at 2 GHz: 64 B/cycle from l1 is 128 GB/s; 8 lanes, one fma: 32 GFLOP/s; DRAM 25.6 GB/s."""
    result = small("matmul_simd")
    line = make_roofline(machine_of(result), {"run": result}, {})
    assert line.units == 1
    assert line.roofs["l1"] == 128e9
    assert line.roofs["dram"] == pytest.approx(25.6e9)
    assert line.ceilings["fp32"] == 32e9
    assert line.attainable("dram", 0.5, "fp32") == pytest.approx(12.8e9)
    assert line.attainable("dram", 100, "fp32") == 32e9
    assert line.ridge("dram", "fp32") == pytest.approx(1.25)
    assert {spot.level for spot in line.spots} == {"l1", "l2", "dram"}
    assert all(spot.flops_per_s <= line.attainable(spot.level, spot.intensity, "fp32") * 1.001 for spot in line.spots)


def test_a_diagram_draws_private_parts_for_each_unit_and_shared_ones_once() -> None:
    machine = machine_of(small())
    titles = [box.title for box in draw_machine(machine, small()).boxes]
    assert sum(title.startswith("core[") for title in titles) == 4
    assert sum(title.startswith("l1") for title in titles) == 4
    assert sum(title.startswith("dram") for title in titles) == 1
    assert "up, " in as_svg(draw_machine(machine, small()), "x")
    assert "up, " not in as_svg(draw_machine(machine), "x")
    assert len({len(line) for line in as_text(machine).splitlines() if line[0] in "┌│└"}) == 1


@pytest.mark.parametrize("name", ["course_cpu", "zen3", "a100_40", "tpu_v4"])
def test_lines_of_a_drawing_join_two_boxes_and_its_words_stand_once(name: str) -> None:
    """In characters, a line leaves every box but the last and meets every box but the first; drawn, it runs from the
    lower edge of a box to the upper edge of one below, and the words of a link stand on the first of its lines."""
    machine = load_machine(name).spec
    lines = as_text(machine).splitlines()
    tops = [number for number, line in enumerate(lines) if line.startswith("┌")]
    assert len(tops) == len(machine.memory) + 1
    for number, line in enumerate(lines):
        for place, letter in enumerate(line):
            if letter == "┴":
                assert lines[number - 1][place] == "│" and number != tops[0]
            if letter == "┬":
                assert lines[number + 1][place] == "│" and number + 1 < len(lines)
    assert sum(line.count("┴") for line in lines) == sum(line.count("┬") for line in lines) == len(machine.memory)
    drawing = draw_machine(machine)
    for wire in drawing.links:
        assert any(box.x <= wire.x <= box.x + box.width and box.y + box.height == wire.top for box in drawing.boxes)
        assert any(box.x <= wire.x <= box.x + box.width and box.y == wire.bottom for box in drawing.boxes)
    for level, top in zip(machine.memory, sorted({wire.top for wire in drawing.links}), strict=True):
        own = sorted((wire for wire in drawing.links if wire.top == top), key=lambda wire: wire.x)
        assert [wire.label for wire in own] == [link_words(level, None)] + [""] * (len(own) - 1)
    assert drawing.height >= max(box.y + box.height for box in drawing.boxes)
    assert all(box.x >= 0 and box.x + box.width <= drawing.width for box in drawing.boxes)


def test_shares_are_drawn_as_long_as_they_are_and_what_is_nothing_is_left_out() -> None:
    """Less than four in a thousand has no bar, and nothing has one where all is zero."""
    for amounts, drawn in (
        ({"a": 700.0, "b": 292.0, "c": 5.0, "d": 3.0}, [0.7, 0.292, 0.005]),
        ({"a": 2.0, "b": 2.0}, [0.5, 0.5]), ({"a": 0.0, "b": 0.0}, []), ({}, []),
    ):  # fmt: skip
        axes = Figure().add_subplot()
        _draw(axes, "time", {name: (amount, look_of(name)) for name, amount in amounts.items()}, 4)
        assert [patch.get_width() for patch in axes.patches] == pytest.approx(drawn)
        assert [label.get_text() for label in axes.get_yticklabels()] == list(amounts)[: len(drawn)]
        assert [text.get_text() for text in axes.texts] == [percent(share, 1) for share in drawn]
        assert axes.get_title() == "time"


def test_a_level_says_its_organisation_and_who_shares_it() -> None:
    assert [level_words(level) for level in load_machine("course_cpu").spec.memory] == [
        "registers",
        "cache, 8 ways, 64 B lines, lru, 0.5 ns",
        "cache, 8 ways, 64 B lines, lru, 7 ns",
        "dram, 1 channel, 16 banks, 200 ns",
    ]
    shared = {level.name: level_words(level).rpartition(", ")[2] for level in load_machine("a100_40").spec.memory}
    assert shared["l2"] == "shared by all"
    assert "shared" not in shared["l1"] + shared["dram"]


@pytest.mark.parametrize(
    ("numbers", "base", "shown"),
    [([1, 2, 3], None, [1, 2, 3]), ([1, 2, 4, 64], 2, [1, 2, 4, 64]), (list(range(1, 26)), 2, list(range(1, 26, 3)))],
)
def test_an_axis_that_spans_much_is_logarithmic_and_has_at_most_a_dozen_marks(
    numbers: list[int], base: int | None, shown: list[int]
) -> None:
    axes = Figure().add_subplot()
    line = Curve("one", tuple(map(str, numbers)), tuple(map(float, numbers)), {})
    _label_axis(axes, [line], "n")
    assert list(axes.get_xticks()) == shown
    assert ("log scale" in axes.get_xlabel()) == (base is not None)
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(number) for number in shown]
    scale = axes.xaxis.get_transform()
    assert getattr(scale, "base", None) == base


def test_words_are_cut_between_words() -> None:
    assert fit_words("cache, 8 ways, lru", 30) == "cache, 8 ways, lru"
    assert fit_words("cache, 8 ways, lru", 16) == "cache, 8 ways …"


def test_the_time_of_a_token_is_drawn_in_milliseconds_over_the_throughput() -> None:
    axes = plot_knee([("1", 90, 0.011, 0.012), ("8", 600, 0.013, 0.02)]).axes[0]
    drawn = {str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()] for line in axes.get_lines()}
    assert drawn["median"] == [(90, 11), (600, 13)]
    assert drawn["p99"] == [(90, 12), (600, 20)]


def test_the_name_of_a_roof_lies_along_it() -> None:
    """A line of slope one on logarithmic axes rises by as many decades as it runs: on the screen by box and limits."""
    figure = small("matmul_simd").plot.roofline()
    axes = figure.axes[0]
    (left, bottom), (right, top) = axes.transData.transform([(1, 1e9), (2, 2e9)])
    (name,) = {round(text.get_rotation(), 6) for text in axes.texts if text.get_rotation()}
    assert name == pytest.approx(math.degrees(math.atan2(top - bottom, right - left)), abs=0.01)


@pytest.mark.parametrize(
    ("count", "name", "legends"), [(6, "a name of 14 l", 0), (7, "short", 1), (2, "a name of 15 le", 1)]
)
def test_six_lines_with_short_names_have_these_at_their_ends_and_others_a_legend(
    count: int, name: str, legends: int
) -> None:
    """At 4.7 inches to a panel, more or longer names would take its room."""
    names = [name[: len(name) - 1] + str(number) for number in range(count)]
    places = (8, 16, 32)
    lines = [Curve(each, places, (8.0, 16.0, 32.0), {"time_s": (1e-6, 2e-6, 3e-6 + i)}) for i, each in enumerate(names)]
    figure = plot_lines(lines, ["time_s"], "tile")
    assert len(figure.legends) == legends
    at_ends = {text.get_text() for text in figure.axes[0].texts}
    assert set(names) <= at_ends if not legends else not set(names) & at_ends


def test_bars_of_a_metric_are_logarithmic_where_they_differ_by_more_than_eight_times() -> None:
    for amounts, scale in (([1e-6, 8e-6], "linear"), ([1e-6, 8.1e-6], "log"), ([None, 1e-6], "linear"), ([], "linear")):
        axes = Figure().add_subplot()
        _draw_bars(axes, amounts, "time_s")
        assert axes.get_xscale() == scale
        ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
        assert ends == pytest.approx([amount for amount in amounts if amount])
        if ends:
            assert axes.get_xlim()[0] < min(ends) and max(ends) < axes.get_xlim()[1]


def test_traffic_is_drawn_to_its_bytes_with_room_for_words_behind() -> None:
    axes = plot_traffic(RUN).axes[0]
    levels = list(RUN["tiled"].memory)
    drawn = [[patch.get_x() + patch.get_width() for patch in bars] for bars in axes.containers]
    for level, ends in zip(levels, drawn, strict=True):
        moved = [bytes_moved(run.memory[level]) for run in RUN.values()]
        assert ends == pytest.approx([amount or ends[n] for n, amount in enumerate(moved)])
    most = max(end for ends in drawn for end in ends)
    assert 4 * most < axes.get_xlim()[1] < 40 * most
    assert [label.get_text() for label in axes.get_yticklabels()] == list(RUN)


def test_the_name_of_a_run_stands_beside_its_only_mark_or_above_the_middle_of_several() -> None:
    """The middle on a logarithmic axis is the geometric mean; the height is that of the mark."""
    axes = Figure().add_subplot()
    axes.set(xscale="log", yscale="log", xlim=(0.01, 100), ylim=(1e8, 1e12))
    spots = [Spot("one", "dram", 0.5, 1e10), Spot("several", "l1", 0.1, 1e11), Spot("several", "dram", 10.0, 1e11)]
    _draw_spots(axes, spots, ["one", "several"])
    found = {text.get_text(): text for text in axes.texts}
    assert found["one"].xy == pytest.approx((0.5, 0.5))  # type: ignore[attr-defined]
    assert found["several"].xy == pytest.approx((1.0, 0.75))  # type: ignore[attr-defined]
    assert found["one"].xyann == (10, 0) and found["one"].get_ha() == "left"  # type: ignore[attr-defined]
    assert found["several"].xyann == (0, 12) and found["several"].get_ha() == "center"  # type: ignore[attr-defined]
    marks = {(float(x), float(y)) for line in axes.lines for x, y in line.get_xydata()}
    assert marks == {(spot.intensity, spot.flops_per_s) for spot in spots}
