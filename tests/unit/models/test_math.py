"""The math of a model is real: float64 equals an independent formula, narrow formats are as far off as they should."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hwsim.errors import InputError, ShapeError
from hwsim.models.accuracy import measure_accuracy, read_weights
from hwsim.models.count import Formats
from hwsim.models.evaluate import ELEMENTS, EXACT, GivenWeights, ModelRounding, RandomWeights, evaluate, tensor_names
from hwsim.models.graph import ModelGraph
from hwsim.models.load import load_model, model_from_data
from tests.unit.models.test_importers import LLAMA
from tests.unit.models.test_price import small


def test_a_small_transformer_equals_the_formulas_written_out() -> None:
    """Two layers of attention over four heads that share two heads of keys, token by token, in plain loops."""
    graph = ModelGraph.of(small(sizes={"layers": 2}))
    weights = RandomWeights(3)
    tokens = np.array([[5.0, 17.0, 400.0]])
    found = evaluate(graph, weights, tokens, EXACT)
    shapes = dict(tensor_names(graph))
    w = {name: weights.tensor(name, shape) for name, shape in shapes.items()}
    x = w["words.0.words.table"][tokens[0].astype(int)]
    for layer in range(2):
        gamma = w[f"layer.{layer}.norm.gamma"]
        h = np.stack([row / np.sqrt(np.mean(row**2) + 1e-5) * gamma for row in x])
        qkv = h @ w[f"layer.{layer}.qkv.weight"]
        mixed = np.zeros((3, 256))
        for head in range(4):
            q = qkv[:, 64 * head : 64 * head + 64]
            k = qkv[:, 256 + 64 * (head // 2) : 320 + 64 * (head // 2)]
            v = qkv[:, 384 + 64 * (head // 2) : 448 + 64 * (head // 2)]
            for token in range(3):
                scores = np.array([q[token] @ k[other] / 8 for other in range(token + 1)])
                share = np.exp(scores) / np.exp(scores).sum()
                mixed[token, 64 * head : 64 * head + 64] = share @ v[: token + 1]
        x = x + mixed @ w[f"layer.{layer}.out.weight"]
    np.testing.assert_allclose(found[0], x @ w["head.0.logits.weight"], rtol=1e-10)


def test_a_convolution_equals_the_sum_written_out() -> None:
    conv = {"name": "conv", "op": "conv", "channels": 4, "kernel": 3, "stride": 2, "padding": 1, "groups": 2}
    blocks = [{"name": "net", "operations": [conv]}]
    graph = ModelGraph.of(small(blocks=blocks, input=[2, 5, 5], sizes={}))
    weights, image = RandomWeights(1), np.random.default_rng(0).standard_normal((1, 2, 5, 5))
    kernel = weights.tensor("net.0.conv.weight", (4, 1, 3, 3))
    padded = np.pad(image[0], ((0, 0), (1, 1), (1, 1)))
    wanted = np.zeros((4, 3, 3))
    for c in range(4):
        for i in range(3):
            for j in range(3):
                wanted[c, i, j] = (padded[c // 2, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * kernel[c, 0]).sum()
    np.testing.assert_allclose(evaluate(graph, weights, image, EXACT)[0], wanted, rtol=1e-10)


def computed(image: list[object] | str, *operations: dict[str, object], given: np.ndarray) -> np.ndarray:
    """What a small network without weights makes of some numbers."""
    blocks = [{"name": "net", "operations": list(operations)}]
    width = {"width": given.shape[-1]} if image == "features" else {}
    graph = ModelGraph.of(small(blocks=blocks, input=image, sizes={}, **width))
    return evaluate(graph, RandomWeights(1), given[None], EXACT)[0]


def function(word: str, *values: float) -> np.ndarray:
    return computed("features", {"name": "f", "op": word}, given=np.array([values]))[0]


@pytest.mark.parametrize("word", ["gelu", "gelu_new", "quick_gelu", "relu", "silu", "swish", "hard_swish"])
def test_a_gate_lets_through_a_share_that_it_keeps_back_on_the_other_side(word: str) -> None:
    """f(x) = x g(x) with g(x) + g(-x) = 1: f(x) - f(-x) = x; nothing far below zero, everything far above."""
    x = np.array([0.0, 0.3, 1.0, 2.5, 4.0, 30.0])
    np.testing.assert_allclose(function(word, *x) - function(word, *-x), x, atol=1e-12)
    np.testing.assert_allclose(function(word, -30.0, 30.0), [0, 30], atol=1e-9)
    gates = {"relu": 1.0, "silu": 1 / (1 + np.exp(-1)), "swish": 1 / (1 + np.exp(-1)), "hard_swish": 4 / 6}
    near = 0.002 if word in ("gelu", "gelu_new") else 0.006 if word == "quick_gelu" else 1e-12
    assert function(word, 1.0)[0] == pytest.approx(gates.get(word, 0.841345), abs=near)  # Φ(1) of the normal law


def test_functions_of_a_number_have_the_values_that_logarithms_give() -> None:
    """e^(ln 3) = 3: 3 / 4, (9 - 1) / (9 + 1); shares of 1, 3 and 4."""
    third = float(np.log(3))
    np.testing.assert_allclose(function("sigmoid", third, -third, 0.0), [3 / 4, 1 / 4, 1 / 2])
    np.testing.assert_allclose(function("tanh", third, -third), [0.8, -0.8])
    np.testing.assert_allclose(function("relu6", -1.0, 5.0, 7.0), [0, 5, 6])
    np.testing.assert_allclose(function("softmax", 0.0, third, np.log(4)), [1 / 8, 3 / 8, 4 / 8])
    np.testing.assert_allclose(function("swiglu", third, 0.0, 2.0, 5.0), [third * 0.75 * 2, 0])
    np.testing.assert_allclose(function("geglu", 1.0, 30.0, 2.0, 5.0), [2 * 0.841345, 150], rtol=1e-3)


def test_windows_are_pooled_joined_and_grown_place_by_place() -> None:
    """Two channels of 4 x 4: 0 … 15, and the same from below."""
    image = np.stack([np.arange(16.0).reshape(4, 4), -np.arange(16.0).reshape(4, 4)])
    pool = {"name": "p", "kernel": 2, "stride": 2}
    shape = [2, 4, 4]
    largest = computed(shape, {**pool, "op": "maxpool"}, given=image)
    np.testing.assert_array_equal(largest, [[[5, 7], [13, 15]], [[0, -2], [-8, -10]]])
    mean = computed(shape, {**pool, "op": "avgpool"}, given=image)
    np.testing.assert_array_equal(mean[0], [[2.5, 4.5], [10.5, 12.5]])
    np.testing.assert_array_equal(mean[1], -mean[0])
    edged = computed(shape, {**pool, "op": "maxpool", "kernel": 3, "stride": 2, "padding": 1}, given=image)
    np.testing.assert_array_equal(edged, [[[5, 7], [13, 15]], [[0, -1], [-4, -5]]])  # edges count for nothing
    grown = computed(shape, {"name": "u", "op": "upsample"}, given=image)
    np.testing.assert_array_equal(grown, np.kron(image, np.ones((1, 2, 2))))
    both = computed(
        shape, {"name": "r", "op": "relu"}, {"name": "c", "op": "concat", "inputs": ["r", "input"]}, given=image
    )
    np.testing.assert_array_equal(both, np.concatenate([np.maximum(image, 0), image]))
    whole = computed(shape, {"name": "g", "op": "global_avgpool"}, given=image)
    np.testing.assert_array_equal(whole, [[7.5, -7.5]])


def test_tokens_and_images_change_their_shape_number_by_number() -> None:
    """A 2 x 3 image of two channels as six tokens; the first, the mean, all in one line, rows and columns exchanged."""
    image = np.arange(12.0).reshape(2, 2, 3)
    tokens = image.reshape(2, 6).T
    to_tokens = {"name": "t", "op": "to_tokens"}

    def then(word: str) -> np.ndarray:
        return computed([2, 2, 3], to_tokens, {"name": "after", "op": word}, given=image)

    np.testing.assert_array_equal(computed([2, 2, 3], to_tokens, given=image), tokens)
    np.testing.assert_array_equal(then("first_token"), tokens[:1])
    np.testing.assert_array_equal(then("mean_tokens"), [[2.5, 8.5]])
    np.testing.assert_array_equal(then("flatten"), tokens.reshape(1, 12))
    np.testing.assert_array_equal(then("transpose"), tokens.T)
    learned = RandomWeights(1).tensor("net.0.after.token", (2,))
    np.testing.assert_array_equal(then("class_token"), np.concatenate([learned.reshape(1, 2), tokens]))
    flat = computed([2, 2, 3], {"name": "f", "op": "flatten"}, given=image)
    np.testing.assert_array_equal(flat, image.reshape(1, 12))


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([{"name": "g", "op": "global_avgpool", "inputs": ["input"]},
          {"name": "s", "op": "add", "inputs": ["g", "t"]}], "rows of 2 does not fit rows of 12"),
        ([{"name": "c", "op": "concat", "inputs": ["t", "input"]}],
         "rows of 12 and an image of 2 x 4 x 3 cannot stand side by side"),
        ([{"name": "u", "op": "upsample", "inputs": ["t"]}], "it needs an image, and tokens come in"),
        ([{"name": "v", "op": "transpose", "inputs": ["input"]}], "only a known number of tokens can change places"),
        ([{"name": "p", "op": "maxpool", "kernel": 5, "inputs": ["input"]}],
         "a window of 5 does not fit an image of 4 with 0 zeros around it"),
        ([{"name": "k", "op": "conv", "channels": 4, "kernel": 1, "groups": 3, "inputs": ["input"]}],
         "2 and 4 channels cannot be divided into 3 groups"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_both_shapes(operations: list[dict[str, object]], says: str) -> None:
    tokens = {"name": "t", "op": "linear", "out": 12, "inputs": ["f"]}
    blocks = [{"name": "net", "operations": [{"name": "f", "op": "flatten"}, tokens, *operations]}]
    with pytest.raises(ShapeError, match=says):
        ModelGraph.of(small(blocks=blocks, input=[2, 4, 3], sizes={}))


def test_a_narrower_format_is_further_off_and_by_about_its_roundoff() -> None:
    """bf16 has 8 bits of mantissa, fp16 11, fp32 24: errors of a few roundoffs (2^-9, 2^-12, 2^-25)."""
    model = model_from_data({**small().model_dump(exclude_unset=True)}, "small")
    found = {}
    for name in ("fp32", "fp16", "bf16", "fp8_e4m3"):
        others = name if name != "fp8_e4m3" else "bf16"
        accuracy = measure_accuracy(model, Formats(name, others, others))
        assert accuracy is not None
        assert accuracy.whole
        found[name] = accuracy.report.rms_rel
    assert 1 < found["fp32"] * 2**25 < 30
    assert 1 < found["bf16"] * 2**9 < 30
    assert found["fp32"] < found["fp16"] < found["bf16"] < found["fp8_e4m3"] < 0.2


def test_a_cache_in_eight_bits_costs_accuracy_of_its_own() -> None:
    wide, narrow = (measure_accuracy(small(), Formats("bf16", "bf16", kv)) for kv in ("bf16", "fp8_e4m3"))
    assert wide is not None
    assert narrow is not None
    assert narrow.report.rms_rel > 1.3 * wide.report.rms_rel


@pytest.mark.parametrize("name", ["llama3_70b", "resnet18"])
def test_a_large_model_is_computed_on_a_slice_that_says_so(name: str) -> None:
    model = load_model(name).model
    accuracy = measure_accuracy(model, Formats.of(model))
    assert accuracy is not None
    assert not accuracy.whole
    assert accuracy.words.startswith("a slice: ")
    assert 0 < accuracy.report.rms_rel < 0.05


def test_given_weights_are_used_and_checked(tmp_path: Path) -> None:
    model = small(sizes={"layers": 1})
    graph, numbers = ModelGraph.of(model), Formats.of(model)
    tensors = {name: RandomWeights(7).tensor(name, shape) for name, shape in tensor_names(graph)}
    np.savez(tmp_path / "w.npz", **tensors)
    own = measure_accuracy(model, numbers, read_weights(tmp_path / "w.npz"))
    other = measure_accuracy(model, numbers)
    assert own is not None
    assert other is not None
    assert own.report.rms_rel != other.report.rms_rel
    with pytest.raises(InputError, match=r"there is no tensor 'words.0.words.table'"):
        measure_accuracy(model, numbers, GivenWeights({}, "w.npz"))
    wrong = {**tensors, "words.0.words.table": np.zeros((3, 3))}
    with pytest.raises(InputError, match="its shape is 3 x 3, and has to be 512 x 256"):
        measure_accuracy(model, numbers, GivenWeights(wrong, "w.npz"))


def safetensors(path: Path, header: object, body: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_safetensors_are_read_as_their_header_says(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.0], [0.5, 3.0]], dtype=np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    header = {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [16, 24]},
        "__metadata__": {"format": "pt"},
    }
    found = read_weights(safetensors(tmp_path / "w.safetensors", header, values.tobytes() + upper)).tensors
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["b"], values)  # all of them fit the upper half


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        [1],
        {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 99]}},
        {"a": {"dtype": "F32", "shape": [-2, 2], "data_offsets": [0, 16]}},
        {"a": {"dtype": "Q9", "shape": [2], "data_offsets": [0, 8]}},
        {"a": 7},
    ],
)
def test_damaged_safetensors_are_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(InputError, match=r"w\.safetensors"):
        read_weights(safetensors(tmp_path / "w.safetensors", header, bytes(16)))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(InputError, match=r"not a \.npz of numbers"):
        read_weights(tmp_path / "w.npz")


def test_a_config_runs_end_to_end() -> None:
    from hwsim.models.config_json import read_config

    graph = ModelGraph.of(model_from_data(read_config("c", LLAMA, "tiny")[0], "c"))
    out = evaluate(graph, RandomWeights(), np.array([[1.0, 2.0, 3.0]]), EXACT)
    assert out.shape == (1, 3, 500)
    assert np.isfinite(out).all()


def test_activations_are_their_definitions() -> None:
    """By the error function, hyperbolic tangents and plain exponentials of Python's math, value by value."""
    x = np.array([-4.0, -1.5, -0.25, 0.0, 0.5, 1.0, 3.0, 7.0])

    def sigmoid(value: float) -> float:
        return (1 + math.tanh(value / 2)) / 2

    expected = {
        "silu": [v * sigmoid(v) for v in x], "swish": [v * sigmoid(v) for v in x], "sigmoid": [sigmoid(v) for v in x],
        "quick_gelu": [v * sigmoid(1.702 * v) for v in x], "tanh": [math.tanh(v) for v in x],
        "relu": [max(v, 0.0) for v in x], "relu6": [min(max(v, 0.0), 6.0) for v in x],
        "hard_swish": [v * min(max(v / 6 + 0.5, 0.0), 1.0) for v in x],
    }  # fmt: skip
    for word, values in expected.items():
        np.testing.assert_allclose(ELEMENTS[word](x), values, rtol=1e-12, atol=1e-15, err_msg=word)
    gelu = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x]
    for word in ("gelu", "gelu_new"):  # Hendrycks and Gimpel: the form with a tangent is within 5e-4 of that with erf
        np.testing.assert_allclose(ELEMENTS[word](x), gelu, atol=5e-4, err_msg=word)
    inner = math.sqrt(2 / math.pi) * (1.5 + 0.044715 * 1.5**3)
    assert ELEMENTS["gelu"](np.array([1.5]))[0] == pytest.approx(1.5 * sigmoid(2 * inner), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "mean", "spread"),
    [
        ("a.weight", (400, 200), 0.0, 1 / 20), ("a.weight", (4, 100, 200), 0.0, 1 / 10),
        ("conv.weight", (100, 16, 5, 5), 0.0, 1 / 20), ("a.bias", (40_000,), 0.0, 0.1), ("a.beta", (40_000,), 0.0, 0.1),
        ("a.gamma", (40_000,), 1.0, 0.1), ("words.table", (400, 100), 0.0, 1.0),
    ],
)  # fmt: skip
def test_random_weights_keep_the_size_of_what_they_multiply(
    name: str, shape: tuple[int, ...], mean: float, spread: float
) -> None:
    """Sums of n products with weights of variance 1/n are as large as their inputs; scales of norms are near one."""
    found = RandomWeights(5).tensor(name, shape)
    assert found.mean() == pytest.approx(mean, abs=0.03 * spread)
    assert found.std() == pytest.approx(spread, rel=0.03)
    np.testing.assert_array_equal(found, RandomWeights(5).tensor(name, shape))
    assert (found != RandomWeights(6).tensor(name, shape)).any()


def test_every_output_channel_of_a_convolution_has_scales_of_its_own() -> None:
    """In eight bits a channel whose weights are a thousand times smaller is as exact as the others."""
    conv = {"name": "conv", "op": "conv", "channels": 4, "kernel": 3}
    graph = ModelGraph.of(small(blocks=[{"name": "net", "operations": [conv]}], input=[2, 6, 6], sizes={}))
    dice = np.random.default_rng(0)
    kernel = dice.standard_normal((4, 2, 3, 3)) * np.array([1000.0, 1.0, 1000.0, 1.0])[:, None, None, None]
    weights, image = GivenWeights({"net.0.conv.weight": kernel}, "w"), dice.standard_normal((1, 2, 6, 6))
    exact = evaluate(graph, weights, image, EXACT)[0]
    rounded = evaluate(graph, weights, image, ModelRounding(Formats("w8a16", "fp32", "fp32")))[0]
    for channel in range(4):
        off = np.abs(rounded[channel] - exact[channel]).max() / np.abs(exact[channel]).max()
        assert 1e-6 < off < 0.01, channel


def test_a_group_norm_of_one_group_divides_by_the_root_of_variance_and_epsilon() -> None:
    """Wu and He, 2018, equations 1 and 2, with the epsilon of PyTorch under the root; small values show where it is."""
    blocks = [{"name": "net", "operations": [{"name": "norm", "op": "group_norm"}]}]
    graph = ModelGraph.of(small(blocks=blocks, input=[3, 4, 4], sizes={}))
    weights, image = RandomWeights(1), 1e-3 * np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    gamma, beta = (weights.tensor(f"net.0.norm.{name}", (3,)).reshape(1, 3, 1, 1) for name in ("gamma", "beta"))
    wanted = np.stack([(one - one.mean()) / np.sqrt(one.var() + 1e-5) for one in image]) * gamma + beta
    np.testing.assert_allclose(evaluate(graph, weights, image, EXACT), wanted, rtol=1e-10)


@pytest.mark.parametrize("name", ["w4a16", "w8a16", "fp8_e4m3", "bf16"])
def test_a_vector_of_weights_is_rounded_along_its_only_axis(name: str) -> None:
    """To eight levels and more of a scale that covers it: off by a seventh of its largest number at most."""
    values = np.linspace(-1.0, 1.0, 64)
    found = ModelRounding(Formats(name, "bf16", "bf16")).weight(values, True)
    assert found.shape == values.shape
    assert 0 < np.abs(found - values).max() <= 1 / 7


@pytest.mark.parametrize(
    ("top_k", "shared", "gated"), [(1, None, False), (2, None, True), (3, 40, False), (2, 24, True)]
)
def test_experts_answer_for_the_tokens_that_are_sent_to_them(top_k: int, shared: int | None, gated: bool) -> None:
    """Shazeer and others, 2017: the best few by the router, weighted by a softmax over these; token by token. One that
    all tokens go to is added."""
    more = {"shared": shared} if shared else {}
    moe = {"name": "moe", "op": "experts", "experts": 5, "top_k": top_k, "inner": 32, "gated": gated, **more}
    graph = ModelGraph.of(small(blocks=[{"name": "net", "operations": [moe]}], input="features", width=16, sizes={}))
    weights, tokens = RandomWeights(2), np.random.default_rng(3).standard_normal((2, 7, 16))
    w = {name.rpartition(".")[2]: weights.tensor(name, shape) for name, shape in tensor_names(graph)}

    def network(x: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
        inside = x @ up
        if not gated:
            return np.maximum(inside, 0) @ down
        half = len(inside) // 2
        gate = inside[:half]
        return gate / (1 + np.exp(-gate)) * inside[half:] @ down

    wanted = np.zeros_like(tokens)
    for place in np.ndindex(2, 7):
        x = tokens[place]
        scores = x @ w["router"]
        chosen = sorted(range(5), key=lambda expert: -scores[expert])[:top_k]
        whole = sum(math.exp(scores[expert]) for expert in chosen)
        for expert in chosen:
            share = math.exp(scores[expert]) / whole
            wanted[place] += share * network(x, w["expert_up"][expert], w["expert_down"][expert])
        if shared:
            wanted[place] += network(x, w["shared_up"][0], w["shared_down"][0])
    np.testing.assert_allclose(evaluate(graph, weights, tokens, EXACT), wanted, rtol=1e-9)
