"""Weights, multiply-adds and kept keys of the stock models equal what others have published."""

from __future__ import annotations

import pytest

from hwsim.catalog import model_names
from hwsim.models.count import active_parameters, expected_experts, kept, kept_per_token, macs, parameters
from hwsim.models.graph import Graph
from hwsim.models.load import load_model
from hwsim.models.phase import decode, forward, prefill

PARAMETERS = {
    # Hugging Face model cards (safetensors metadata: number of parameters)
    "llama2_7b": 6_738_415_616,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "qwen3_32b": 32_762_123_264,
    "mixtral_8x7b": 46_702_792_704,
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "opt_1_3b": 1_315_758_080,
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "whisper_small": 241_734_912,
    # DeepSeek-V3 technical report, section 4.2: 671 B; the card's 671,026,419,200 has a bias for each expert's score
    # in 58 layers of 256 experts more
    "deepseek_v3": 671_026_419_200 - 58 * 256,
    # torchvision, "num_params" of each set of weights
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "vit_b16": 86_567_656,
    # timm, results table: mixer_b16_224 has 59.88 M
    "mlp_mixer": 59_880_472,
    # mateuszbuda/brain-segmentation-pytorch has 7,763,041 with the same channels and one class; a second has 33 more
    "unet": 7_763_041 + 33,
}

MACS = {
    # torchvision, "_ops" of each set of weights, in billions of multiply-adds
    "resnet18": 1.814,
    "resnet50": 4.089,
    "mobilenet_v2": 0.301,
    "vit_b16": 17.564,
    # timm, benchmark table (rounded; norms and means counted in)
    "mlp_mixer": 12.62,
}


def graph(name: str, **split: int) -> Graph:
    return Graph.of(load_model(name).model, **split)


def test_every_stock_model_has_a_published_count() -> None:
    assert set(model_names()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_that_were_published(name: str) -> None:
    assert parameters(graph(name)) == PARAMETERS[name]


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
    from hwsim.models.importers.config_json import read_config
    from hwsim.models.load import model_from_data

    numbers = {
        "model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "sliding_window": 8,
    }  # fmt: skip
    small = Graph.of(model_from_data(read_config("c", numbers, "small")[0], "c"))
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
    assert parameters(first) + parameters(last) == parameters(whole)
