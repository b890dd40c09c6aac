"""Tables as all screens have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def make_table(*columns: str, left: Sequence[int] = (0,)) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for number, column in enumerate(columns):
        justify: Any = "left" if number in left else "right"
        table.add_column(column, justify=justify, style="cyan" if number == 0 else None, no_wrap=number > 0)
    return table
