"""Layers of transformers as lists of operations, as a model file would write them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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

    def with_window(self, window: int) -> Layer:
        return replace(self, window=window)

    def with_causal(self) -> Layer:
        return replace(self, causal=True)


def _attention(z: Layer, s: str, name: str = "mixed", **more: Any) -> Data:
    found = op(f"{name}{s}", "attention", heads=z.heads, kv_heads=z.kv_heads, head_dim=z.head_dim)
    if not z.causal:
        found["causal"] = False
    if z.window:
        found["window"] = z.window
    if z.bias:
        found["bias"] = True
    if z.mask_bits:
        found["mask_bits"] = True
    return found | more


def _linear(name: str, out: Any, split: str, bias: bool, **more: Any) -> Data:
    found = op(name, "linear", out=out, split=split, **more)
    if bias:
        found["bias"] = True
    return found


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
        found += [
            op("q_down", "linear", out=shape["q_rank"]),
            op("q_norm", "rmsnorm"),
            op("q", "linear", out=queries, split="out"),
        ]
    else:
        found.append(op("q", "linear", out=queries, split="out"))
    found += [
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
