"""Words in plots can be read: none lies on a mark, on another name or outside its picture, and each has its unit."""

from __future__ import annotations

from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

import hwsim
from hwsim.api import run_all
from hwsim.catalog import load_machine
from hwsim.result import machine_of
from hwsim.results.plot.diagram import draw_machine, plot_diagram
from hwsim.results.plot.run import Roofline, make_roofline, plot_roofline
from hwsim.results.plot.style import canvas, look_of, looks_of, name_places, plot_energy, plot_traffic, readable_on
from hwsim.results.plot.sweep import BAND_WORDS, UNFIT_WORDS, Curve, plot_lines
from hwsim.results.plot.timeline import plot_collective, plot_model
from hwsim.units import joules
from tests.unit.results.made import small


def y_names(axes: Axes) -> list[str]:
    low, high = axes.get_ylim()
    labels = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
    return [label.get_text() for label in labels if low <= label.get_position()[1] <= high and label.get_text()]


@pytest.mark.parametrize(
    ("low", "high", "named"),
    [
        (3e-4, 8e-4, ["300 µJ", "400 µJ", "500 µJ", "600 µJ", "700 µJ", "800 µJ"]),
        (1.5e-3, 8e-3, ["2 mJ", "5 mJ"]),
        (0.15, 9.0, ["1 J", "200 mJ", "500 mJ", "2 J", "5 J"]),
        (0.5, 2000.0, ["1 J", "10 J", "100 J", "1,000 J"]),
    ],
)
def test_a_logarithmic_axis_names_at_least_two_places_however_short_it_is(
    low: float, high: float, named: list[str]
) -> None:
    with canvas((4, 3)) as figure:
        axes = figure.subplots()
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        name_places(axes.yaxis, joules)
    figure.draw_without_rendering()
    assert sorted(y_names(axes)) == sorted(named)


def test_one_size_of_a_collective_has_its_own_name_and_times_have_units() -> None:
    figure = plot_collective({"ring": [(64e6, 3.1e-4)], "tree": [(64e6, 8.4e-4)]})
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64 MB"]
    assert y_names(axes) and all(name.endswith(" µs") for name in y_names(axes))


def box_of(name: Annotation) -> Bbox:
    """Where the letters are; of a name that is turned, only the middle part."""
    found = name.get_window_extent()
    if not name.get_rotation():
        return found
    return Bbox.from_bounds((found.x0 + found.x1) / 2 - 4, (found.y0 + found.y1) / 2 - 4, 8, 8)


def test_names_on_a_roofline_lie_neither_on_marks_nor_on_each_other() -> None:
    """Runs so near to each other that names above their middles would hide marks of the next one."""
    names = ("matmul_naive", "matmul_simd", "matmul_tiled", "softmax", "matvec", "add")
    runs = {name: hwsim.run("course_cpu", name, n=32, math=False) for name in names}
    figure = plot_roofline(make_roofline(machine_of(runs["add"]), runs, {}))
    axes = figure.axes[0]
    written = [text for text in axes.texts if isinstance(text, Annotation) and text.get_text() in names]
    roofs = [text for text in axes.texts if isinstance(text, Annotation) and text.get_rotation()]
    marks = [axes.transData.transform(line.get_xydata()[0]) for line in axes.lines if len(line.get_xdata()) == 1]
    assert len(written) == len(names) and marks
    for name in written:
        box = box_of(name)
        assert not [place for place in marks if box.contains(*place)], name.get_text()
    for one, other in combinations([*written, *roofs], 2):
        assert not box_of(one).overlaps(box_of(other)), (one.get_text(), other.get_text())


def test_many_formats_of_one_peak_take_several_lines_beside_a_roofline() -> None:
    forms = dict.fromkeys(("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "int16", "int8"), 1e12)
    figure = plot_roofline(Roofline("eyeriss", 1, {"dram": 1e10}, forms))
    text = next(text.get_text() for text in figure.axes[0].texts if "fp8_e5m2" in text.get_text())
    assert max(map(len, text.splitlines())) <= 26
    assert text.split("\n", 1)[1].replace("\n", " ") == ", ".join(forms)


def test_no_room_is_lost_above_bars() -> None:
    runs = {str(number): small() for number in range(12)}
    for figure in (plot_energy(runs), plot_traffic(runs)):
        axes = figure.axes[0]
        first = min(patch.get_y() for bars in axes.containers for patch in bars)
        assert first - min(axes.get_ylim()) < 1


def test_what_bands_and_crosses_mean_stands_below_the_axis() -> None:
    curve = Curve("a", (1, 2, 3), (1, 2, 3), {"time_s": (1, 2, 3)}, {"time_s": ((0.9, 1.1),) * 3}, (False, False, True))
    figure = plot_lines([curve], ["time_s"], "batch")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    notes = [text for text in axes.texts if BAND_WORDS in text.get_text() or UNFIT_WORDS in text.get_text()]
    name = axes.xaxis.label.get_window_extent()
    assert len(notes) == 2
    assert all(note.get_window_extent().y1 < name.y0 for note in notes)


def model_plot(name: str, machine: str, **given: object) -> Figure:
    return plot_model(hwsim.run(machine, name, math=False, **given))


def test_the_legend_of_a_phase_lies_below_its_bars_and_memory_has_its_unit() -> None:
    figure = model_plot("resnet18", "tpu_v1")
    figure.draw_without_rendering()
    phase, memory = figure.axes
    legend = phase.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y1 < phase.bbox.y0
    assert all(name.endswith(" MB") or name == "0 B" for name in y_names(memory))


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """As WCAG 2.1 defines it."""

    def light(colour: tuple[float, ...]) -> float:
        parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    bright, dark = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_words_on_blocks_of_a_gpu_have_enough_contrast() -> None:
    from matplotlib.colors import to_rgb

    assert readable_on((1, 1, 1)) != "white" and readable_on((0, 0, 0)) == "white"
    run = run_all("a100_40", "matmul", timeline=True, parameters={"n": 4096, "precision": "fp16"}, math=False)
    units = run.result.plot.timeline(run.outcome.spans).axes[0]
    grounds = {to_rgb(patch.get_facecolor()[0]) for patch in units.collections}
    assert {text.get_color() for text in units.texts} == {readable_on(ground) for ground in grounds}
    assert all(contrast(to_rgb(readable_on(ground)), ground) >= 4.0 for ground in grounds)


def test_a_diagram_says_how_many_registers_there_are_in_all_units() -> None:
    figure = plot_diagram(draw_machine(load_machine("mi300x").spec), title="mi300x")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "regs  131072 × 32 bit ×304" in words and "mi300x" in words


def test_things_of_one_picture_look_different() -> None:
    """`operands` and `sums` of an array were drawn alike."""
    assert look_of("operands") == look_of("sums")
    looks = looks_of(["arithmetic", "dram", "operands", "sums", "static"])
    assert len(set(looks.values())) == len(looks) == 5
    assert looks["operands"] == look_of("operands") and looks["dram"] == look_of("dram")
