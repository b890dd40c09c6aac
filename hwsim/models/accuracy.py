"""What the formats of a model cost in accuracy: a small copy of it computed twice, rounded and in float64.

A model whose arithmetic is small is computed as it is. Of a larger one a slice is: two repetitions of each block, heads
and widths divided by the same number, a short vocabulary. Weights are random, or given for a model that is computed
whole.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from hwsim.errors import InputError, ShapeError
from hwsim.files import note_input
from hwsim.models.count import Formats, forward, macs, parameters
from hwsim.models.evaluate import EXACT, GivenWeights, ModelRounding, RandomWeights, evaluate, has_math
from hwsim.models.graph import ModelGraph
from hwsim.models.load import frozen
from hwsim.numerics.format import Array
from hwsim.numerics.quantize import NumericReport, measure
from hwsim.ops.model import ModelWorkload
from hwsim.units import data as shown_bytes

TOKENS = 16
LONGEST_VOCABULARY, MOST_EXPERTS, MOST_REPEATS = 2048, 8, 2
MOST_MACS, MOST_PARAMETERS = 1_200_000_000, 12_000_000
"""Of what is computed: some seconds' work at most."""
SHRUNK = {
    "linear": ("out",), "embedding": ("width",), "attention": ("head_dim", "value_dim"), "rope": ("head_dim",),
    "head_norm": ("head_dim",), "latent_attention": ("rank", "head_dim", "rope_dim", "value_dim"),
    "experts": ("inner", "shared"),
}  # fmt: skip
"""Extents that are divided by a common number: widths, and heads with them."""


@dataclass(frozen=True)
class Accuracy:
    """How far the answer in a model's formats is from float64, and what was computed."""

    report: NumericReport
    whole: bool
    words: str


def measure_accuracy(
    model: ModelWorkload, numbers: Formats, given: GivenWeights | None = None, seed: int = 0
) -> Accuracy | None:
    """None where a model has operations whose math is not known, or no slice of it is small enough."""
    found = _small(model)
    if found is None or (given is not None and not found[1]):
        if given is not None:
            raise InputError(f"{given.file}: {model.name} is too large to be computed whole with given weights")
        return None
    small, whole, words = found
    if given is not None:
        return Accuracy(
            _measured(ModelGraph.of(small), numbers, given, seed), whole, f"{words}, weights of {given.file}"
        )
    return Accuracy(_random(small.model_dump_json(), numbers, seed), whole, words)


@lru_cache(maxsize=64)
def _random(text: str, numbers: Formats, seed: int) -> NumericReport:
    model = ModelWorkload.model_validate_json(text, strict=False)
    return _measured(ModelGraph.of(model), numbers, RandomWeights(seed), seed)


def _measured(graph: ModelGraph, numbers: Formats, weights: RandomWeights | GivenWeights, seed: int) -> NumericReport:
    given, source = _inputs(graph, seed)
    exact = evaluate(graph, weights, given, EXACT, source)
    rounded = evaluate(graph, weights, given, ModelRounding(numbers), source)
    return measure(rounded, exact)


def _inputs(graph: ModelGraph, seed: int) -> tuple[Array, Array | None]:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, 1 << 30, (1, TOKENS)).astype(np.float64)
    first = graph.blocks[0].nodes[0].inputs[0]
    image = None
    if first.image is not None:
        image = generator.standard_normal((1, first.width, *first.image))
    elif first.width > 1:
        image = generator.standard_normal((1, TOKENS, first.width))
    if graph.sourced:
        return tokens, image if image is not None else generator.integers(0, 1 << 30, (1, TOKENS)).astype(np.float64)
    return (tokens if image is None else image), None


def _small(model: ModelWorkload) -> tuple[ModelWorkload, bool, str] | None:
    """A model that is computed in a moment, whether it is the whole one, and what to call it."""
    try:
        graph = ModelGraph.of(model)
    except ShapeError:
        return None
    if _fits(graph):
        return model, True, "the whole model"
    for factor in (1, 2, 4, 8, 16, 32):
        for image in (1, 2, 4):
            small = shrunk(model, factor, image)
            if small is not None and _fits(ModelGraph.of(small)):
                parts = [f"widths divided by {factor}"] if factor > 1 else []
                parts += [f"images {image} times smaller"] if image > 1 else []
                return small, False, f"a slice: {', '.join([*parts, 'up to two repetitions of each block'])}"
    return None


def _fits(graph: ModelGraph) -> bool:
    """Whether it can be computed, and in a moment."""
    if not all(has_math(node) for _, node in graph.nodes()):
        return False
    source = TOKENS if graph.sourced else 0
    return parameters(graph) <= MOST_PARAMETERS and macs(graph, forward(1, TOKENS, source)) <= MOST_MACS


def shrunk(model: ModelWorkload, factor: int, image: int) -> ModelWorkload | None:
    """A smaller model of the same make; None where its numbers cannot be divided so."""
    data = model.model_dump(exclude_unset=True)
    sizes = data.pop("sizes", {})

    def number(value: Any) -> Any:
        return sizes.get(value, value) if isinstance(value, str) else value

    divided = True
    for block in data["blocks"]:
        block["repeat"] = min(MOST_REPEATS, number(block.get("repeat", 1)))
        for op in block["operations"]:
            for name in list(op):
                if name not in ("name", "op", "inputs", "split", "rows_of", "what", "makes"):
                    op[name] = tuple(map(number, op[name])) if isinstance(op[name], tuple) else number(op[name])
            if op["op"] == "embedding" or op.get("rows_of") == "last" or op.get("tied"):
                name = "rows" if op["op"] == "embedding" else "out"
                op[name] = min(op[name], LONGEST_VOCABULARY)
                if name == "out":
                    continue
            if op["op"] == "experts":
                op["experts"] = min(op["experts"], MOST_EXPERTS)
                op["top_k"] = min(op["top_k"], MOST_REPEATS, op["experts"])
            for name in SHRUNK.get(op["op"], ()):
                if op.get(name) is None:
                    continue
                values = op[name] if isinstance(op[name], tuple) else (op[name],)
                divided = divided and all(gcd(value, 2 * factor if name != "out" else factor) % factor == 0 and
                                          value >= 2 * factor for value in values)  # fmt: skip
                smaller = tuple(max(1, value // factor) for value in values)
                op[name] = smaller if isinstance(op[name], tuple) else smaller[0]
    if isinstance(data.get("input"), tuple):
        channels, height, width = data["input"]
        data["input"] = (channels, max(1, height // image), width if width == 1 else max(1, width // image))
    elif image > 1:
        return None
    if not divided:
        return None
    try:
        made = ModelWorkload.model_validate(frozen(data))
        ModelGraph.of(made)
    except (ShapeError, ValueError):
        return None
    return made


MOST_BYTES = 2_000_000_000
MOST_HEADER = 50_000_000
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}
"""Number types of safetensors that are read; bf16 is the upper half of fp32."""


def read_weights(path: Path) -> GivenWeights:
    """All tensors of a file, by name. Raises InputError for what is no such file, or a damaged one."""
    note_input(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path}: larger than {shown_bytes(MOST_BYTES)}; give the weights of a small model")
    if path.suffix == ".npz":
        return GivenWeights(_npz(path), str(path))
    if path.suffix == ".safetensors":
        return GivenWeights(_safetensors(path), str(path))
    raise InputError(f"{path}: weights are read from .npz and .safetensors")


def _npz(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a .npz of numbers, or a damaged one: {error}") from error


def _safetensors(path: Path) -> dict[str, Array]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= min(MOST_HEADER, len(content) - 8):
        raise InputError(f"{path}: not a safetensors file: its header does not fit it")
    try:
        header = json.loads(content[8 : 8 + length].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: not a safetensors file: its header is no list of tensors")
    body = memoryview(content)[8 + length :]
    return {name: _tensor(path, name, about, body) for name, about in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, about: Any, body: memoryview) -> Array:
    try:
        kind, shape, (begin, end) = TYPES[about["dtype"]], tuple(about["shape"]), about["data_offsets"]
        wanted = np.dtype(kind).itemsize * int(np.prod(shape, dtype=object))
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError("a negative size")
        if not 0 <= begin <= end <= len(body) or end - begin != wanted:
            raise ValueError(f"{wanted:,} bytes are needed, and {end - begin:,} given")
        found: Array = np.frombuffer(body[begin:end], dtype=kind).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: tensor {str(name)[:60]!r} cannot be read: {error}") from error
    if about["dtype"] == "BF16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found
