"""Hugging Face `config.json`: the numbers of an architecture become the blocks of a model file.

What a config says is read by its own names, with the defaults that its family has; a field that is missing is named
with the file. What changes no shape (dropout, initialisation, token ids) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hwsim.errors import InputError
from hwsim.models.layers import (
    Data,
    Layer,
    decoder_layer,
    deepseek_layer,
    encoder_layer,
    neox_layer,
    op,
    source_decoder_layer,
)

MOST = 10**9
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu", "relu": "relu",
    "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "gelu_10": "gelu", "gelu_python": "gelu",
}  # fmt: skip
SKIPPED = ("quantization_config", "attn_logit_softcapping", "final_logit_softcapping")
"""Fields that change what is computed in ways that this importer leaves out: they are named in its report."""


@dataclass(frozen=True)
class Config:
    """A config with the file it is from: what is asked for is checked."""

    file: str
    data: Mapping[str, Any]

    def wrong(self, name: str, message: str) -> InputError:
        return InputError(f"{self.file}: {name}: {message}")

    def first(self, names: Sequence[str]) -> tuple[str, Any]:
        """The first of some fields that is there, with its name."""
        return next(((name, self.data[name]) for name in names if self.data.get(name) is not None), (names[0], None))

    def number(self, *names: str, default: int | None = None) -> int:
        """A whole number under the first of these names that is there."""
        name, value = self.first(names)
        if value is None and default is None:
            raise self.wrong(name, f"missing; a {self.family} config has to say it")
        if value is None:
            return int(default or 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"must be a whole number, found {_shown(value)}")
        if not 1 <= value <= MOST:
            raise self.wrong(name, f"must be from 1 to {MOST:,}, found {_shown(value)}")
        return value

    def optional(self, name: str) -> int | None:
        """A number that may be missing, null or 0."""
        return None if self.data.get(name) in (None, 0, -1, False) else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.first([name])[1]
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, found {_shown(value)}")
        return default if value is None else value

    def share(self, name: str, default: float) -> float:
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise self.wrong(name, f"must be a share from 0 to 1, found {_shown(value)}")
        return float(value)

    def activation(self, *names: str, default: str) -> str:
        name, value = self.first(names)
        if value is not None and (not isinstance(value, str) or value not in ACTIVATIONS):
            raise self.wrong(name, f"{_shown(value)} is not one of {', '.join(ACTIVATIONS)}")
        return default if value is None else ACTIVATIONS[value]

    @property
    def family(self) -> str:
        return str(self.data.get("model_type", ""))

    def heads(self, width: int) -> tuple[int, int, int]:
        """Heads of queries, of keys and values, and the width of one."""
        heads = self.number("num_attention_heads")
        kv_heads = self.number("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise self.wrong("num_key_value_heads", f"{heads} heads cannot share {kv_heads} evenly")
        if self.data.get("head_dim") is None and width % heads:
            raise self.wrong("num_attention_heads", f"{width} cannot be divided into {heads} heads")
        return heads, kv_heads, self.number("head_dim", default=max(1, width // heads))

    def layer(self, inner: str = "intermediate_size", **more: Any) -> Layer:
        """Width, heads and inner width under the usual names, with whatever else the family says."""
        width = self.number("hidden_size")
        heads, kv_heads, dim = self.heads(width)
        usual = {"width": width, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "inner": self.number(inner)}
        return Layer(**usual | more)

    def precision(self) -> str:
        known = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
        named = (known.get(str(self.data.get(name))) for name in ("torch_dtype", "dtype"))
        return next((found for found in named if found), "bf16")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_config(file: str, data: object, name: str) -> tuple[Data, list[str]]:
    """The model file that a config describes, as plain data, and what was not understood of it."""
    if not isinstance(data, dict):
        raise InputError(f"{file}: a config.json is an object of fields, found {type(data).__name__}")
    config = Config(file, data)
    family = data.get("model_type")
    if isinstance(data.get("text_config"), dict) and family not in FAMILIES:
        inner = data["text_config"]
        config = Config(f"{file}: text_config", inner)
        family = inner.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        from hwsim.spec.fields import did_you_mean

        known = ", ".join(sorted(FAMILIES))
        if family is None:
            raise InputError(f"{file}: model_type: missing; a config.json names its architecture; known: {known}")
        raise InputError(
            f"{file}: model_type: {_shown(family)} is not known{did_you_mean(str(family), FAMILIES)}; known: {known}; "
            "write its blocks by hand, or import it as ONNX or torch.export"
        )
    described = FAMILIES[family](config)
    notes = [f"{name}: not understood, and left out" for name in SKIPPED if config.data.get(name)]
    made = {
        "format": 1,
        "name": name,
        "description": f"A {family} model, from its config.json.",
        "op": "model",
        "precision": config.precision(),
        **described,
    }
    return made, notes


# Families -------------------------------------------------------------------------------------------------------------


PLAIN: Data = {
    "gate": "", "qkv_bias": True, "out_bias": True, "mlp_bias": True, "norm": "layernorm", "rope_dim": 0,
}  # fmt: skip
"""Layers before Llama: biases everywhere, layer norm, positions that are learned, nothing gated."""


def _llama(config: Config, *, qk_norm: bool = False, qkv_bias: bool = False, window: bool = False) -> Data:
    bias = config.flag("attention_bias", qkv_bias)
    layer = config.layer(
        qkv_bias=bias, out_bias=bias and not qkv_bias, mlp_bias=config.flag("mlp_bias", False), qk_norm=qk_norm,
        gate={"silu": "swiglu"}.get(config.activation("hidden_act", "hidden_activation", default="silu"), "geglu"),
        window=config.optional("sliding_window") if window else None,
    )  # fmt: skip
    return _decoder(config, layer.width, decoder_layer(layer), tied=config.flag("tie_word_embeddings", False))


def _decoder(
    config: Config, width: int, layer: list[Data], *, tied: bool, norm: str = "rmsnorm", positions: int | None = None,
    head_bias: bool = False, layers: str = "num_hidden_layers",
) -> Data:  # fmt: skip
    """Embedding, layers, norm, head."""
    vocabulary = config.number("vocab_size")
    first = [op("words", "embedding", rows=vocabulary, width=width)]
    if positions:
        first.append(op("positions", "positions", rows=positions))
    flags = {name: True for name, said in (("tied", tied), ("bias", head_bias)) if said}
    head = op("logits", "linear", out=vocabulary, split="out", rows_of="last", **flags)
    blocks = [
        {"name": "embedding", "operations": first},
        {"name": "layer", "repeat": config.number(layers), "operations": layer},
        {"name": "head", "operations": [op("norm", norm), head]},
    ]
    context = config.number("max_position_embeddings", "n_positions", "n_ctx", default=2048)
    return {"context": context, "use": {"prompt": min(1024, context), "generate": 128}, "blocks": blocks}


def _qwen(config: Config) -> Data:
    newer = config.family == "qwen3"
    return _llama(config, qk_norm=newer, qkv_bias=not newer, window=config.flag("use_sliding_window", False))


def _gemma(config: Config) -> Data:
    sandwich = config.family in ("gemma2", "gemma3", "gemma3_text")
    layer = config.layer(gate="geglu", sandwich=sandwich, qk_norm=config.family.startswith("gemma3"))
    made = _decoder(config, layer.width, decoder_layer(layer), tied=True)
    window = config.optional("sliding_window") if sandwich else None
    if window is None:
        return made
    every = config.number("sliding_window_pattern", default=6 if config.family.startswith("gemma3") else 2)
    local = replace(layer, window=window)
    groups, rest = divmod(config.number("num_hidden_layers"), every)
    if not groups:
        made["blocks"][1]["operations"] = decoder_layer(local)
        return made
    operations: list[Data] = []
    for number in range(every):
        operations += decoder_layer(layer if number == every - 1 else local, suffix=f"_{number + 1}")
    blocks = [{"name": "layers", "repeat": groups, "operations": operations}]
    if rest:
        blocks.append({"name": "last_layers", "repeat": rest, "operations": decoder_layer(local)})
    made["blocks"][1:2] = blocks
    return made


def _phi(config: Config) -> Data:
    turned = _turned(config, "partial_rotary_factor", 0.5)
    layer = config.layer(**PLAIN | turned, activation=config.activation("hidden_act", default="gelu_new"))
    made = neox_layer(layer, one_norm=True)
    return _decoder(config, layer.width, made, tied=False, norm="layernorm", head_bias=True)


def _turned(config: Config, name: str, default: float) -> Data:
    """The part of a head that is turned by its position."""
    dim = config.heads(config.number("hidden_size"))[2]
    return {"rope_dim": max(2, int(dim * config.share(name, default)) // 2 * 2)}


def _neox(config: Config) -> Data:
    turned, activation = _turned(config, "rotary_pct", 0.25), config.activation("hidden_act", default="gelu")
    layer = config.layer(**PLAIN | turned, activation=activation, mask_bits=True)
    made = neox_layer(layer) if config.flag("use_parallel_residual", True) else decoder_layer(layer)
    return _decoder(config, layer.width, made, tied=config.flag("tie_word_embeddings", False), norm="layernorm")


def _gpt2(config: Config) -> Data:
    width, heads = config.number("n_embd"), config.number("n_head")
    if width % heads:
        raise config.wrong("n_head", f"{width} cannot be divided into {heads} heads")
    layer = Layer(
        width=width, heads=heads, kv_heads=heads, head_dim=width // heads, mask_bits=True, **PLAIN,
        inner=config.number("n_inner", default=4 * width),
        activation=config.activation("activation_function", default="gelu_new"),
    )  # fmt: skip
    return _decoder(config, width, decoder_layer(layer), tied=config.flag("tie_word_embeddings", True),
                    norm="layernorm", positions=config.number("n_positions", "n_ctx", default=1024),
                    layers="n_layer")  # fmt: skip


def _opt(config: Config) -> Data:
    activation = config.activation("activation_function", default="relu")
    layer = config.layer("ffn_dim", **PLAIN, activation=activation, separate=True)
    positions = config.number("max_position_embeddings", default=2048) + 2
    return _decoder(config, layer.width, decoder_layer(layer), tied=config.flag("tie_word_embeddings", True),
                    norm="layernorm", positions=positions)  # fmt: skip


def _bert(config: Config) -> Data:
    activation = config.activation("hidden_act", default="gelu")
    heads = config.number("num_attention_heads")
    layer = config.layer(**PLAIN, kv_heads=heads, activation=activation, causal=False, separate=True)
    context = config.number("max_position_embeddings", default=512)
    first = [
        op("words", "embedding", rows=config.number("vocab_size"), width=layer.width),
        op("positions", "positions", rows=context),
        op("kinds", "positions", rows=config.number("type_vocab_size", default=2)), op("norm", "layernorm"),
    ]  # fmt: skip
    last = [op("first", "first_token"), op("pooled", "linear", out=layer.width, bias=True), op("act", "tanh")]
    blocks = [
        {"name": "embedding", "operations": first},
        {"name": "layer", "repeat": config.number("num_hidden_layers"), "operations": encoder_layer(layer)},
        {"name": "pooler", "operations": last},
    ]
    return {"context": context, "use": {"prompt": min(512, context), "phase": "forward"}, "blocks": blocks}


def _vit(config: Config) -> Data:
    side, patch = config.number("image_size", default=224), config.number("patch_size", default=16)
    if side % patch:
        raise config.wrong("patch_size", f"an image of {side} cannot be cut into patches of {patch}")
    own = {"qkv_bias": config.flag("qkv_bias", True), "activation": config.activation("hidden_act", default="gelu")}
    layer = config.layer(**PLAIN | own, kv_heads=config.number("num_attention_heads"), causal=False)
    first = [
        op("patches", "conv", channels=layer.width, kernel=patch, stride=patch, bias=True), op("tokens", "to_tokens"),
        op("class", "class_token"), op("positions", "positions", rows=(side // patch) ** 2 + 1),
    ]  # fmt: skip
    labels = config.data.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else 1000
    blocks = [
        {"name": "embedding", "operations": first},
        {"name": "layer", "repeat": config.number("num_hidden_layers"), "operations": decoder_layer(layer)},
        {"name": "head", "operations": [
            op("norm", "layernorm"), op("first", "first_token"), op("classes", "linear", out=classes, bias=True)]},
    ]  # fmt: skip
    channels = config.number("num_channels", default=3)
    return {"input": (channels, side, side), "use": {"phase": "forward"}, "blocks": blocks}


def _t5(config: Config) -> Data:
    gated = "gated" in str(config.data.get("feed_forward_proj", "relu"))
    return _two_towers(config, "geglu" if gated else "", sparse=None)


def _switch(config: Config) -> Data:
    experts = {
        "experts": config.number("num_experts"), "top_k": 1, "inner": config.number("d_ff"), "gated": False,
        "capacity": config.number("expert_capacity", default=64),
    }  # fmt: skip
    return _two_towers(config, "", sparse=experts)


def _two_towers(config: Config, gate: str, sparse: Data | None) -> Data:
    """An encoder that reads the source, and a decoder that looks at it; with experts in every second layer."""
    heads = config.number("num_heads")
    layer = Layer(
        width=config.number("d_model"), heads=heads, kv_heads=heads, head_dim=config.number("d_kv"),
        inner=config.number("d_ff"), gate=gate, activation="relu", causal=False, rope_dim=0, bias=True, separate=True,
    )  # fmt: skip
    layers, vocabulary = config.number("num_layers"), config.number("vocab_size")
    decoders = config.number("num_decoder_layers", default=layers)
    words = {"rows": vocabulary, "width": layer.width}
    tied = {"tied": True} if config.flag("tie_word_embeddings", True) else {}

    def tower(name: str, count: int, stream: str, make: Callable[..., list[Data]]) -> list[Data]:
        place = {"stream": "source"} if stream == "source" else {}
        if sparse is None:
            return [{"name": name, "repeat": count, **place, "operations": make(layer)}]
        pairs, rest = divmod(count, 2)
        both = [*make(layer, suffix="_dense"), *make(layer, suffix="_sparse", experts=sparse)]
        blocks = [{"name": name, "repeat": pairs, **place, "operations": both}] if pairs else []
        return blocks + ([{"name": f"{name}_last", **place, "operations": make(layer)}] if rest else [])

    own = replace(layer, causal=True)
    blocks = [
        {"name": "source_words", "stream": "source", "operations": [op("words", "embedding", **words)]},
        *tower("encoder", layers, "source", decoder_layer),
        {"name": "source_norm", "stream": "source", "operations": [op("norm", "rmsnorm")]},
        {"name": "words", "operations": [op("words", "embedding", **words)]},
        *tower("decoder", decoders, "tokens", lambda _, **more: source_decoder_layer(own, **more)),
    ]
    head = op("logits", "linear", out=vocabulary, split="out", rows_of="last", **tied)
    blocks.append({"name": "head", "operations": [op("norm", "rmsnorm"), head]})
    return {"use": {"prompt": 512, "generate": 64, "source": 512}, "blocks": blocks, "sizes": {}}


def _whisper(config: Config) -> Data:
    width, heads = config.number("d_model"), config.number("encoder_attention_heads")
    if width % heads:
        raise config.wrong("encoder_attention_heads", f"{width} cannot be divided into {heads} heads")
    activation = config.activation("activation_function", default="gelu")
    layer = Layer(
        width=width, heads=heads, kv_heads=heads, head_dim=width // heads, inner=config.number("encoder_ffn_dim"),
        activation=activation, causal=False, key_bias=False, **PLAIN,
    )  # fmt: skip
    frames = config.number("max_source_positions", default=1500)
    positions = config.number("max_target_positions", default=448)
    vocabulary = config.number("vocab_size")
    sound = [
        op("conv1", "conv", channels=width, kernel=(3, 1), padding=(1, 0), bias=True), op("act1", activation),
        op("conv2", "conv", channels=width, kernel=(3, 1), stride=(2, 1), padding=(1, 0), bias=True),
        op("act2", activation), op("frames", "to_tokens"), op("positions", "positions", rows=frames),
    ]  # fmt: skip
    blocks = [
        {"name": "sound", "stream": "source", "operations": sound},
        {"name": "encoder", "stream": "source", "repeat": config.number("encoder_layers"),
         "operations": decoder_layer(layer)},
        {"name": "source_norm", "stream": "source", "operations": [op("norm", "layernorm")]},
        {"name": "words", "operations": [
            op("words", "embedding", rows=vocabulary, width=width), op("positions", "positions", rows=positions)]},
        {"name": "decoder", "repeat": config.number("decoder_layers"),
         "operations": source_decoder_layer(replace(layer, causal=True))},
        {"name": "head", "operations": [
            op("norm", "layernorm"),
            op("logits", "linear", out=vocabulary, split="out", rows_of="last", tied=True)]},
    ]  # fmt: skip
    return {
        "input": (config.number("num_mel_bins", default=80), 2 * frames, 1), "context": positions,
        "use": {"prompt": 4, "generate": 64, "source": frames}, "blocks": blocks,
    }  # fmt: skip


def _mixture(config: Config) -> Data:
    """Llama's attention with experts in place of the wide layer: Mixtral, Qwen's mixtures."""
    inner = "moe_intermediate_size" if config.data.get("moe_intermediate_size") is not None else "intermediate_size"
    experts: Data = {
        "experts": config.number("num_local_experts", "num_experts"),
        "top_k": config.number("num_experts_per_tok", default=2), "inner": config.number(inner),
    }  # fmt: skip
    shared = config.optional("shared_expert_intermediate_size")
    if shared:
        experts["shared"] = shared
    step = config.number("decoder_sparse_step", default=1)
    if step != 1 or config.data.get("mlp_only_layers"):
        raise config.wrong("decoder_sparse_step", "only models with experts in every layer are read")
    layer = config.layer(
        inner,
        qkv_bias=config.flag("attention_bias", config.family == "qwen2_moe"), qk_norm=config.family == "qwen3_moe",
        window=config.optional("sliding_window") if config.family == "mixtral" else None,
    )  # fmt: skip
    made = decoder_layer(layer, experts=experts)
    return _decoder(config, layer.width, made, tied=config.flag("tie_word_embeddings", False))


def _deepseek(config: Config) -> Data:
    width, dense = config.number("hidden_size"), config.number("first_k_dense_replace", default=1)
    shared = config.number("n_shared_experts", default=1) * config.number("moe_intermediate_size")
    experts = {
        "experts": config.number("n_routed_experts"), "top_k": config.number("num_experts_per_tok"),
        "inner": config.number("moe_intermediate_size"), "shared": shared,
    }  # fmt: skip
    shape: Data = {
        "width": width, "heads": config.number("num_attention_heads"), "rank": config.number("kv_lora_rank"),
        "head_dim": config.number("qk_nope_head_dim"), "rope_dim": config.number("qk_rope_head_dim"),
        "value_dim": config.number("v_head_dim"), "q_rank": config.optional("q_lora_rank"),
    }  # fmt: skip
    sparse = deepseek_layer(shape, experts=experts)
    made = _decoder(config, width, sparse, tied=config.flag("tie_word_embeddings", False))
    made["blocks"][1]["repeat"] -= dense
    first = {"name": "dense_layer", "repeat": dense,
             "operations": deepseek_layer(shape, inner=config.number("intermediate_size"))}  # fmt: skip
    made["blocks"].insert(1, first)
    return made


FAMILIES: Mapping[str, Callable[[Config], Data]] = {
    "llama": _llama,
    "mistral": partial(_llama, window=True),
    "qwen2": _qwen,
    "qwen3": _qwen,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    "phi": _phi,
    "phi3": partial(_llama, window=True),
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "opt": _opt,
    "bert": _bert,
    "roberta": _bert,
    "vit": _vit,
    "t5": _t5,
    "switch_transformers": _switch,
    "whisper": _whisper,
    "mixtral": _mixture,
    "qwen2_moe": _mixture,
    "qwen3_moe": _mixture,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
