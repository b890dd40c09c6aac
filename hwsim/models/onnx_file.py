"""ONNX files: shapes are inferred, operators become operations, and what is not known a movement of its bytes.

The first axis is the batch. Shapes have to be known but for that. Weights are not read: a file may be without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwsim.errors import InputError
from hwsim.models.layers import Data
from hwsim.models.traced import Traced, plain

FREE = frozenset(("Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Expand"))
"""Operators that move nothing."""
SHAPES = frozenset(("Shape", "Size", "Constant", "ConstantOfShape", "Range", "NonZero"))
"""Operators about shapes, whose results are a few whole numbers."""
UNARY = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Gelu": "gelu", "Softmax": "softmax", "Clip": "relu6",
         "HardSwish": "hard_swish", "LeakyRelu": "relu", "Elu": "tanh", "Erf": "tanh", "Sqrt": "scale"}  # fmt: skip
BINARY = {"Add": "add", "Sub": "add", "Mul": "mul", "Div": "mul"}
NORMS = {"BatchNormalization": "batch_norm", "LayerNormalization": "layernorm", "GroupNormalization": "group_norm"}
KNOWN_MOVES = frozenset(
    ("Transpose", "Concat", "Split", "Slice", "Gather", "Pad", "ReduceMean", "ReduceSum", "Pow", "Where", "Resize",
     "InstanceNormalization", "Exp", "Neg", "Equal", "Not", "Sin", "Cos",
     "Reciprocal", "ReduceMax", "ArgMax", "TopK", "Tile", "Upsample")
)  # fmt: skip
"""Operators that are movements and little else: nothing needs to be said about them."""
MOST_NODES = 4000


def read_onnx(path: Path, name: str) -> tuple[Data, list[str]]:
    """The model file that an ONNX file describes, as plain data, and what was not understood."""
    try:
        import onnx
        from onnx import shape_inference
    except ImportError:
        raise InputError(f"{path}: reading ONNX needs the package onnx: pip install 'hwsim[onnx]'") from None
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # noqa: BLE001 - protobuf raises errors of its own for damaged files
        raise InputError(f"{path}: not an ONNX file, or a damaged one: {_first(error)}") from None
    if not model.graph.node:
        raise InputError(f"{path}: not an ONNX file, or one without operators")
    if len(model.graph.node) > MOST_NODES:
        raise InputError(f"{path}: {len(model.graph.node):,} operators; at most {MOST_NODES:,} are read")
    _fix_batch(str(path), model.graph)
    known = {each.domain for each in model.opset_import}
    for domain in sorted({node.domain for node in model.graph.node} - known):
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    failed: list[str] = []
    try:
        model = shape_inference.infer_shapes(model, strict_mode=False)
    except Exception as error:  # noqa: BLE001 - onnx raises errors of its own; shapes in the file remain
        failed.append(f"shapes cannot be inferred ({_first(error)}); only those that the file gives are known")
    made, notes = _Reader(str(path), model.graph, name).read()
    return made, [*failed, *notes]


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:160] or type(error).__name__


def _fix_batch(file: str, graph: Any) -> None:
    """A batch of one where the first axis is open; any other open axis is refused."""
    weights = {each.name for each in graph.initializer}
    for given in graph.input:
        if given.name in weights:
            continue
        for axis, dimension in enumerate(given.type.tensor_type.shape.dim):
            if dimension.HasField("dim_value") and dimension.dim_value > 0:
                continue
            if axis == 0:
                dimension.dim_value = 1
                continue
            raise InputError(
                f"{file}: input {given.name[:60]!r}: axis {axis} has no size; export it with fixed sizes (only "
                "the first axis, the batch, may be open)"
            )


class _Reader(Traced):
    """Goes through the operators in order."""

    def __init__(self, file: str, graph: Any, name: str) -> None:
        super().__init__(file, name)
        self.graph = graph
        self.weights = {each.name: each.name for each in graph.initializer}
        self.shapes = {each.name: tuple(each.dims) for each in graph.initializer}
        self.whole: set[str] = set()
        """Tensors of whole numbers: shapes and indices."""
        for each in [*graph.input, *graph.value_info, *graph.output]:
            dims = [dimension.dim_value for dimension in each.type.tensor_type.shape.dim]
            if each.type.HasField("tensor_type") and all(size > 0 for size in dims):
                self.shapes[each.name] = tuple(dims)
            if each.type.tensor_type.elem_type in (6, 7, 9):
                self.whole.add(each.name)

    def read(self) -> tuple[Data, list[str]]:
        self.comes_in([each.name for each in self.graph.input if each.name not in self.weights])
        for node in self.graph.node:
            self._node(node)
        return self.model("A model from an ONNX file.", "fp16"), self.notes()

    def _node(self, node: Any) -> None:
        outputs = [name for name in node.output if name]
        if node.op_type in SHAPES or not outputs or outputs[0] in self.whole:
            return
        sources = [name for name in node.input if name in self.made]
        if not sources:  # made of weights alone
            made_of = next((self.weights[name] for name in node.input if name in self.weights), "")
            self.weights |= dict.fromkeys(outputs, made_of)
            return
        kind, output, source, values = node.op_type, outputs[0], sources[0], _attributes(node)
        shape = self.shapes.get(output)
        if shape is None or any(name not in self.shapes for name in sources):
            self.unsized[plain(kind)] += 1
            self.alias(output, source)
            self.shapes.setdefault(output, self.shapes.get(source, (1, 1)))
            return
        given = [name or None for name in node.input] + [None] * 3
        if kind == "Conv":
            self._conv(values, output, source, given)
        elif kind in ("Gemm", "MatMul") and all(self.shapes.get(name) for name in node.input[:2]):
            a = self.shapes[node.input[0]]
            self.product(kind, output, node.input[0], node.input[1], a[-2 if values.get("transA") else -1], given[2])
        elif kind in ("MaxPool", "AveragePool"):
            self._pool(kind, values, output, source)
        elif kind == "GlobalAveragePool":
            self.global_pool(output, source)
        elif kind in NORMS:
            self.norm(NORMS[kind], output, source, given[1], given[2])
        elif kind in FREE:
            self.view(output, source)
        elif kind in UNARY and self.shapes[source] == shape:
            self.pointwise(UNARY[kind], output, [source], kind)
        elif kind in BINARY and len(sources) == 2:
            self.pointwise(BINARY[kind], output, sources, kind)
        elif kind in BINARY:  # with weights or a number
            self.scaled(output, source, next((name for name in node.input if name in self.weights), None),
                        kind == "Add")  # fmt: skip
        else:
            self.move(kind, outputs, sources, known=kind in KNOWN_MOVES)

    def _conv(self, values: dict[str, Any], output: str, source: str, given: Sequence[str | None]) -> None:
        sides = self.shapes.get(given[1] or "", ())[2:]
        pads = values.get("pads", [0] * 2 * len(sides))
        even = values.get("auto_pad", b"NOTSET") == b"NOTSET" and pads[: len(sides)] == pads[len(sides) :]
        self.conv(
            output, source, given[1] or "", bias=given[2], groups=values.get("group", 1),
            stride=tuple(values.get("strides", [1] * len(sides))), padding=tuple(pads[: len(sides)]) if even else None,
            dilation=tuple(values.get("dilations", ())),
        )  # fmt: skip

    def _pool(self, kind: str, values: dict[str, Any], output: str, source: str) -> None:
        kernel = tuple(values.get("kernel_shape", ()))
        stride, pads = values.get("strides", [1] * len(kernel)), values.get("pads", [0] * 2 * len(kernel))
        word = "maxpool" if kind == "MaxPool" else "avgpool"
        self.pool(word, output, source, kernel, tuple(stride), tuple(pads[: len(kernel)]))


def _attributes(node: Any) -> dict[str, Any]:
    import onnx

    found = {}
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        found[each.name] = list(value) if isinstance(value, list | tuple) else value
    return found
