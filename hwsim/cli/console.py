"""What all commands print with: two consoles, and one way to show an error.

Whatever is printed is shown as it is: square brackets mean nothing, and control characters are written out. What has a
style is put together by `styled`, piece by piece, so that no name and no text of a file is ever read as markup.

Tables that stay readable on a narrow screen: no name is cut, and no number loses its unit.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from hwsim.files import write_text
from hwsim.record import finite
from hwsim.units import HIDDEN, visible

if TYPE_CHECKING:
    from hwsim.target import Line
    from hwsim.target import Table as Rows

_WIDTH_IN_PIPES = 110


class PlainConsole(Console):
    """A console without markup: every string that reaches it, also in tables and titles, is text and nothing else."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with what a terminal would obey written out."""
        return super().render_str(visible(text), **{**options, "markup": False, "emoji": False})


def styled(*pieces: str | tuple[str, str]) -> Text:
    """A line from pieces of text, some with a style: ``styled(("matmul", "bold"), " on ", ("zen3", "bold"))``."""
    return Text.assemble(*(visible(p) if isinstance(p, str) else (visible(p[0]), p[1]) for p in pieces))


def out() -> Console:
    """For results, to whatever stdout is now; plain text where that is no terminal."""
    return _console(stderr=False)


def err() -> Console:
    """For errors, warnings and progress."""
    return _console(stderr=True)


def bars() -> Console:
    """For progress bars: nothing at all where stderr is no terminal (a Progress of Rich 13 ends with an empty line)."""
    console = err()
    return console if console.is_terminal else Console(quiet=True)


def print_json(data: Any) -> None:
    """Machine-readable output: indented JSON and nothing else; escapes where stdout cannot say a letter."""
    sys.stdout.write(json_text(data, ensure_ascii=not says_everything(sys.stdout)))


def write_json(path: Path, data: Any) -> None:
    """The same into a file."""
    write_text(path, json_text(data))


def json_text(data: Any, *, ensure_ascii: bool = False) -> str:
    """Indented JSON. It has no infinity: null stands for a number that is none. A terminal shows all of it as it is:
    JSON would leave some control characters alone."""
    text = json.dumps(finite(data), indent=2, ensure_ascii=ensure_ascii, allow_nan=False) + "\n"
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def says_everything(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig", "utf-16", "utf-32")


def make_safe(stream: TextIO) -> None:
    """Letters that an output of another encoding has not are written by others: `us` for `µs`, never a traceback."""
    if not says_everything(stream) and hasattr(stream, "reconfigure"):
        codecs.register_error("hwsim", _nearest)
        stream.reconfigure(errors="hwsim")


_NEAREST = {
    "µ": "u",
    "×": "x",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": "*",
    "…": "...",
    "✓": "+",
    "✗": "x",
    "²": "^2",
    "³": "^3",
}
_NEAREST |= {"→": "->", "≤": "<=", "≥": ">=", "█": "#", "│": "|", "─": "-", "━": "-", "’": "'", "“": '"', "”": '"'}


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """For `codecs`: what to write instead, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return "".join(_NEAREST.get(letter, "#" if "▀" <= letter <= "▟" else "?") for letter in letters), error.end


def print_error(message: str) -> None:
    """An error for people: the message as it is, never wrapped, so that file:line stays clickable."""
    console = err()
    for line in message.split("\n") or ["unknown error"]:
        console.print(styled(("error: ", "bold red"), line), soft_wrap=True)


def print_plain(text: str) -> None:
    """Text that someone may pipe into a file or a program: no wrapping, no colour."""
    sys.stdout.write(visible(text if text.endswith("\n") else text + "\n"))


def print_chunk(text: str) -> None:
    """A part of such a text, with nothing added."""
    sys.stdout.write(visible(text))


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    asked = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else int(asked) if asked.isdecimal() and int(asked) else _WIDTH_IN_PIPES
    return PlainConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


STYLES = {"plain": "", "strong": "bold", "faint": "dim"}


def make_table(*columns: str, left: Sequence[int] = (0,)) -> FittingTable:
    from rich import box

    table = FittingTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for number, column in enumerate(columns):
        justify: Any = "left" if number in left else "right"
        table.add_column(column, justify=justify, style="cyan" if number == 0 else None, no_wrap=number > 0)
    return table


def titled_table(title: str, first: str) -> Table:
    """A table below its name, with its first column; the others are added by whoever fills it."""
    from rich import box

    table = FittingTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column(first, style="cyan", no_wrap=True)
    return table


def draw_table(rows: Rows) -> Table:
    """A table of text, as a target made it."""
    table = make_table(*rows.columns, left=rows.left)
    for row in rows.rows:
        table.add_row(*map(str, row))
    return table


def print_body(console: Console, body: Sequence[Rows | Line]) -> None:
    """Tables and sentences below each other."""
    from hwsim.target import Line

    for item in body:
        if isinstance(item, Line):
            wrapped(console, "", item.text, style=STYLES[item.weight])
        else:
            console.print(draw_table(item))


def wrapped(console: Console, label: str, text: str, style: str) -> None:
    """Words that go on under themselves, beside a label; no number is parted from its percent sign."""
    label = visible(label)
    lines = Text(_PARTS.sub(lambda found: found[0].replace(" ", _TIE), visible(text)), style=style)
    for number, line in enumerate(lines.wrap(console, console.width - len(label))):
        shown = Text(line.plain.rstrip().replace(_TIE, " "), style=style)
        console.print(Text(label if number == 0 else " " * len(label), style="dim") + shown)


SHADES = "█▓▒░▚╱·"
"""One for each part of a bar, where there is no colour."""
_PARTS = re.compile(rf" %|[{SHADES}] ")
_TIE = "\ue000"
"""Stands for a space at which no line is broken, before a percent sign and after a shade: a letter of no alphabet."""


WIDTH = 100


def screen() -> Console:
    """The usual console, at most as wide as the tables are made for."""
    console = out()
    console.width = min(console.width, WIDTH)
    return console


LONG = 24
"""A cell of more letters than this may be wrapped between its words; shorter ones stay whole."""
_WIDE = 10_000
_FEW_ROWS, _MOST_PARTS = 2, 4


class FittingTable(Table):
    """As wide as it likes where there is room. Where there is not, heads and long texts are wrapped first. Where that
    is not enough, the columns are set below each other in a few tables, each with the names of the rows; and where not
    even that helps each row becomes a few lines: its name, then each column with its value."""

    names = 1
    """Columns at the left that tell rows apart: each part of a table repeats them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """What `rich` draws."""
        whole = Measurement.get(console, options.update(width=_WIDE), self).maximum
        if not self.columns or whole <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        liked = [max(map(cell_len, _texts(column)), default=0) for column in self.columns]
        widths = _share(liked, [_least(column) for column in self.columns], options.max_width - (whole - sum(liked)))
        if not widths:
            yield from self._parts(console, options) or self._lines()
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.no_wrap, column.width, column.overflow = False, width, "fold"
        yield from super().__rich_console__(console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> list[Any]:
        """The columns in a few tables; nothing where that would be many, or where a row alone is easier to read."""
        if self.row_count < _FEW_ROWS:
            return []
        first, rest = self.columns[: self.names], self.columns[self.names :]
        groups: list[list[Column]] = []
        for column in rest:
            if groups and self._fits(console, options, [*first, *groups[-1], column]):
                groups[-1].append(column)
            elif self._fits(console, options, [*first, column]):
                groups.append([column])
            else:
                return []
        if len(groups) > _MOST_PARTS:
            return []
        drawn: list[Any] = []
        for number, group in enumerate(groups):
            drawn += [Text(""), self._with([*first, *group])] if number else [self._with([*first, *group])]
        return drawn

    def fits(self, console: Console) -> bool:
        """Whether all columns fit beside each other, with heads and long texts wrapped where needed."""
        return self._fits(console, console.options, self.columns)

    def _fits(self, console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> bool:
        """Whether some columns fit with their heads and long texts wrapped."""
        part = self._with(columns)
        whole = Measurement.get(console, options.update(width=_WIDE), part).maximum
        liked = sum(max(map(cell_len, _texts(column)), default=0) for column in columns)
        return whole - liked + sum(map(_least, columns)) <= options.max_width

    def _with(self, columns: Sequence[Column]) -> FittingTable:
        """The same rows with some of the columns."""
        part = FittingTable(box=self.box, show_edge=self.show_edge, pad_edge=self.pad_edge, padding=self.padding)
        for column in columns:
            part.add_column(column.header, justify=column.justify, style=column.style, no_wrap=column.no_wrap)
        for cells in zip(*(column.cells for column in columns), strict=True):
            part.add_row(*cells)
        return part

    def _lines(self) -> Iterator[Text]:
        """One row after the other, a line for each of its cells."""
        if self.title:
            yield Text(_plain(self.title), style="bold")
        heads = [_plain(column.header) for column in self.columns]
        for row in zip(*(column.cells for column in self.columns), strict=True):
            cells = [_plain(cell) for cell in row]
            first = f"{heads[0]} {cells[0]}" if cells[0] else heads[0]
            yield Text(first, style="cyan", overflow="fold")
            for head, cell in zip(heads[1:], cells[1:], strict=True):
                if cell.strip() and head:
                    yield Text(f"  {head}: {cell}", overflow="fold")
                elif cell.strip() and not cell.strip("█▌▓▒░ "):
                    continue
                elif cell.strip():
                    yield Text(f"  {cell}", overflow="fold")


def _share(liked: list[int], least: list[int], room: int) -> list[int]:
    """Widths that fill the room: what a column needs at least, and as much more of what it likes as there is."""
    spare = room - sum(least)
    if spare < 0:
        return []
    widths = list(least)
    for number in sorted(range(len(liked)), key=lambda each: liked[each] - least[each]):
        more = min(spare, liked[number] - least[number])
        widths[number] += more
        spare -= more
    return widths


def _least(column: Column) -> int:
    """Letters that a column needs at least: its short cells whole, of its head and of long cells the longest word."""
    head, *cells = _texts(column)
    parts = [part for cell in cells for part in ([cell] if cell_len(cell) <= LONG else cell.split())]
    return max((cell_len(part) for part in (*parts, *head.split())), default=1)


def _texts(column: Column) -> list[str]:
    """The head of a column, and its cells."""
    return [_plain(column.header), *(_plain(cell) for cell in column.cells)]


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
