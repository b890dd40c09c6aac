"""Layers of transformers as lists of operations, as a model file would write them.

Tables of layers: SCALE-Sim's topologies, as convolutions or as M, N, K, and lists of operators.

A table of operators has the columns `name` and `op` (matmul, conv, or any other word, which is then a movement of
`read` and `write` numbers), `repeat`, and the sizes of each: m, n, k, batch; channels, height, width, filters, kernel,
stride, padding, groups.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from hwsim.errors import InputError
from hwsim.spec.base import LARGEST_SIZE

Data = dict[str, Any]


def op(name: str, kind: str, **fields: Any) -> Data:
    """An entry of `operations`."""
    return {"name": name, "op": kind, **fields}


@dataclass(frozen=True)
class Layer:
    """Numbers of one layer of a transformer."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    gate: str = "swiglu"
    """swiglu or geglu, for a wide layer of two halves; nothing for one that has `activation` alone."""
    activation: str = "gelu"
    qkv_bias: bool = False
    key_bias: bool = True
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm: str = "rmsnorm"
    rope_dim: int | None = None
    """Channels of a head that are turned; all if not given, none if 0."""
    causal: bool = True
    window: int | None = None
    sandwich: bool = False
    """A norm behind attention and behind the wide layer, too."""
    separate: bool = False
    """Queries, keys and values in products of their own."""
    bias: bool = False
    """A learned bias by distance."""
    mask_bits: bool = False
    """Later tokens are hidden by a table of bits."""

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim


def _attention(z: Layer, s: str, name: str = "mixed", **more: Any) -> Data:
    found = op(f"{name}{s}", "attention", heads=z.heads, kv_heads=z.kv_heads, head_dim=z.head_dim)
    flags = {"window": z.window, "bias": z.bias, "mask_bits": z.mask_bits}
    return found | ({} if z.causal else {"causal": False}) | {name: said for name, said in flags.items() if said} | more


def _linear(name: str, out: Any, split: str, bias: bool, **more: Any) -> Data:
    return op(name, "linear", out=out, split=split, **more) | ({"bias": True} if bias else {})


def _heads(z: Layer, s: str, source: str) -> list[Data]:
    """Queries, keys and values from what `source` names, turned and mixed."""
    if z.separate or (z.qkv_bias and not z.key_bias):
        found = [
            _linear(f"q{s}", z.q, "out", z.qkv_bias, inputs=(source,)),
            _linear(f"k{s}", z.kv, "out", z.qkv_bias and z.key_bias, inputs=(source,)),
            _linear(f"v{s}", z.kv, "out", z.qkv_bias, inputs=(source,)),
        ]
        return [*found, _attention(z, s, inputs=(f"q{s}", f"k{s}", f"v{s}"))]
    found = [_linear(f"qkv{s}", (z.q, z.kv, z.kv), "out", z.qkv_bias, inputs=(source,))]
    if z.qk_norm:
        found.append(op(f"qk_norm{s}", "head_norm", heads=z.heads + z.kv_heads, head_dim=z.head_dim))
    turned = z.head_dim if z.rope_dim is None else z.rope_dim
    if turned:
        found.append(op(f"rope{s}", "rope", heads=z.heads + z.kv_heads, head_dim=turned))
    return [*found, _attention(z, s)]


def _wide(z: Layer, s: str, source: str, experts: Data | None) -> list[Data]:
    """The wide layer, or experts in its place."""
    if experts is not None:
        return [op(f"down{s}", "experts", inputs=(source,), **experts)]
    up: Any = (z.inner, z.inner) if z.gate else z.inner
    return [
        _linear(f"up{s}", up, "out", z.mlp_bias, inputs=(source,)),
        op(f"act{s}", z.gate or z.activation),
        _linear(f"down{s}", z.width, "in", z.mlp_bias),
    ]


def decoder_layer(z: Layer, *, suffix: str = "", experts: Data | None = None, start: str = "") -> list[Data]:
    """Norm first: attention and a wide layer, each added to what came in."""
    s = suffix
    came = start or ("input" if not s or s in ("_1", "_dense") else f"sum{_before(s)}")
    found = [op(f"norm1{s}", z.norm, inputs=(came,)), *_heads(z, s, f"norm1{s}")]
    found.append(_linear(f"out{s}", z.width, "in", z.out_bias))
    if z.sandwich:
        found.append(op(f"norm1b{s}", z.norm))
    found.append(op(f"middle{s}", "add", inputs=(found[-1]["name"], came)))
    found.append(op(f"norm2{s}", z.norm))
    found += _wide(z, s, f"norm2{s}", experts)
    if z.sandwich:
        found.append(op(f"norm2b{s}", z.norm))
    found.append(op(f"sum{s}", "add", inputs=(found[-1]["name"], f"middle{s}")))
    return found


def _before(suffix: str) -> str:
    """The suffix of the layer before, in a block of several."""
    if suffix == "_sparse":
        return "_dense"
    return f"_{int(suffix[1:]) - 1}"


def encoder_layer(z: Layer) -> list[Data]:
    """Norm last, as BERT has it."""
    return [
        *_heads(z, "", "input"),
        _linear("out", z.width, "in", z.out_bias),
        op("middle", "add", inputs=("out", "input")),
        op("norm1", z.norm),
        *_wide(z, "", "norm1", None),
        op("sum", "add", inputs=("down", "norm1")),
        op("norm2", z.norm),
    ]


def neox_layer(z: Layer, *, one_norm: bool = False) -> list[Data]:
    """Attention and wide layer side by side, both from what came in."""
    wide_from = "norm1" if one_norm else "norm2"
    found = [op("norm1", z.norm, inputs=("input",)), *_heads(z, "", "norm1")]
    found.append(_linear("out", z.width, "in", z.out_bias))
    if not one_norm:
        found.append(op("norm2", z.norm, inputs=("input",)))
    found += _wide(z, "", wide_from, None)
    found.append(op("both", "add", inputs=("out", "down")))
    found.append(op("sum", "add", inputs=("both", "input")))
    return found


def source_decoder_layer(z: Layer, *, suffix: str = "", experts: Data | None = None) -> list[Data]:
    """A layer of a decoder that also looks at the source."""
    s = suffix
    came = "input" if s in ("", "_dense") else f"sum{_before(s)}"
    found = [op(f"norm1{s}", z.norm, inputs=(came,)), *_heads(z, s, f"norm1{s}")]
    found.append(_linear(f"out{s}", z.width, "in", z.out_bias))
    found.append(op(f"own{s}", "add", inputs=(f"out{s}", came)))
    found.append(op(f"norm2{s}", z.norm))
    found.append(_linear(f"source_q{s}", z.q, "out", z.qkv_bias))
    if z.qkv_bias and not z.key_bias:
        found.append(_linear(f"source_k{s}", z.kv, "out", False, inputs=("source",)))
        found.append(_linear(f"source_v{s}", z.kv, "out", z.qkv_bias, inputs=("source",)))
        looks: tuple[str, ...] = (f"source_q{s}", f"source_k{s}", f"source_v{s}")
    else:
        found.append(_linear(f"source_kv{s}", (z.kv, z.kv), "out", z.qkv_bias, inputs=("source",)))
        looks = (f"source_q{s}", f"source_kv{s}")
    plain = replace(z, causal=False)
    found.append(_attention(plain, s, "looked", cross=True, inputs=looks))
    found.append(_linear(f"source_out{s}", z.width, "in", z.out_bias))
    found.append(op(f"middle{s}", "add", inputs=(f"source_out{s}", f"own{s}")))
    found.append(op(f"norm3{s}", z.norm))
    found += _wide(z, s, f"norm3{s}", experts)
    found.append(op(f"sum{s}", "add", inputs=(found[-1]["name"], f"middle{s}")))
    return found


def deepseek_layer(shape: Data, *, inner: int | None = None, experts: Data | None = None) -> list[Data]:
    """Latent attention, and a wide layer or experts."""
    heads, rank, rope = shape["heads"], shape["rank"], shape["rope_dim"]
    queries = heads * (shape["head_dim"] + rope)
    found = [op("norm1", "rmsnorm")]
    if shape["q_rank"]:
        found += [op("q_down", "linear", out=shape["q_rank"]), op("q_norm", "rmsnorm")]
    found += [
        op("q", "linear", out=queries, split="out"),
        op("kv_down", "linear", out=rank, inputs=("norm1",)),
        op("kv_norm", "rmsnorm"),
        op("k_rope", "linear", out=rope, inputs=("norm1",)),
        op("rope", "rope", heads=1, head_dim=rope),
        op("mixed", "latent_attention", heads=heads, rank=rank, head_dim=shape["head_dim"], rope_dim=rope,
           value_dim=shape["value_dim"], inputs=("q", "kv_norm", "rope")),
        op("out", "linear", out=shape["width"], split="in"),
        op("middle", "add", inputs=("out", "input")),
        op("norm2", "rmsnorm"),
    ]  # fmt: skip
    z = Layer(width=shape["width"], heads=heads, kv_heads=heads, head_dim=shape["head_dim"], inner=inner or 1)
    found += _wide(z, "", "norm2", experts)
    return [*found, op("sum", "add", inputs=("down", "middle"))]


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
    return {"name": called, **({"repeat": repeat} if repeat > 1 else {}), "operations": made}
