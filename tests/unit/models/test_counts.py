"""Weights, multiply-adds and kept keys of the stock models equal what others have published."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from hwsim.catalog import load_machine, model_names
from hwsim.models.count import (
    Formats,
    active_parameters,
    decode,
    expected_experts,
    forward,
    kept,
    kept_per_token,
    macs,
    macs_of,
    parameters,
    prefill,
    train,
)
from hwsim.models.graph import ModelGraph, ModelNode
from hwsim.models.load import load_model, model_from_data
from hwsim.models.memory import KeptTensors, Segments, memory_use, weight_bytes

PARAMETERS = {
    # KerasHub's presets, "params" of llama_7b_en, qwen3_32b_en, mixtral_8_7b_en, gpt2_*_en, bert_*_en_uncased and
    # whisper_small_multi; Llama 2 7B has the sizes of the first 7B
    "llama2_7b": 6_738_415_616,
    "qwen3_32b": 32_762_123_264,
    "mixtral_8x7b": 46_702_792_704,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "whisper_small": 241_734_912,
    # the number of parameters that Hugging Face's API tells of their safetensors
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    # derived from its layer sizes, see below; 1.3 B in Zhang and others, OPT, 2022, table 1
    "opt_1_3b": 1_315_758_080,
    # DeepSeek-V3 technical report, section 4.2: 671 B. All tensors of the 61 layers hold 671,026,419,200 numbers, of
    # which a bias for each expert's score, in 58 layers of 256 experts, is not counted here
    "deepseek_v3": 671_026_419_200 - 58 * 256,
    # torchvision, "num_params" of IMAGENET1K_V1 of each model
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "vit_b16": 86_567_656,
    # derived from its layer sizes, see below; timm's card of mixer_b16_224 says 59.9 M
    "mlp_mixer": 59_880_472,
    # a U-Net of 32 to 512 channels with batch norm, three channels in and one class has 7,763,041 by many counts; a
    # second class has 33 more
    "unet": 7_763_041 + 33,
}

MACS = {
    # torchvision, "_ops" of IMAGENET1K_V1 of each model, in billions of multiply-adds
    "resnet18": 1.814,
    "resnet50": 4.089,
    "mobilenet_v2": 0.301,
    "vit_b16": 17.564,
    # derived from its layer sizes; timm's card says 12.6
    "mlp_mixer": (196 * 768 * 768 + 12 * (768 * 2 * 196 * 384 + 196 * 2 * 768 * 3072) + 768 * 1000) / 1e9,
}


def graph(name: str, **split: int) -> ModelGraph:
    return ModelGraph.of(load_model(name).model, **split)


def test_every_stock_model_has_a_published_count() -> None:
    assert set(model_names()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_that_were_published(name: str) -> None:
    assert parameters(graph(name)) == PARAMETERS[name]


def llama(width: int, layers: int, inner: int, kv: int, words: int, experts: int = 1, extra: int = 0) -> int:
    """Tables of words at both ends; q and out of the full width, k and v, a gated wide layer or experts, two norms."""
    wide = experts * 3 * width * inner + (experts * width if experts > 1 else 0)
    return 2 * words * width + layers * (2 * width * width + 2 * width * kv + wide + 2 * width + extra) + width


def gpt2(width: int, layers: int, words: int, places: int) -> int:
    """Four products of attention and eight of the wide layer in units of width², biases, norms."""
    return (words + places) * width + layers * (12 * width * width + 13 * width) + 2 * width


def bert(width: int, layers: int) -> int:
    """As GPT-2, with two kinds of segments, a norm behind the tables and a pooled token."""
    tables = (30_522 + 512 + 2) * width + 2 * width
    return tables + layers * (12 * width * width + 13 * width) + width * width + width


DERIVED = {
    # sizes: config.json of each model, as Hugging Face has it
    "llama2_7b": llama(4096, 32, 11008, 4096, 32_000),
    "llama3_8b": llama(4096, 32, 14336, 1024, 128_256),
    "llama3_70b": llama(8192, 80, 28672, 1024, 128_256),
    "mixtral_8x7b": llama(4096, 32, 14336, 1024, 32_000, experts=8),
    # its 64 heads of 128 are wider than the model, and q and k of each head are normalised
    "qwen3_32b": llama(5120, 64, 25600, 1024, 151_936, extra=2 * 5120 * (64 * 128 - 5120) + 2 * 128),
    "gpt2": gpt2(768, 12, 50_257, 1024),
    "gpt2_medium": gpt2(1024, 24, 50_257, 1024),
    "gpt2_large": gpt2(1280, 36, 50_257, 1024),
    "gpt2_xl": gpt2(1600, 48, 50_257, 1024),
    # two of its 2,050 rows of positions are never used, and are stored
    "opt_1_3b": gpt2(2048, 24, 50_272, 2050),
    "bert_base": bert(768, 12),
    "bert_large": bert(1024, 24),
    # Tolstikhin and others, MLP-Mixer, 2021, table 1: patches of 16 x 16, 196 of them, widths 384 and 3072 inside
    "mlp_mixer": 16 * 16 * 3 * 768 + 768 + 12 * (2 * 196 * 384 + 384 + 196 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    + 2 * 768 + 768 * 1000 + 1000,
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_published_parameters_follow_from_the_sizes_of_the_layers(name: str) -> None:
    """A sum by hand: what was published, and what a model file holds, are that of the architecture."""
    assert DERIVED[name] == PARAMETERS[name]


@pytest.mark.parametrize("name", MACS)
def test_multiply_adds_of_an_image_are_those_that_were_published(name: str) -> None:
    assert macs(graph(name), forward(1, 1)) / 1e9 == pytest.approx(MACS[name], rel=0.002)


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "head_dim"),
    [("llama2_7b", 32, 32, 128), ("llama3_8b", 32, 8, 128), ("llama3_70b", 80, 8, 128), ("qwen3_32b", 64, 8, 128),
     ("mixtral_8x7b", 32, 8, 128), ("gpt2_xl", 48, 25, 64), ("opt_1_3b", 24, 32, 64)],
)  # fmt: skip
def test_the_cache_keeps_a_key_and_a_value_of_each_head_and_layer(
    name: str, layers: int, kv_heads: int, head_dim: int
) -> None:
    assert kept_per_token(graph(name)) == 2 * layers * kv_heads * head_dim


def test_latent_attention_keeps_one_vector_and_one_turned_key() -> None:
    """DeepSeek-V3 technical report, section 2.1.1: d_c = 512 and d_h^R = 64, in 61 layers."""
    assert kept_per_token(graph("deepseek_v3")) == 61 * (512 + 64)


MASKS = 1024 * 1024 * 4
"""Published GPT-2 files hold a causal mask in fp32 beside the weights of each layer."""
PUBLISHED_BYTES = {
    # "total_size" of model.safetensors.index.json: meta-llama/Meta-Llama-3-8B, Meta-Llama-3-70B, Qwen/Qwen3-32B,
    # mistralai/Mixtral-8x7B-v0.1
    "llama3_8b": ("bf16", 16_060_522_496, 0),
    "llama3_70b": ("bf16", 141_107_412_992, 0),
    "qwen3_32b": ("bf16", 65_524_246_528, 0),
    "mixtral_8x7b": ("bf16", 93_405_585_408, 0),
    # size of model.safetensors of whisper-small on Hugging Face; 55 kB of it are the names of its tensors
    "whisper_small": ("fp32", 966_995_080, 0),
    # sizes that Hugging Face shows of model.safetensors of gpt2, gpt2-large and gpt2-xl
    "gpt2": ("fp32", 548e6, 12 * MASKS),
    "gpt2_large": ("fp32", 3.25e9, 36 * MASKS),
    "gpt2_xl": ("fp32", 6.43e9, 48 * MASKS),
    # pytorch_model.bin of facebook/opt-1.3b, in half precision
    "opt_1_3b": ("fp16", 2.63e9, 0),
    # model.safetensors of google-bert/bert-large-uncased, with the head that finds missing words and the one that tells
    # sentences apart
    "bert_large": ("fp32", 1.34e9, 4 * (1024 * 1024 + 3 * 1024 + 30_522 + 2 * 1025)),
    # torchvision's pages of resnet18, resnet50, mobilenet_v2 and vit_b_16, "File size" in MiB, means and variances of
    # batch norms and the names of tensors counted in
    "resnet18": ("fp32", 44.7 * 2**20, 4 * 2 * 4800),
    "resnet50": ("fp32", 97.8 * 2**20, 4 * 2 * 26_560),
    "mobilenet_v2": ("fp32", 13.6 * 2**20, 4 * 2 * 17_056),
    "vit_b16": ("fp32", 330.3 * 2**20, 0),
}


@pytest.mark.parametrize("name", PUBLISHED_BYTES)
def test_weights_take_the_bytes_of_the_published_files(name: str) -> None:
    """Exactly where a file tells its bytes, to the shown digits where a page rounds them; 128 KiB may be names of
    tensors."""
    precision, published, beside = PUBLISHED_BYTES[name]
    found = weight_bytes(graph(name), Formats(precision, precision, precision)) + beside
    exact = isinstance(published, int) and name != "whisper_small"
    assert found == published if exact else found == pytest.approx(published, rel=0.004, abs=128 * 1024)


@pytest.mark.parametrize(("name", "published"), [("llama3_8b", 128), ("gpt2_xl", 300), ("deepseek_v3", 68.6)])
def test_the_cache_takes_the_published_bytes_of_a_token(name: str, published: float) -> None:
    """KiB in 16 bits: "The weight of remembering" (news.future-shock.ai) for all three; the report of DeepSeek-V3 on
    hardware says 70.272 kB of the latent form, which is the same."""
    found = Formats("bf16", "bf16", "bf16").kv_bytes(kept_per_token(graph(name)))
    assert found / 1024 == pytest.approx(published, rel=0.001)


@pytest.mark.parametrize(("seq", "batch"), [(1024, 1), (2048, 4)])
def test_activations_of_a_trained_layer_follow_the_published_formula(seq: int, batch: int) -> None:
    """Korthikanti and others, "Reducing Activation Recomputation in Large Transformer Models", 2022, equation 1: a
    layer keeps s b h (34 + 5 a s / h) bytes in fp16 with dropout, and s b h 2 with full recomputation, table 2."""
    heads, width, layers = 16, 1024, 24
    whole = graph("gpt2_medium")
    layer = replace(whole, blocks=tuple(block for block in whole.blocks if block.repeat > 1))
    plain = replace(layer, blocks=tuple(replace(b, nodes=tuple(_with_gelu(n) for n in b.nodes)) for b in layer.blocks))

    def kept_by(recompute: bool) -> int:
        numbers = Formats("fp16", "fp16", "fp16")
        return memory_use(
            plain, numbers, train(batch, seq), "eager", context=seq, dropout="all", recompute=recompute
        ).activations

    published = seq * batch * width * (34 + 5 * heads * seq / width)
    assert kept_by(False) == layers * published
    assert kept_by(True) == layers * 2 * seq * batch * width + published  # and one layer that is computed again


def _with_gelu(node: ModelNode) -> ModelNode:
    """The formula is of an activation in one step."""
    return replace(node, op=node.op.model_copy(update={"op": "gelu"})) if node.word == "gelu_new" else node


def test_memory_that_was_given_back_is_asked_for_in_segments() -> None:
    """PyTorch, c10/cuda/CUDACachingAllocator.cpp: BERT large keeps of each layer scores of 32 MiB twice and a mask of
    8 MiB, six tensors of 4 MiB with masks of 1 MiB, and two of 16 MiB."""
    numbers, phase = Formats("fp32", "fp32", "fp32"), train(2, 512)
    whole = graph("bert_large")
    layer = replace(whole, blocks=tuple(block for block in whole.blocks if block.repeat > 1))
    found = Segments.of(layer, KeptTensors(numbers, phase, "eager", "all"))
    large = 24 * 4
    small = 24 * (8 + 8 * 4 + 2 * 1)
    assert found.count == large + -(-small // 20)
    assert found.size == 24 * (2 * 32 + 2 * 16 << 20) + -(-small // 20) * (20 << 20)


def test_what_amd_wipes_is_waited_for_only_where_memory_is_short() -> None:
    """Half of what is free can be given out at once while the other half is wiped."""
    machine = load_machine("mi210").spec
    has, rate = 64 * 2**30, 34e9
    assert Segments(10, has // 4).seconds(machine, has // 2) == (pytest.approx(1e-3), 0)
    assert Segments(10, has // 2).seconds(machine, has // 4)[1] == pytest.approx(has / 4 / rate)
    assert Segments(10, has // 2).seconds(load_machine("h100").spec, has // 4)[1] == 0


def test_a_token_meets_two_of_eight_experts() -> None:
    """Mixtral of Experts, 2024: 13 B active parameters; the table of the embedding is looked up, not met."""
    assert active_parameters(graph("mixtral_8x7b")) == 12_748_853_248


def test_a_forward_pass_has_a_multiply_add_for_each_weight_and_token_and_those_of_attention() -> None:
    whole = graph("llama3_8b")
    n = 512
    products = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    attention = 32 * 32 * (n * (n + 1) // 2) * 2 * 128
    assert macs(whole, forward(1, n)) == n * products + attention
    assert macs(whole, prefill(1, n)) == macs(whole, forward(1, n)) - (n - 1) * 4096 * 128256
    assert macs(whole, decode(1, n)) == products + 32 * 32 * (n + 1) * 2 * 128


def test_a_window_bounds_what_is_kept_and_what_is_seen() -> None:
    from hwsim.models.config_json import read_config
    from hwsim.models.load import model_from_data

    numbers = {
        "model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "sliding_window": 8,
    }  # fmt: skip
    small = ModelGraph.of(model_from_data(read_config("c", numbers, "small")[0], "c"))
    assert kept(small, 100) == 8 * kept_per_token(small) == 8 * 2 * 2 * 2 * 16
    seen = [min(token, 8) for token in range(1, 21)]
    before = macs(small, forward(1, 20)) - 20 * (2 * (64 * 128 + 64 * 64 + 3 * 64 * 128) + 64 * 100)
    assert before == 2 * 4 * sum(seen) * 2 * 16


@pytest.mark.parametrize(("tokens", "busy"), [(1, 8), (16, 102), (10_000, 256)])
def test_the_number_of_experts_that_are_chosen_at_all(tokens: int, busy: int) -> None:
    """Of 256 experts with 8 for each token: 256 (1 - (1 - 8/256)^tokens), as the linearity of the mean gives it."""
    found = expected_experts(tokens, 256, 8)
    assert found.busy == busy
    assert found.busy * found.tokens >= 8 * tokens


@pytest.mark.parametrize("name", ["llama3_8b", "mixtral_8x7b", "deepseek_v3"])
def test_four_devices_hold_the_weights_once_but_for_what_they_all_need(name: str) -> None:
    """Norms, the router and what is not split stay whole; everything else is a quarter."""
    whole, part = graph(name), graph(name, tp=4)
    assert whole.exchanges == ()
    held = 4 * parameters(part)
    assert parameters(whole) < held < 1.06 * parameters(whole)
    layers = [each for each in part.exchanges if each.block == "layer"]
    assert [(each.after, each.collective) for each in layers] == [("out", "all_reduce"), ("down", "all_reduce")]
    assert layers[0].flow.width == whole.blocks[-1].nodes[0].flow.width


def test_devices_in_line_share_the_layers() -> None:
    whole = graph("llama3_8b")
    first, last = whole.layers(0, 20), whole.layers(20, 12)
    assert [(block.name, block.repeat) for block in first.blocks] == [("embedding", 1), ("layer", 20)]
    assert [(block.name, block.repeat) for block in last.blocks] == [("layer", 12), ("head", 1)]


@pytest.mark.parametrize("name", ["gpt2", "bert_base", "llama3_8b", "mixtral_8x7b", "deepseek_v3"])
@pytest.mark.parametrize("cuts", [(), (1,), (3, 7)])
def test_devices_in_line_hold_every_weight_once(name: str, cuts: tuple[int, ...]) -> None:
    whole = graph(name)
    total = sum(block.repeat for block in whole.blocks if block.repeat > 1)
    edges = [0, *cuts, total]
    parts = [whole.layers(first, last - first) for first, last in pairwise(edges)]
    assert sum(map(parameters, parts)) == parameters(whole)
    phase = decode(2, 100)
    assert sum(macs(part, phase) for part in parts) == macs(whole, phase)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_a_device_has_its_share_of_heads_experts_and_inner_widths(tp: int, ep: int) -> None:
    """Mixtral: 32 heads on 8 of keys, 8 experts of 14,336 inner values."""
    (layer,) = (block for block in graph("mixtral_8x7b", tp=tp, ep=ep).blocks if block.repeat > 1)
    sizes = {name: size for node in layer.nodes for name, size in node.sizes.items()}
    found = [sizes[name] for name in ("heads", "kv_heads", "inner", "experts")]
    assert found == [32 // tp, 8 // tp, 14_336 // tp, 8 // ep]


@pytest.mark.parametrize("name", ["gpt2", "mixtral_8x7b"])
def test_one_device_divides_no_tokens(name: str) -> None:
    """Sequence parallelism is what the devices of a tensor group do between products: one has nobody to do it with."""
    alone = graph(name, sp=1)
    assert (alone.scattered, alone.exchanges) == (frozenset(), ())
    assert graph(name, tp=2, sp=1).scattered


@pytest.mark.parametrize(
    ("weights", "optimizer", "each"),
    [("fp16", "adam", 12), ("fp32", "adam", 8), ("fp16", "sgd", 4), ("fp32", "sgd", 0), ("bf16", "none", 0)],
)
def test_an_optimizer_keeps_two_means_in_fp32_and_a_copy_of_narrow_weights(
    weights: str, optimizer: str, each: int
) -> None:
    """Rajbhandari and others, "ZeRO", 2020, section 3.1: 12 bytes of a parameter for Adam beside weights of 16 bits."""
    whole = graph("gpt2")
    use = memory_use(whole, Formats(*[weights] * 3), train(1, 64), "eager", context=64, optimizer=optimizer)
    assert use.optimizer == each * parameters(whole)
    assert use.gradients == use.weights == parameters(whole) * (4 if weights == "fp32" else 2)
    assert use.total == use.weights + use.gradients + use.optimizer + use.activations


def test_a_decode_step_over_latent_vectors_multiplies_what_they_are_made_of() -> None:
    """DeepSeek-V2, 2.1: queries are brought to the latent vectors, which all heads share; a token sees itself, too."""
    graph = ModelGraph.of(load_model("deepseek_v3").model)
    node = next(each for block in graph.blocks for each in block.nodes if each.word == "latent_attention")
    z, batch, context = node.sizes, 3, 200
    seen = z["heads"] * (context + 1) * (2 * z["rank"] + z["rope_dim"])
    up = z["rank"] * z["heads"] * (z["head_dim"] + z["value_dim"])
    assert macs_of(node, decode(batch, context)) == batch * (up + seen)
    whole = macs_of(node, prefill(batch, context))
    pairs = context * (context + 1) // 2
    assert whole == batch * (context * up + z["heads"] * pairs * (z["head_dim"] + z["rope_dim"] + z["value_dim"]))


@pytest.mark.parametrize(("gated", "matrices"), [(True, 3), (False, 2)])
def test_experts_with_a_capacity_compute_that_many_tokens_whoever_is_sent(gated: bool, matrices: int) -> None:
    """Each of 4 experts computes 5 tokens of width 16 by matrices of 16 x 32; the router scores all 10 tokens."""
    experts = {"name": "mix", "op": "experts", "experts": 4, "top_k": 2, "inner": 32, "gated": gated, "capacity": 5}
    model = model_from_data(
        {"format": 1, "name": "few", "description": "", "op": "model", "precision": "bf16", "input": "features",
         "width": 16, "blocks": [{"name": "net", "operations": [experts]}]},
        "few",
    )  # fmt: skip
    (node,) = ModelGraph.of(model).blocks[0].nodes
    assert macs_of(node, forward(1, 10)) == 10 * 16 * 4 + 4 * 5 * 16 * 32 * matrices
