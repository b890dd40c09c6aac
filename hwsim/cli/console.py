"""What all commands print with: two consoles, and one way to show an error.

Whatever is printed is shown as it is: square brackets mean nothing, and control characters are written out. What has a
style is put together by `styled`, piece by piece, so that no name and no text of a file is ever read as markup.
"""

from __future__ import annotations

import codecs
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from hwsim.files import write_text
from hwsim.record import finite
from hwsim.text import HIDDEN, visible

if TYPE_CHECKING:
    from rich.table import Table

    from hwsim.cli.table import FittingTable
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
    width = None if stream.isatty() else max(_WIDTH_IN_PIPES, shutil.get_terminal_size((0, 0)).columns)
    return PlainConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


STYLES = {"plain": "", "strong": "bold", "faint": "dim"}


def make_table(*columns: str, left: Sequence[int] = (0,)) -> FittingTable:
    from rich import box

    from hwsim.cli.table import FittingTable

    table = FittingTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for number, column in enumerate(columns):
        justify: Any = "left" if number in left else "right"
        table.add_column(column, justify=justify, style="cyan" if number == 0 else None, no_wrap=number > 0)
    return table


def titled_table(title: str, first: str) -> Table:
    """A table below its name, with its first column; the others are added by whoever fills it."""
    from rich import box

    from hwsim.cli.table import FittingTable

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
    """Words that go on under themselves, beside a label."""
    label = visible(label)
    lines = Text(visible(text), style=style).wrap(console, console.width - len(label))
    for number, line in enumerate(lines):
        line.rstrip()
        console.print(Text(label if number == 0 else " " * len(label), style="dim") + line)


WIDTH = 100


def screen() -> Console:
    """The usual console, at most as wide as the tables are made for."""
    console = out()
    console.width = min(console.width, WIDTH)
    return console
