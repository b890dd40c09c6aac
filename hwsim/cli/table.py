"""Tables that stay readable on a narrow screen: no name is cut, and no number loses its unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

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
