"""What a plot shows, as text: titles, axes, texts, lines, bars and marks in their own units, without drawing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 12
"""Of more numbers in a row, the first and last, and what all come to."""


def describe(figure: Figure) -> Iterator[str]:
    """Line by line, in the order in which things were drawn; colours and sizes of letters are left out."""
    width, height = figure.get_size_inches()
    yield f"figure {width:.3g} x {height:.3g}"
    yield from _texts([figure._suptitle] if figure._suptitle else [], "title")  # type: ignore[attr-defined]
    yield from _texts(figure.texts, "text")
    for legend in figure.legends:
        yield from _texts(legend.get_texts(), "legend")
    for axes in figure.axes:
        yield from _describe_axes(axes)


def _describe_axes(axes: Axes) -> Iterator[str]:
    yield f"axes {axes.get_title()!r} {axes.get_title(loc='left')!r}"
    for name in ("x", "y"):
        label, scale = getattr(axes, f"get_{name}label")(), getattr(axes, f"get_{name}scale")()
        low, high = getattr(axes, f"get_{name}lim")()
        yield f"  {name} {label!r} {scale} {_number(low)} to {_number(high)}"
        fixed = [each.get_text() for each in getattr(axes, f"get_{name}ticklabels")() if each.get_text()]
        if scale == "linear" and fixed:
            yield f"  {name} ticks {', '.join(fixed)}"
    for line in axes.get_lines():
        look = f"{line.get_linestyle()} {line.get_marker()}"
        yield f"  line {line.get_label()!r} {look} x {_numbers(line.get_xdata())} y {_numbers(line.get_ydata())}"
    for patch in axes.patches:
        place = patch.get_path().get_extents(patch.get_patch_transform())
        yield f"  patch {patch.get_label()!r} {_numbers((place.x0, place.y0, place.x1, place.y1))}"
    for group in axes.collections:
        places = [each for pair in group.get_offsets() for each in pair]
        parts = [each for path in group.get_paths() for pair in path.vertices for each in pair]
        yield f"  marks {group.get_label()!r} at {_numbers(places)} of {_numbers(parts)}"
    for image in axes.images:
        yield f"  image {_numbers(image.get_array().ravel())}"
    yield from _texts(axes.texts, "  text")
    if legend := axes.get_legend():
        yield from _texts(legend.get_texts(), "  legend")


def _texts(texts: Iterable[Any], what: str) -> Iterator[str]:
    for text in texts:
        yield f"{what} {text.get_text()!r} at {_numbers(text.get_position())}"


def _numbers(values: Iterable[Any]) -> str:
    found = [each if isinstance(each, str) else float(each) for each in values]
    if len(found) <= FEW or any(isinstance(each, str) for each in found):
        return "(" + " ".join(map(_number, found)) + ")"
    ends = f"{_number(found[0])} … {_number(found[-1])}"
    weighted = sum((number % 7 + 1) * each for number, each in enumerate(found) if abs(each) < 1e300)
    return f"({ends}, {len(found)}, {_number(weighted)})"


def _number(value: Any) -> str:
    if isinstance(value, str):
        return repr(value)
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"
