"""Files of other programs: what is read equals what was written, and a bad file is told what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwsim.catalog import load_workload
from hwsim.errors import InputError
from hwsim.models.config_json import FAMILIES, read_config
from hwsim.models.count import forward, kept_per_token, macs, parameters
from hwsim.models.graph import ModelGraph
from hwsim.models.load import import_file, load_model, model_from_data, model_yaml
from hwsim.models.traced import Traced

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 500,
}  # fmt: skip


def config(tmp_path: Path, data: Any, name: str = "config.json") -> Path:
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32},
    "opt": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 100},
    "t5": {"d_model": 64, "d_kv": 16, "num_heads": 4, "num_layers": 2, "d_ff": 128, "vocab_size": 100},
    "switch_transformers": {"d_model": 64, "d_kv": 16, "num_heads": 4, "num_layers": 4, "d_ff": 128, "vocab_size": 100,
                            "num_experts": 4, "expert_capacity": 8},
    "whisper": {"d_model": 64, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "encoder_layers": 2,
                "decoder_layers": 2, "vocab_size": 100},
    "vit": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "deepseek_v2": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "kv_lora_rank": 32,
                    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "intermediate_size": 128,
                    "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "vocab_size": 100},
    "mixtral": {**LLAMA, "num_local_experts": 4},
    "qwen2_moe": {**LLAMA, "num_experts": 4, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {**LLAMA, "num_experts": 4, "moe_intermediate_size": 32},
    "gemma2": {**LLAMA, "num_hidden_layers": 5, "sliding_window": 16, "head_dim": 32},
    "bert": {**LLAMA, "num_key_value_heads": 4},
}  # fmt: skip
SMALL["deepseek_v3"] = {**SMALL["deepseek_v2"], "q_lora_rank": 24}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_makes_a_model_whose_operations_fit_each_other(family: str) -> None:
    data = {**SMALL.get(family, LLAMA), "model_type": family}
    model = model_from_data(read_config("config.json", data, "small")[0], "config.json")
    graph = ModelGraph.of(model)
    assert parameters(graph) > 0
    assert macs(graph, forward(1, 8, 8)) > 0


def like_llama(family: str, width: int, layers: int, heads: int, kv: int, inner: int, words: int, **more: Any) -> Any:
    return {
        "model_type": family, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": inner, "vocab_size": words, **more,
    }  # fmt: skip


EXPERTS = {"moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4}
LATENT = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
PUBLISHED: dict[str, tuple[Any, int, int, int]] = {
    # config.json on Hugging Face, and the number of parameters that its API tells of the safetensors; channels of a
    # head that positions turn (their papers: 40 % of Phi-2's, a quarter of GPT-NeoX's); numbers kept for each token
    "Mistral-7B-v0.1": (like_llama("mistral", 4096, 32, 32, 8, 14336, 32_000), 7_241_732_096, 128, 2 * 32 * 1024),
    "Qwen2-7B": (like_llama("qwen2", 3584, 28, 28, 4, 18944, 152_064), 7_615_616_512, 128, 2 * 28 * 512),
    "gemma-2b": (like_llama("gemma", 2048, 18, 8, 1, 16384, 256_000, head_dim=256), 2_506_172_416, 256, 2 * 18 * 256),
    "gemma-2-2b": (like_llama("gemma2", 2304, 26, 8, 4, 9216, 256_000, head_dim=256), 2_614_341_888, 256,
                   2 * 26 * 1024),
    "gemma-3-1b": (like_llama("gemma3_text", 1152, 26, 4, 1, 6912, 262_144, head_dim=256), 999_885_952, 256,
                   2 * 26 * 256),
    "phi-2": (like_llama("phi", 2560, 32, 32, 32, 10240, 51_200, partial_rotary_factor=0.4), 2_779_683_840, 32,
              2 * 32 * 2560),
    "Phi-3-mini": (like_llama("phi3", 3072, 32, 32, 32, 8192, 32_064), 3_821_079_552, 96, 2 * 32 * 3072),
    # Black and others, GPT-NeoX-20B, 2022, section 2
    "gpt-neox-20b": (like_llama("gpt_neox", 6144, 44, 64, 64, 24576, 50_432, rotary_pct=0.25), 20_554_567_680, 24,
                     2 * 44 * 6144),
    "roberta-base": (like_llama("roberta", 768, 12, 12, 12, 3072, 50_265, max_position_embeddings=514,
                                type_vocab_size=1), 124_645_632, 0, 0),
    "Qwen3-30B-A3B": (like_llama("qwen3_moe", 2048, 48, 32, 4, 6144, 151_936, head_dim=128, moe_intermediate_size=768,
                                 num_experts=128, num_experts_per_tok=8), 30_532_122_624, 128, 2 * 48 * 512),
    # but for the gate of the common expert: a number for each channel and layer
    "Qwen1.5-MoE-A2.7B": (like_llama("qwen2_moe", 2048, 24, 16, 16, 5632, 151_936, **EXPERTS,
                                     shared_expert_intermediate_size=5632), 14_315_784_192 - 24 * 2048, 128,
                          2 * 24 * 2048),
    "DeepSeek-V2-Lite": (like_llama("deepseek_v2", 2048, 27, 16, 16, 10944, 102_400, **LATENT, q_lora_rank=None,
                                    moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2,
                                    num_experts_per_tok=6, first_k_dense_replace=1), 15_706_484_224, 64, 27 * 576),
}  # fmt: skip
STOCK: dict[str, Any] = {
    "llama3_8b": like_llama("llama", 4096, 32, 32, 8, 14336, 128_256),
    "qwen3_32b": like_llama("qwen3", 5120, 64, 64, 8, 25600, 151_936, head_dim=128),
    "mixtral_8x7b": like_llama("mixtral", 4096, 32, 32, 8, 14336, 32_000, num_local_experts=8, num_experts_per_tok=2),
    "deepseek_v3": like_llama("deepseek_v3", 7168, 61, 128, 128, 18432, 129_280, **LATENT, q_lora_rank=1536,
                              moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
                              num_experts_per_tok=8, first_k_dense_replace=3),
    "bert_base": like_llama("bert", 768, 12, 12, 12, 3072, 30_522, max_position_embeddings=512, type_vocab_size=2),
    "vit_b16": like_llama("vit", 768, 12, 12, 12, 3072, 1),
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257,
             "n_positions": 1024},
    "opt_1_3b": {"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
                 "ffn_dim": 8192, "vocab_size": 50_272, "max_position_embeddings": 2048},
    "whisper_small": {"model_type": "whisper", "d_model": 768, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
                      "encoder_layers": 12, "decoder_layers": 12, "vocab_size": 51_865, "num_mel_bins": 80},
}  # fmt: skip


def imported(data: Any) -> ModelGraph:
    return ModelGraph.of(model_from_data(read_config("config.json", data, "small")[0], "config.json"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_makes_a_model_of_the_published_size(name: str) -> None:
    data, count, turned, kept = PUBLISHED[name]
    graph = imported(data)
    assert parameters(graph) == count
    assert {node.size("head_dim") for _, node in graph.nodes() if node.word == "rope"} == (
        {turned} if turned else set()
    )
    assert kept_per_token(graph) == kept


@pytest.mark.parametrize("name", STOCK)
def test_a_published_config_makes_the_stock_model_operation_by_operation(name: str) -> None:
    def operations(graph: ModelGraph) -> list[tuple[str, int, str, dict[str, int]]]:
        return [(block.name, block.repeat, node.word, node.sizes) for block, node in graph.nodes()]

    graph, stock = imported(STOCK[name]), ModelGraph.of(load_model(name).model)
    assert [row[1:] for row in operations(graph)] == [row[1:] for row in operations(stock)]


def test_a_small_opt_has_the_weights_of_its_paper_and_two_rows_of_positions_more() -> None:
    """Zhang and others, 2022: four products of attention, two of the wide layer, biases, two norms; the head is the
    table of words. Its positions begin behind two that are never used."""
    opt = {"model_type": "opt", **SMALL["opt"]}
    layer = 4 * (64 * 64 + 64) + (64 * 128 + 128) + (128 * 64 + 64) + 2 * 2 * 64
    assert parameters(imported(opt)) == (100 + 2050) * 64 + 2 * layer + 2 * 64
    assert parameters(imported({**opt, "max_position_embeddings": 30})) == (100 + 32) * 64 + 2 * layer + 2 * 64
    untied = imported({**opt, "tie_word_embeddings": False})
    assert parameters(untied) == (100 + 2050 + 100) * 64 + 2 * layer + 2 * 64


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    for family, field in (("gpt2", "n_head"), ("opt", "num_attention_heads"), ("whisper", "encoder_attention_heads")):
        with pytest.raises(InputError, match=f"{field}: 64 cannot be divided into 5 heads"):
            read_config("config.json", {**SMALL[family], "model_type": family, field: 5}, "small")


def test_a_model_file_says_the_same_as_the_config_it_was_made_from(tmp_path: Path) -> None:
    loaded = import_file(config(tmp_path, LLAMA, "tiny.json"))
    path = tmp_path / "again.yaml"
    path.write_text(model_yaml(loaded.model).replace("name: tiny\n", "name: again\n"))
    again = load_workload(path).spec
    assert again.blocks == loaded.model.blocks  # type: ignore[attr-defined]
    graph = ModelGraph.of(loaded.model)
    own = 64 * 128 + 64 * 64 + 3 * 64 * 160 + 2 * 64
    assert parameters(graph) == 3 * own + 2 * 500 * 64 + 64
    assert kept_per_token(graph) == 2 * 3 * 2 * 16


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{"model_type": "llama", "hid', "not JSON"),
        ("[1, 2]", "an object of fields"),
        ({}, "model_type: missing"),
        ({"model_type": "lama"}, "model_type: 'lama' is not known; did you mean 'llama'"),
        ({"model_type": ["llama"]}, "is not known"),
        ({**LLAMA, "hidden_size": None}, "hidden_size: missing; a llama config has to say it"),
        ({**LLAMA, "hidden_size": "64"}, "hidden_size: must be a whole number, found '64'"),
        ({**LLAMA, "hidden_size": -64}, "hidden_size: must be from 1 to"),
        ({**LLAMA, "vocab_size": 10**30}, "vocab_size: must be from 1 to"),
        ({**LLAMA, "num_attention_heads": 5}, "num_key_value_heads: 5 heads cannot share 2 evenly"),
        ({**LLAMA, "hidden_act": "\x1b[31mred"}, "hidden_act: '\\\\x1b"),
        ({**LLAMA, "hidden_act": ["silu"]}, "hidden_act: ['silu'] is not one of"),
        ({**LLAMA, "tie_word_embeddings": 3}, "tie_word_embeddings: must be true or false, found 3"),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 1.25}, "partial_rotary_factor: must be a share"),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 0}, "partial_rotary_factor: must be a share"),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": True}, "partial_rotary_factor: must be a share"),
    ],
)  # fmt: skip
def test_a_bad_config_is_refused_with_its_field(tmp_path: Path, data: Any, says: str) -> None:
    path = config(tmp_path, data)
    with pytest.raises(InputError, match=says.replace("[", r"\[").replace("(", r"\(")) as caught:
        import_file(path)
    assert str(path) in str(caught.value)


def test_shares_and_counts_have_their_limits() -> None:
    """Without parameters, of which only some are tried where time is short."""
    phi = {**LLAMA, "model_type": "phi"}
    for share in (0, -0.5, 1.25, True, "0.5"):
        with pytest.raises(InputError, match="partial_rotary_factor: must be a share from 0 to 1"):
            read_config("config.json", {**phi, "partial_rotary_factor": share}, "small")
    for field, value in (("hidden_size", 0), ("num_hidden_layers", True), ("vocab_size", 2.5)):
        with pytest.raises(InputError, match=f"{field}: must be"):
            read_config("config.json", {**LLAMA, field: value}, "small")


def test_a_field_that_changes_what_is_computed_is_named_where_it_is_left_out(tmp_path: Path) -> None:
    loaded = import_file(config(tmp_path, {**LLAMA, "quantization_config": {"bits": 4}}))
    assert loaded.notes == ("quantization_config: not understood, and left out",)


# Tables ---------------------------------------------------------------------------------------------------------------

ALEXNET = """Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,
Conv1, 227, 227, 11, 11, 3, 96, 4,
Conv2, 31, 31, 5, 5, 96, 256, 1,
"""
"""The first two layers as SCALE-Sim's topologies have them: images are padded already."""


def test_scale_sim_convolutions_have_the_multiply_adds_of_the_paper(tmp_path: Path) -> None:
    """Krizhevsky and others, 2012: 55 x 55 and 27 x 27 places."""
    graph = ModelGraph.of(import_file(config(tmp_path, ALEXNET, "alexnet.csv")).model)
    assert macs(graph, forward(1, 1)) == 55 * 55 * 96 * 11 * 11 * 3 + 27 * 27 * 256 * 5 * 5 * 96
    assert macs(graph, forward(4, 1)) == 4 * macs(graph, forward(1, 1))


def test_scale_sim_products_and_a_table_of_operators(tmp_path: Path) -> None:
    products = import_file(config(tmp_path, "Layer, M, N, K,\nA, 128, 64, 32,\nB, 1, 2, 3,\n", "g.csv")).model
    assert macs(ModelGraph.of(products), forward(1, 1)) == 128 * 64 * 32 + 6
    text = "name,op,repeat,m,n,k,read,write\nqkv,matmul,4,8,16,32,,\nodd,fft,2,,,,100,50\n"
    loaded = import_file(config(tmp_path, text, "o.csv"))
    assert macs(ModelGraph.of(loaded.model), forward(1, 1)) == 4 * 8 * 16 * 32
    assert loaded.notes == ("fft: not known; counted as a movement of its numbers",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has a line of columns"),
        ("Layer, M, N, K,\n", "has a line of columns"),
        ("Layer, M, N, K,\nA, 12, x, 3,\n", ":2: n: must be a whole number from 1"),
        ("Layer, M, N, K,\nA, 12, -4, 3,\n", ":2: n: must be a whole number from 1"),
        ("Layer, M, N, K,\nA, 12,\n", ":2: 4 fields are needed, found 2"),
        ("a,b,c\n1,2,3\n", "the columns a, b, c are not known"),
        (ALEXNET.replace("11, 11,", "999, 999,"), "does not fit an image of 227 x 227"),
        ("name,op,m,n,k\n=cmd(),matmul,1,1,\n", ":2: k: must be"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        import_file(config(tmp_path, text, "bad.csv"))
    assert says in str(caught.value)


# ONNX -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_an_onnx_network_has_the_weights_and_multiply_adds_of_the_stock_model(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnx")
    from tests.unit.models import onnx_files

    loaded = import_file(getattr(onnx_files, name)(tmp_path / f"{name}.onnx"))
    graph, stock = ModelGraph.of(loaded.model), ModelGraph.of(load_model(name).model)
    assert loaded.notes == ()
    assert macs(graph, forward(1, 1)) == macs(stock, forward(1, 1))
    assert parameters(graph) == parameters(stock)


def test_an_operator_that_nobody_knows_becomes_a_movement_of_its_bytes(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, save

    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sparkle", ["a"], ["b"], domain="my.own"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6])
    seen = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1, 4, 6])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6])
    graph = helper.make_graph(nodes, "g", [given], [out], value_info=[seen])
    save(helper.make_model(graph), str(tmp_path / "own.onnx"))
    loaded = import_file(tmp_path / "own.onnx")
    assert loaded.notes == ("1 x Sparkle: not known; counted as a movement of its bytes",)
    moved = next(node for _, node in ModelGraph.of(loaded.model).nodes() if node.word == "move")
    assert (moved.size("read"), moved.size("write")) == (24, 24)


def test_bad_onnx_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, save

    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07no model at all")
    with pytest.raises(InputError, match="not an ONNX file"):
        import_file(tmp_path / "bad.onnx")
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "long"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "long"])
    save(helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [given], [out])),
         str(tmp_path / "open.onnx"))  # fmt: skip
    with pytest.raises(InputError, match="input 'x': axis 1 has no size"):
        import_file(tmp_path / "open.onnx")
    with pytest.raises(InputError, match="there is no file"):
        import_file(tmp_path / "none.onnx")


def traced(shapes: dict[str, tuple[int, ...]], weights: tuple[str, ...] = ()) -> Traced:
    """A program of a file with one sample in its batch of two, whose operations the test makes."""
    made = Traced("made.onnx", "made")
    made.shapes |= shapes
    made.weights |= {name: name for name in weights}
    made.comes_in([name for name in shapes if name.startswith("in")])
    return made


def last(made: Traced, word: str) -> dict[str, Any]:
    return [each for each in made.operations if each["op"] == word][-1]


def test_convolutions_of_a_program_have_the_sizes_of_their_tensors() -> None:
    """By hand: 8 x 10 from 17 x 21 by windows of 3 and strides of 2; a transposed one the other way round."""
    made = traced({"in": (2, 6, 17, 21), "w": (12, 3, 3, 3), "out": (2, 12, 8, 10)}, ("w",))
    made.conv("out", "in", "w", bias=None, stride=(2, 2), padding=(0, 0), groups=2)
    found = last(made, "conv")
    assert (found["channels"], found["kernel"], found["stride"], found["groups"]) == (12, 3, 2, 2)
    assert made.made["out"] == found["name"]  # the form is that of the file: no view behind it

    made = traced({"in": (2, 12, 8, 10), "w": (12, 5, 3, 4), "out": (2, 5, 17, 22)}, ("w",))
    made.conv("out", "in", "w", bias=None, stride=(2, 2), padding=(0, 0), transposed=True)
    found = last(made, "conv")
    assert (found["channels"], found["kernel"], found["transposed"]) == (5, (3, 4), True)
    assert made.made["out"] == found["name"]  # (8 - 1) * 2 + 3 by (10 - 1) * 2 + 4

    made = traced({"in": (2, 7, 30), "w": (4, 7, 5), "out": (2, 4, 26)}, ("w",))  # over a line
    made.conv("out", "in", "w", bias=None, stride=(1,), padding=(0,))
    found = last(made, "conv")
    assert (found["channels"], found["kernel"]) == (4, (5, 1))
    assert last(made, "view")["makes"] == (4, 26)

    made = traced({"in": (2, 6, 9, 9, 9), "w": (8, 6, 3, 3, 3), "out": (2, 8, 7, 7, 7)}, ("w",))  # over a volume
    made.conv("out", "in", "w", bias=None, stride=(1, 1, 1), padding=(0, 0, 0))
    found = last(made, "product")
    assert (found["m"], found["n"], found["k"], found["batch"]) == (343, 8, 162, 1)


def test_attention_of_a_program_has_values_of_their_own_width_where_they_have_one() -> None:
    """Six heads of 8 that share two heads of keys and values; values of 8, then of 5."""
    for width in (8, 5):
        made = traced(
            {"in_q": (2, 6, 11, 8), "in_k": (2, 2, 11, 8), "in_v": (2, 2, 11, width), "out": (2, 6, 11, width)}
        )
        assert made.attention("out", "in_q", "in_k", "in_v", causal=True)
        found = last(made, "attention")
        assert (found["heads"], found["kv_heads"], found["head_dim"], found["causal"]) == (6, 2, 8, True)
        assert found.get("value_dim", 8) == width
        assert ("value_dim" in found) == (width != 8)
        made_of = {each["name"]: each.get("makes") for each in made.operations}
        assert [made_of[name] for name in found["inputs"]] == [(11, 48), (11, 16), (11, 2 * width)]
        after = [each for each in made.operations if each["inputs"] == (found["name"],)]
        assert [each["makes"] for each in after] == [(6, 11, width)]
        assert made._forms[found["name"]] == (11, 6 * width)
    assert not made.attention("out", "in_q", "in_k", "nothing", causal=True)


@pytest.mark.parametrize(("heads", "share", "turned"), [(4, 0.5, 8), (4, 0.7, 10), (4, 0.0625, 2), (4, 1.0, 16)])
def test_a_share_of_a_head_that_is_turned_is_an_even_number_of_values(heads: int, share: float, turned: int) -> None:
    """Of 16 values: pairs are turned, at least one of them."""
    data = {
        "model_type": "phi", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": heads,
        "intermediate_size": 128, "vocab_size": 100, "partial_rotary_factor": share,
    }  # fmt: skip
    sizes = {node.size("head_dim") for block in imported(data).blocks for node in block.nodes if node.word == "rope"}
    assert sizes == {turned}


def test_a_switch_sends_every_token_to_one_expert_in_every_second_layer() -> None:
    """Fedus and others, 2021: k = 1, relu between two matrices. Weights by hand: 4 d h w of attention, twice in the
    decoder; 2 d f of a wide layer, as often as there are experts, with their router; norms; one table of words."""
    given = {**SMALL["switch_transformers"], "model_type": "switch_transformers"}
    d, inner, f, words, experts = 64, 4 * 16, 128, 100, 4
    for layers, capacity in ((4, 8), (5, None)):
        data = {**given, "num_layers": layers} | ({} if capacity else {"expert_capacity": None})
        data = {name: value for name, value in data.items() if value is not None}
        model = model_from_data(read_config("config.json", data, "small")[0], "config.json")
        graph = ModelGraph.of(model)
        found = [(block, each) for block in model.blocks for each in block.operations if each.op == "experts"]
        assert len(found) == 2
        for block, each in found:
            assert (each.experts, each.top_k, each.inner, each.gated) == (experts, 1, f, False)  # type: ignore[union-attr]
            assert each.capacity == (capacity or 64)  # type: ignore[union-attr]
            assert block.repeat == layers // 2
        sparse, dense = layers // 2, layers - layers // 2
        wide = 2 * (dense * 2 * d * f + sparse * (experts * 2 * d * f + d * experts))
        mixing, norms = layers * (4 + 8) * d * inner, layers * (2 + 3) * d + 2 * d
        table = words * d
        assert parameters(graph) == pytest.approx(wide + mixing + norms + table, rel=0.02)  # and biases by distance
