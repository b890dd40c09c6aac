"""Programs of torch.export, read without PyTorch: counts by hand, and bad archives told what is wrong with them.

The files in `programs/` were made by torch_programs.py; where PyTorch is installed, fresh ones are made and read, too.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hwsim.errors import InputError
from hwsim.models import torch_export
from hwsim.models.count import forward, macs, parameters
from hwsim.models.graph import ModelGraph
from hwsim.models.load import LoadedModel, import_file, load_model
from hwsim.models.traced import find_blocks

PROGRAMS = Path(__file__).parent / "programs"


def counts(loaded: LoadedModel) -> tuple[int, int]:
    """Parameters, and multiply-adds of one sample."""
    graph = ModelGraph.of(loaded.model)
    return parameters(graph), macs(graph, forward(1, 1))


def decoder_counts(words: int, width: int, layers: int, tokens: int, causal: bool = True) -> tuple[int, int]:
    """By hand: 4 d² in attention and 8 d² in the wide layer, biases 9 d, norms 4 d; the head is the table of words."""
    each = 12 * width**2
    held = words * width + tokens * width + layers * (each + 13 * width) + 2 * width
    pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
    return held, tokens * (layers * each + width * words) + layers * 2 * pairs * width


def test_a_small_resnet_has_the_weights_and_multiply_adds_of_its_layers() -> None:
    """7x7 on 16x16 places, two blocks of 8 channels on 8x8, one of 16 on 4x4 with its short cut, 10 classes."""
    loaded = import_file(PROGRAMS / "resnet_small.pt2")
    convolutions = 3 * 8 * 49, 4 * 8 * 8 * 9, 8 * 16 * 9 + 16 * 16 * 9 + 8 * 16
    held = sum(convolutions) + 2 * (8 + 4 * 8 + 3 * 16) + 16 * 10 + 10
    assert loaded.notes == ()
    computed = convolutions[0] * 16 * 16 + convolutions[1] * 8 * 8 + convolutions[2] * 4 * 4 + 160
    assert counts(loaded) == (held, computed)
    assert loaded.model.precision == "fp32"


def test_a_small_decoder_has_the_weights_and_multiply_adds_of_its_layers() -> None:
    loaded = import_file(PROGRAMS / "decoder_small.pt2")
    assert loaded.notes == ()
    assert counts(loaded) == decoder_counts(100, 32, 3, 16)
    assert loaded.model.use.batch == 2, "as many as it was exported with"
    assert not ModelGraph.of(loaded.model).is_generative, "a program has a fixed number of tokens"


def test_a_norm_that_is_written_out_is_one_norm_with_its_weights() -> None:
    loaded = import_file(PROGRAMS / "gated_small.pt2")
    assert loaded.notes == () and loaded.model.precision == "bf16"
    assert counts(loaded) == (2 * (3 * 32 * 96 + 32), 2 * 16 * 3 * 32 * 96)
    assert [each.op for each in loaded.model.blocks[-1].operations] == [
        "rmsnorm", "linear", "silu", "linear", "mul", "linear", "add",
    ]  # fmt: skip


def test_layers_that_are_alike_are_one_block_that_repeats() -> None:
    blocks = import_file(PROGRAMS / "decoder_small.pt2").model.blocks
    assert [(block.name, block.repeat) for block in blocks] == [("words", 1), ("layers_0", 3), ("norm", 1)]
    blocks = import_file(PROGRAMS / "resnet_small.pt2").model.blocks
    assert [(block.name, block.repeat) for block in blocks] == [
        ("conv1", 1),
        ("layers_0", 2),
        ("layers_2", 1),
        ("fc", 1),
    ]


def test_a_layer_whose_input_is_narrower_is_no_repetition_of_the_next() -> None:
    """32 -> 64 -> 64 -> 64: each says out=64, and only the last two are alike."""
    forms = {"input": (32,), "a": (64,), "b": (64,), "c": (64,)}
    names = ["input", "a", "b", "c"]
    operations = [{"name": name, "op": "linear", "inputs": (came,), "out": 64} for came, name in pairwise(names)]
    blocks = find_blocks(operations, {"a": "net.0", "b": "net.1", "c": "net.2"}, forms)
    assert [(block["name"], block.get("repeat", 1)) for block in blocks] == [("net_0", 1), ("net_1", 2)]


def archive(path: Path, program: Any, name: str = "net/models/model.json") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, program if isinstance(program, bytes) else json.dumps(program))
        made.writestr("net/data/sample_inputs/model.pt", pickle.dumps(Path("/")))
    return path


def program() -> dict[str, Any]:
    with zipfile.ZipFile(PROGRAMS / "resnet_small.pt2") as made:
        found: dict[str, Any] = json.loads(made.read(made.namelist()[0]))
    return found


def test_an_operator_that_nobody_knows_becomes_a_movement_of_its_bytes(tmp_path: Path) -> None:
    changed = program()
    node = next(each for each in changed["graph_module"]["graph"]["nodes"] if "max_pool2d" in each["target"])
    node["target"] = "torch.ops.mine.sparkle\x1b[31m.default"
    loaded = import_file(archive(tmp_path / "own.pt2", changed))
    assert loaded.notes == ("1 x mine.sparkle31m: not known; counted as a movement of its bytes",)
    moved = next(node for _, node in ModelGraph.of(loaded.model).nodes() if node.word == "move")
    assert (moved.size("read"), moved.size("write")) == (8 * 16 * 16, 8 * 8 * 8)


def test_the_graph_is_found_where_older_versions_put_it(tmp_path: Path) -> None:
    old = archive(tmp_path / "old.pt2", program(), "serialized_exported_program.json")
    assert counts(import_file(old)) == counts(import_file(PROGRAMS / "resnet_small.pt2"))


def without(*path: str) -> dict[str, Any]:
    changed = program()
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return changed


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"graph_module": {', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1, 2]", "no object of fields"),
        ({"graph_module": 3}, "graph_module: must be an object"),
        (without("graph_module", "graph", "nodes"), "graph_module.graph.nodes: missing"),
        (without("graph_module", "signature", "input_specs"), "graph_module.signature.input_specs: missing"),
        (without("graph_module", "graph", "tensor_values", "x"), "input 'x': its shape is not known"),
    ],
)  # fmt: skip
def test_a_bad_program_is_refused_with_what_is_wrong(tmp_path: Path, content: Any, says: str) -> None:
    path = archive(tmp_path / "bad.pt2", content)
    with pytest.raises(InputError) as caught:
        import_file(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_archives_of_other_kinds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tmp_path / "cut.pt2"
    cut.write_bytes((PROGRAMS / "resnet_small.pt2").read_bytes()[:2000])
    with pytest.raises(InputError, match=r"not a program of torch\.export, or a damaged one"):
        import_file(cut)
    with pytest.raises(InputError, match="a TorchScript archive"):
        import_file(archive(tmp_path / "script.pt2", b"", "net/code/__torch__.py"))
    with pytest.raises(InputError, match=r"no file of a model: its name ends in .yaml, .*\.pt2"):
        load_model(str(tmp_path / "weights.pt"))
    monkeypatch.setattr(torch_export, "MOST_GRAPH_BYTES", 1000)
    with pytest.raises(InputError, match="its graph is larger than 1 kB"):
        import_file(PROGRAMS / "resnet_small.pt2")


@pytest.mark.parametrize("core", [False, True])
def test_fresh_programs_are_read_as_those_that_ship(tmp_path: Path, core: bool) -> None:
    """ResNet-18 against the stock model, which the published count holds; a decoder by hand, with an open batch."""
    torch = pytest.importorskip("torch")
    from tests.unit.models.torch_programs import Decoder, ResNet, exported

    net = ResNet((64, 64, 128, 128, 256, 256, 512, 512), 1000)
    loaded = import_file(exported(net, tmp_path / "resnet18.pt2", torch.randn(4, 3, 224, 224), core=core))
    stock = ModelGraph.of(load_model("resnet18").model)
    assert loaded.notes == ()
    assert counts(loaded) == (parameters(stock), macs(stock, forward(1, 1)))
    model, tokens = Decoder(1000, 64, 4, 2, 32), torch.zeros(3, 32, dtype=torch.long)
    opened = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    loaded = import_file(exported(model, tmp_path / "decoder.pt2", tokens, core=core, **opened))
    assert counts(loaded) == decoder_counts(1000, 64, 2, 32, causal=not core)
    assert loaded.model.use.batch == 1


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("torch.ops.aten.conv2d.default", "conv2d"), ("torch.ops.aten.add_.Tensor", "add"),
        ("torch.ops.aten._softmax.default", "_softmax"), ("torch.ops.mine.square.default", "mine.square"),
        ("getitem", "getitem"),
    ],
)  # fmt: skip
def test_operations_of_pytorch_are_called_by_their_own_name_and_others_with_their_library(
    target: str, name: str
) -> None:
    assert torch_export._plain_target(target) == name
