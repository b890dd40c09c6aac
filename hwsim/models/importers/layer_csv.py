"""Tables of layers: SCALE-Sim's topologies, as convolutions or as M, N, K, and lists of operators.

A table of operators has the columns `name` and `op` (matmul, conv, or any other word, which is then a movement of
`read` and `write` numbers), `repeat`, and the sizes of each: m, n, k, batch; channels, height, width, filters, kernel,
stride, padding, groups.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO

from hwsim.errors import InputError
from hwsim.models.importers.layers import Data, op
from hwsim.spec.limits import LARGEST_SIZE

CONV = ("ifmap height", "ifmap width", "filter height", "filter width", "channels", "num filter", "strides")
GEMM = ("m", "n", "k")
MOST_ROWS = 1024


@dataclass(frozen=True)
class LayerRow:
    """A line of a table, by the names of its columns."""

    file: str
    line: int
    cells: Mapping[str, str]

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        text = self.cells.get(name, "").strip()
        if not text and default is not None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not least <= value <= LARGEST_SIZE:
            raise InputError(
                f"{self.file}:{self.line}: {name}: must be a whole number from {least} to {LARGEST_SIZE:,}, "
                f"found {text[:40]!r}"
            )
        return value

    def name(self, number: int) -> str:
        """What the layer is called, as files may call it."""
        text = next(iter(self.cells.values()), "")
        return f"{plain(text) or 'layer'}_{number}"


def plain(text: str) -> str:
    found = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]
    return found if found[:1].isalpha() else f"layer_{found}".rstrip("_")


def read_layers(file: str, text: str, name: str) -> tuple[Data, list[str]]:
    """The model file that a table describes, as plain data, and what was not understood."""
    rows = list(_rows(file, text))
    columns = list(rows[0].cells)
    known = {column.strip().lower() for column in columns}
    notes: list[str] = []
    if set(CONV) <= known:
        blocks = [_conv(row, n) for n, row in enumerate(rows, 1)]
    elif {"op", "name"} <= known:
        blocks = [_operator(row, n, notes) for n, row in enumerate(rows, 1)]
    elif set(GEMM) <= known:
        blocks = [_gemm(row, n) for n, row in enumerate(rows, 1)]
    else:
        raise InputError(
            f"{file}:1: the columns {', '.join(columns[:8])} are not known; a table of layers has "
            f"{', '.join(CONV)}, or M, N, K, or name, op and sizes"
        )
    made = {
        "format": 1, "name": name, "description": f"{len(blocks)} layers of a table.", "op": "model",
        "precision": "int8", "input": (1, 1, 1), "use": {"phase": "forward"}, "blocks": blocks,
    }  # fmt: skip
    return made, list(dict.fromkeys(notes))


def _rows(file: str, text: str) -> Iterator[LayerRow]:
    try:
        lines = list(csv.reader(StringIO(text), skipinitialspace=True))
    except csv.Error as error:
        raise InputError(f"{file}: not a table: {error}") from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if any(cell.strip() for cell in line)]
    if len(filled) < 2:
        raise InputError(f"{file}: a table of layers has a line of columns and a line for each layer")
    if len(filled) > MOST_ROWS:
        raise InputError(f"{file}: {len(filled):,} layers; at most {MOST_ROWS:,} are read")
    head = [cell.strip().lower() for cell in filled[0][1]]
    head = [cell for cell in head if cell] if not head[-1] else head
    for number, line in filled[1:]:
        cells = [cell.strip() for cell in line]
        if len([cell for cell in cells if cell]) < len(head) and "op" not in head:
            raise InputError(f"{file}:{number}: {len(head)} fields are needed, found {len([c for c in cells if c])}")
        yield LayerRow(file, number, dict(zip(head, cells + [""] * len(head), strict=False)))


def _conv(row: LayerRow, number: int) -> Data:
    height, width, r, s, channels, filters, stride = (row.number(name) for name in CONV)
    if r > height or s > width:
        raise InputError(f"{row.file}:{row.line}: a filter of {r} x {s} does not fit an image of {height} x {width}")
    conv = op("layer", "conv", channels=filters, kernel=(r, s) if r != s else r)
    if stride != 1:
        conv["stride"] = stride
    image = op("image", "view", makes=(channels, height, width))
    return {"name": row.name(number), "operations": [image, conv]}


def _gemm(row: LayerRow, number: int) -> Data:
    m, n, k = (row.number(name) for name in GEMM)
    product = op("layer", "product", m=m, n=n, k=k, weights=True)
    return {"name": row.name(number), "operations": [op("rows", "view", makes=(m, k)), product]}


def _operator(row: LayerRow, number: int, notes: list[str]) -> Data:
    kind = row.cells["op"].strip().lower()
    repeat = row.number("repeat", 1)
    called = f"{plain(row.cells['name'])}_{number}"
    if kind in ("matmul", "gemm", "linear", "bmm"):
        m, n, k, batch = row.number("m"), row.number("n"), row.number("k"), row.number("batch", 1)
        made = [op("rows", "view", makes=(m, k)),
                op("product", "product", m=m, n=n, k=k, batch=batch, weights=kind != "bmm")]  # fmt: skip
    elif kind in ("conv", "conv2d"):
        image = (row.number("channels"), row.number("height"), row.number("width"))
        conv = op("conv", "conv", channels=row.number("filters"), kernel=row.number("kernel"),
                  stride=row.number("stride", 1), padding=row.number("padding", 0, 0),
                  groups=row.number("groups", 1))  # fmt: skip
        made = [op("image", "view", makes=image), conv]
    else:
        read, write = row.number("read"), row.number("write")
        made = [op("moved", "move", read=read, write=write, what=kind[:60], makes=(write,))]
        notes.append(f"{kind}: not known; counted as a movement of its numbers")
    if repeat > 1:  # what comes out need not fit what comes in: layers of a table stand alone
        made.append(op("again", "view", makes=(1, 1, 1)))
    return (
        {"name": called, "repeat": repeat, "operations": made} if repeat > 1 else {"name": called, "operations": made}
    )
