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
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 7}, "partial_rotary_factor: must be a share"),
    ],
)  # fmt: skip
def test_a_bad_config_is_refused_with_its_field(tmp_path: Path, data: Any, says: str) -> None:
    path = config(tmp_path, data)
    with pytest.raises(InputError, match=says.replace("[", r"\[").replace("(", r"\(")) as caught:
        import_file(path)
    assert str(path) in str(caught.value)


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
