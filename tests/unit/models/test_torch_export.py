"""Programs of torch.export, read without PyTorch: counts by hand, and bad archives told what is wrong with them.

The files in `programs/` were made by torch_programs.py; where PyTorch is installed, fresh ones are made and read, too.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from itertools import pairwise
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hwsim.errors import InputError
from hwsim.models import torch_export
from hwsim.models.count import forward, macs, parameters
from hwsim.models.graph import ModelGraph
from hwsim.models.load import LoadedModel, import_file, load_model
from hwsim.models.traced import _segments, find_blocks

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
    with pytest.raises(InputError, match="an archive without the graph of a program"):
        import_file(archive(tmp_path / "weights.pt2", b"", "net/data/0"))
    with pytest.raises(InputError, match=r"no file of a model: its name ends in .yaml, .*\.pt2"):
        load_model(str(tmp_path / "weights.pt"))
    monkeypatch.setattr(torch_export, "MOST_GRAPH_BYTES", 1000)
    with pytest.raises(InputError, match="its graph is larger than 1 kB"):
        import_file(PROGRAMS / "resnet_small.pt2")


def written(
    path: Path, shapes: dict[str, tuple[int, ...]], *calls: tuple[str, str, dict[str, Any]],
    given: str = "x", strides: dict[str, tuple[int, ...]] | None = None,
) -> LoadedModel:  # fmt: skip
    """A program of a few operators (operator, what it makes, arguments); tensors that nothing makes are weights."""

    def argument(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            return {"as_tensor": {"name": value}} if value in shapes else {"as_string": value}
        if isinstance(value, list):
            named = bool(value) and isinstance(value[0], str)
            return {"as_tensors": [{"name": each} for each in value]} if named else {"as_ints": value}
        return {"as_bool": value} if isinstance(value, bool) else {"as_int": value}

    def tensor(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        steps = (strides or {}).get(name, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))
        return {"dtype": 7, "sizes": [{"as_int": n} for n in shape], "strides": [{"as_int": n} for n in steps]}

    made = {output for _, output, _ in calls}
    specs: list[Any] = [{"user_input": {"arg": {"as_tensor": {"name": name}}}} for name in given.split()]
    specs += [
        {"parameter": {"arg": {"name": name}, "parameter_name": f"net.{name}"}}
        for name in shapes
        if name not in made and name not in given.split()
    ]
    nodes = [
        {
            "target": f"torch.ops.aten.{word}.default",
            "inputs": [{"name": name, "arg": argument(value)} for name, value in values.items()],
            "outputs": [argument(output)], "metadata": {},
        }
        for word, output, values in calls
    ]  # fmt: skip
    graph = {"nodes": nodes, "tensor_values": {name: tensor(name, shape) for name, shape in shapes.items()}}
    module = {"graph": graph, "signature": {"input_specs": specs}}
    return import_file(archive(path / "made.pt2", {"graph_module": module, "schema_version": {"major": 8}}))


def operation(loaded: LoadedModel, word: str) -> dict[str, Any]:
    """The fields of the last operation of a word."""
    found = [each for block in loaded.model.blocks for each in block.operations if each.op == word]
    return found[-1].model_dump()


def test_an_einstein_sum_is_the_product_that_its_indices_say(tmp_path: Path) -> None:
    """Of heads: b and h stand in all three, d is summed: 4 products of 5 x 8 with 8 x 7 for each sample."""
    shapes = {"x": (2, 4, 5, 8), "k": (2, 4, 7, 8), "y": (2, 4, 5, 7)}
    sum_of_heads = ("einsum", "y", {"equation": "bhqd, bhkd -> bhqk", "operands": ["x", "k"]})
    found = operation(written(tmp_path, shapes, sum_of_heads, given="x k"), "product")
    assert (found["m"], found["n"], found["k"], found["batch"], found["weights"]) == (5, 7, 8, 4, False)
    shapes = {"x": (2, 5, 8), "w": (8, 3), "y": (2, 5, 3)}
    loaded = written(tmp_path, shapes, ("einsum", "y", {"equation": "btd,de->bte", "operands": ["x", "w"]}))
    assert operation(loaded, "linear")["out"] == 3
    assert counts(loaded) == (8 * 3, 5 * 8 * 3)


@pytest.mark.parametrize(
    ("equation", "operands"), [("bi,bj", ["x", "k"]), ("bi,bj,bk->b", ["x", "k", "x"]), ("bi->b", ["x"])]
)
def test_an_einstein_sum_of_another_form_is_a_movement_and_says_so(
    tmp_path: Path, equation: str, operands: list[str]
) -> None:
    shapes = {"x": (2, 6), "k": (2, 6), "y": (2, 6)}
    call = ("einsum", "y", {"equation": equation, "operands": operands})
    loaded = written(tmp_path, shapes, call, given="x k")
    assert loaded.notes == ("1 x einsum: not known; counted as a movement of its bytes",)
    moved = operation(loaded, "move")
    assert (moved["read"], moved["write"]) == (6 * len(operands), 6)


def test_attention_to_other_tokens_is_two_products_with_a_softmax_between_them(tmp_path: Path) -> None:
    """By hand: 4 heads, 5 queries of 8 values look at 7 keys and bring back 6 values each. As many queries as keys, and
    no heads apart, are the same."""
    for heads, queries, keys in (((4,), 5, 7), ((), 5, 7), ((), 6, 6)):
        shapes = {"x": (2, *heads, queries, 8), "k": (2, *heads, keys, 8), "v": (2, *heads, keys, 6)}
        shapes["y"] = (2, *heads, queries, 6)
        call = ("scaled_dot_product_attention", "y", {"query": "x", "key": "k", "value": "v"})
        loaded = written(tmp_path, shapes, call, given="x k v")
        many = prod(heads)
        made = [each for block in loaded.model.blocks for each in block.operations]
        scores, mixed = (each.model_dump() for each in made if each.op == "product")
        assert (scores["m"] * scores["batch"], scores["n"], scores["k"]) == (many * queries, keys, 8)
        assert (mixed["m"] * mixed["batch"], mixed["n"], mixed["k"]) == (many * queries, 6, keys)
        assert [each.op for each in made if each.op in ("product", "softmax")] == ["product", "softmax", "product"]
        assert counts(loaded) == (0, many * queries * keys * (8 + 6))
        assert loaded.notes == ()


def test_tensors_that_are_computed_are_multiplied_for_every_head(tmp_path: Path) -> None:
    """By hand: 3 heads of 10 x 16 with 16 x 10; two vectors of 16 give one number."""
    shapes = {"x": (1, 3, 10, 16), "k": (1, 3, 16, 10), "y": (1, 3, 10, 10)}
    loaded = written(tmp_path, shapes, ("matmul", "y", {"self": "x", "other": "k"}), given="x k")
    found = operation(loaded, "product")
    assert (found["m"], found["n"], found["k"], found["batch"]) == (10, 10, 16, 3)
    assert counts(loaded) == (0, 3 * 10 * 10 * 16)
    shapes = {"x": (1, 16), "v": (16,), "y": ()}
    calls = (("select", "v", {"self": "x", "dim": 0, "index": 0}), ("dot", "y", {"self": "v", "tensor": "v"}))
    assert counts(written(tmp_path, shapes, *calls)) == (0, 16)


def test_what_is_joined_along_channels_stands_side_by_side_and_anything_else_moves(tmp_path: Path) -> None:
    def joined(given: tuple[int, ...], made: tuple[int, ...], axis: int) -> str:
        shapes = {"x": given, "a": given, "y": made}
        calls = (("relu", "a", {"self": "x"}), ("cat", "y", {"tensors": ["x", "a"], "dim": axis}))
        loaded = written(tmp_path, shapes, *calls)
        assert loaded.notes == ()
        return loaded.model.blocks[-1].operations[-1].op

    assert joined((2, 3, 4, 5), (2, 6, 4, 5), 1) == "concat"
    assert joined((2, 3, 4, 5), (2, 6, 4, 5), -3) == "concat"
    assert joined((2, 3, 4, 5), (2, 3, 8, 5), 2) == "move"
    assert joined((2, 7, 16), (2, 7, 32), 2) == "concat"
    assert joined((2, 7, 16), (2, 7, 32), -1) == "concat"
    assert joined((2, 7, 16), (2, 14, 16), 1) == "move"
    assert joined((2, 3, 4, 5, 6), (2, 6, 4, 5, 6), 1) == "move"  # of a volume


def test_a_learned_row_before_all_others_is_a_token_of_a_class(tmp_path: Path) -> None:
    shapes = {"x": (2, 9, 16), "t": (1, 1, 16), "e": (2, 1, 16), "y": (2, 10, 16)}
    calls = (("expand", "e", {"self": "t", "size": [2, -1, -1]}), ("cat", "y", {"tensors": ["e", "x"], "dim": 1}))
    loaded = written(tmp_path, shapes, *calls)
    assert [each.op for each in loaded.model.blocks[-1].operations][-1] == "class_token"
    assert counts(loaded) == (16, 0)
    two = shapes | {"t": (1, 2, 16), "e": (2, 2, 16), "y": (2, 11, 16)}  # two such rows are no token of a class
    assert [each.op for each in written(tmp_path, two, *calls).model.blocks[-1].operations][-1] == "move"


def test_a_copy_of_numbers_that_do_not_lie_in_order_moves_them_and_another_is_a_look(tmp_path: Path) -> None:
    """Rows of 6 and columns of 4 exchanged: the strides of the view are 1 and 6."""
    shapes = {"x": (1, 4, 6), "a": (1, 6, 4), "b": (1, 24), "y": (1, 24)}
    calls = (
        ("transpose", "a", {"self": "x", "dim0": 1, "dim1": 2}), ("reshape", "b", {"self": "a", "shape": [1, 24]}),
        ("relu", "y", {"self": "b"}),
    )  # fmt: skip
    loaded = written(tmp_path, shapes, *calls, strides={"a": (24, 1, 6)})
    moved = operation(loaded, "move")
    assert (moved["read"], moved["write"], moved["makes"]) == (24, 24, (24,))
    loaded = written(tmp_path, shapes, *calls)
    assert all(each.op != "move" for block in loaded.model.blocks for each in block.operations)


def test_windows_that_are_no_whole_number_of_strides_and_other_means_are_movements(tmp_path: Path) -> None:
    def pooled(word: str, made: tuple[int, ...], **values: Any) -> dict[str, Any]:
        calls = (word, "y", {"self": "x", **values})
        loaded = written(tmp_path, {"x": (2, 3, 8, 10), "y": made}, calls)
        return next(each for each in loaded.model.blocks[-1].operations if each.op != "view").model_dump()

    half = pooled("max_pool2d", (2, 3, 4, 5), kernel_size=[2, 2])
    assert (half["op"], half["kernel"], half["stride"]) == ("maxpool", 2, 2)
    mean = pooled("avg_pool2d", (2, 3, 8, 10), kernel_size=[3, 3], stride=[1, 1], padding=[1, 1])
    assert (mean["op"], mean["kernel"], mean["stride"], mean["padding"]) == ("avgpool", 3, 1, 1)
    uneven = pooled("max_pool2d", (2, 3, 5, 5), kernel_size=[2, 2], ceil_mode=True)
    assert (uneven["op"], uneven["read"], uneven["write"]) == ("move", 3 * 8 * 10, 3 * 5 * 5)
    assert pooled("adaptive_avg_pool2d", (2, 3, 1, 1), output_size=[1, 1])["op"] == "global_avgpool"
    assert pooled("adaptive_avg_pool2d", (2, 3, 2, 2), output_size=[2, 2])["op"] == "move"
    assert pooled("mean", (2, 3), dim=[2, 3])["op"] == "global_avgpool"
    assert pooled("mean", (2, 8, 10), dim=[1])["op"] == "move"


def test_an_axis_that_was_left_open_counts_as_one_sample_or_as_it_was(tmp_path: Path) -> None:
    """Exported with a batch of 6 and 40 tokens: one sample of 40 x 8, and a note of the tokens."""
    changed = program()
    graph = changed["graph_module"]["graph"]
    own = (
        {"as_expr": {"expr_str": "s77", "hint": {"as_int": 6}}},
        {"as_expr": {"expr_str": "s3", "hint": {"as_int": 40}}},
    )
    sizes = [*own, {"as_int": 8}]
    graph["tensor_values"] = {name: {"dtype": 7, "sizes": sizes, "strides": []} for name in ("x", "y")}
    graph["nodes"] = [
        {"target": "torch.ops.aten.relu.default", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}],
         "outputs": [{"as_tensor": {"name": "y"}}], "metadata": {}},
    ]  # fmt: skip
    changed["graph_module"]["signature"]["input_specs"] = [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}]
    loaded = import_file(archive(tmp_path / "open.pt2", changed))
    assert loaded.notes == ("open sizes are taken as they were when it was exported: s3 as 40",)
    assert loaded.model.use.batch == 1
    assert operation(loaded, "view")["makes"] == (40, 8)


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


def test_operations_are_cut_where_one_tensor_alone_goes_on() -> None:
    """Against a look at every place: behind a cut nothing is read but what was made last before it, and between cuts
    there is no such place; on random networks whose every tensor is read by one of the next three operations."""
    random = Random(7)
    for _ in range(200):
        count = random.randint(1, 12)
        names = ["input", *(f"op{number}" for number in range(count))]
        operations = [
            {
                "name": f"op{number}",
                "inputs": sorted({names[number], names[max(0, number - random.choice((0, 0, 1, 2)))]}),
            }
            for number in range(count)
        ]
        pieces = list(_segments(operations))
        assert [each for piece in pieces for each in piece] == operations
        cuts = {len([each for piece in pieces[: number + 1] for each in piece]) for number in range(len(pieces) - 1)}
        reads = [(at, names.index(name)) for at, each in enumerate(operations) for name in each["inputs"]]
        free = {
            place for place in range(1, count) if not any(at >= place > made for at, made in reads if made != place)
        }
        assert cuts == free, operations
