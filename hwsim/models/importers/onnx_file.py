"""ONNX files: shapes are inferred, operators become operations, and what is not known a movement of its bytes.

The first axis is the batch. Shapes have to be known but for that. Weights are not read: a file may be without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from hwsim.errors import InputError
from hwsim.models.importers.layers import Data, op
from hwsim.spec.limits import LARGEST_SIZE

FREE = frozenset(("Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Expand"))
"""Operators that move nothing."""
SHAPES = frozenset(("Shape", "Size", "Constant", "ConstantOfShape", "Range", "NonZero"))
"""Operators about shapes, whose results are a few whole numbers."""
UNARY = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Gelu": "gelu", "Softmax": "softmax", "Clip": "relu6",
         "HardSwish": "hard_swish", "LeakyRelu": "relu", "Elu": "tanh", "Erf": "tanh", "Sqrt": "scale"}  # fmt: skip
BINARY = {"Add": "add", "Sub": "add", "Mul": "mul", "Div": "mul"}
KNOWN_MOVES = frozenset(
    ("Transpose", "Concat", "Split", "Slice", "Gather", "Pad", "ReduceMean", "ReduceSum", "Pow", "Where", "Resize",
     "LayerNormalization", "InstanceNormalization", "GroupNormalization", "Exp", "Neg", "Equal", "Not", "Sin", "Cos",
     "Reciprocal", "ReduceMax", "ArgMax", "TopK", "Tile", "Upsample")
)  # fmt: skip
"""Operators that are movements and little else: nothing needs to be said about them."""
MOST_NODES = 4000

Shape = tuple[int, ...]


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


class _Reader:
    """Goes through the operators in order."""

    def __init__(self, file: str, graph: Any, name: str) -> None:
        self.file, self.graph, self.name = file, graph, name
        self.weights: dict[str, Shape] = {each.name: tuple(each.dims) for each in graph.initializer}
        self.shapes: dict[str, Shape] = dict(self.weights)
        self.whole: set[str] = set()
        """Tensors of whole numbers: shapes and indices."""
        for each in [*graph.input, *graph.value_info, *graph.output]:
            dims = [dimension.dim_value for dimension in each.type.tensor_type.shape.dim]
            if each.type.HasField("tensor_type") and all(size > 0 for size in dims):
                self.shapes[each.name] = tuple(dims)
            if each.type.tensor_type.elem_type in (6, 7, 9):
                self.whole.add(each.name)
        self.made: dict[str, str] = {}
        self.operations: list[Data] = []
        self.unknown: Counter[str] = Counter()
        self.unsized: Counter[str] = Counter()

    def read(self) -> tuple[Data, list[str]]:
        given = [each for each in self.graph.input if each.name not in self.weights]
        if not given:
            raise InputError(f"{self.file}: it has no input")
        for each in given:
            if each.name not in self.shapes:
                raise InputError(f"{self.file}: input {each.name[:60]!r}: its shape is not known")
            self._view(each.name, self.shapes[each.name])
        for node in self.graph.node:
            self._node(node)
        notes = [f"{count} x {kind}: not known; counted as a movement of its bytes" for kind, count in
                 sorted(self.unknown.items())]  # fmt: skip
        notes += [f"{count} x {kind}: shapes not inferred; left out" for kind, count in sorted(self.unsized.items())]
        made = {
            "format": 1, "name": self.name, "description": "A model from an ONNX file.", "op": "model",
            "precision": "fp16", "input": (1, 1, 1), "use": {"phase": "forward"},
            "blocks": [{"name": "graph", "operations": self.operations}],
        }  # fmt: skip
        return made, notes

    def _view(self, tensor: str, shape: Shape) -> None:
        self._put(tensor, op("", "view", makes=_per_sample(shape)), "input")

    def _put(self, tensor: str, operation: Data, *sources: str) -> None:
        """An operation that makes a tensor, under a name of ours: theirs may be anything."""
        operation["name"] = f"{operation['op']}_{len(self.operations) + 1}"
        if sources:
            operation["inputs"] = tuple(sources)
        self.operations.append(operation)
        self.made[tensor] = operation["name"]

    def _node(self, node: Any) -> None:
        outputs = [name for name in node.output if name]
        if node.op_type in SHAPES or not outputs or outputs[0] in self.whole:
            return
        sources = [name for name in node.input if name in self.made]
        if not sources:  # made of weights alone
            self.weights |= {name: self.shapes.get(name, ()) for name in outputs}
            return
        shape = self.shapes.get(outputs[0])
        if shape is None or any(name not in self.shapes for name in sources):
            self.unsized[node.op_type] += 1
            self.made[outputs[0]] = self.made[sources[0]]
            self.shapes.setdefault(outputs[0], self.shapes.get(sources[0], (1, 1)))
            return
        kind = node.op_type
        if kind == "Conv" and len(shape) == 4:
            self._conv(node, outputs[0], sources[0])
        elif kind in ("Gemm", "MatMul"):
            self._product(node, outputs[0], shape)
        elif kind in ("MaxPool", "AveragePool") and len(shape) == 4:
            self._pool(node, outputs[0], sources[0])
        elif kind == "GlobalAveragePool":
            self._put(outputs[0], op("", "global_avgpool"), self.made[sources[0]])
            self._put(outputs[0], op("", "view", makes=_per_sample(shape)), self.made[outputs[0]])
        elif kind == "BatchNormalization":
            self._put(outputs[0], op("", "batch_norm"), self.made[sources[0]])
        elif kind in FREE:
            self._put(outputs[0], op("", "view", makes=_per_sample(shape)), self.made[sources[0]])
        elif kind in UNARY and self.shapes[sources[0]] == shape:
            self._put(outputs[0], op("", UNARY[kind]), self.made[sources[0]])
        elif kind in BINARY and len(sources) == 2 and all(self.shapes[name] == shape for name in sources):
            self._put(outputs[0], op("", BINARY[kind]), *(self.made[name] for name in sources))
        elif kind in BINARY and len(sources) == 1:  # with weights or a number
            self._put(outputs[0], op("", "scale"), self.made[sources[0]])
            self._put(outputs[0], op("", "view", makes=_per_sample(shape)), self.made[outputs[0]])
        else:
            if kind not in KNOWN_MOVES and kind not in BINARY:
                self.unknown[kind] += 1
            self._move(kind, outputs, sources)

    def _move(self, kind: str, outputs: Sequence[str], sources: Sequence[str]) -> None:
        read = sum(prod(_per_sample(self.shapes[name])) for name in sources)
        written = sum(prod(_per_sample(self.shapes[name])) for name in outputs if name in self.shapes)
        shape = _per_sample(self.shapes[outputs[0]])
        what = "".join(letter for letter in kind if letter.isalnum())[:60]
        moved = {"read": _size(self, read), "write": _size(self, written)}
        self._put(outputs[0], op("", "move", **moved, makes=shape, what=what), self.made[sources[0]])
        for name in outputs[1:]:
            if name in self.shapes:
                self._put(name, op("", "view", makes=_per_sample(self.shapes[name])), self.made[outputs[0]])

    def _conv(self, node: Any, output: str, source: str) -> None:
        values = _attributes(node)
        weight = self.shapes.get(node.input[1], ())
        shape, given = self.shapes[output], self.shapes[source]
        if len(weight) != 4 or values.get("dilations", [1, 1]) != [1, 1]:
            self._move("Conv", [output], [source])
            self.unknown["Conv with dilation, or without known weights"] += 1
            return
        stride = tuple(values.get("strides", [1, 1]))
        pads = values.get("pads")
        padding: Any = tuple(pads[:2]) if pads and pads[:2] == pads[2:] else None
        if padding is None:  # uneven or automatic: what the sizes ask for
            pairs = zip(given[2:], shape[2:], weight[2:], stride, strict=True)
            padding = tuple(max(0, -(-((out - 1) * step + side - size) // 2)) for size, out, side, step in pairs)
        conv = op("", "conv", channels=weight[0], kernel=_pair(weight[2:]))
        for field, value, usual in (("stride", _pair(stride), 1), ("padding", _pair(padding), 0),
                                    ("groups", values.get("group", 1), 1)):  # fmt: skip
            if value != usual:
                conv[field] = value
        if len(node.input) > 2 and node.input[2]:
            conv["bias"] = True
        self._put(output, conv, self.made[source])
        if not pads or pads[:2] != pads[2:]:
            self._put(output, op("", "view", makes=_per_sample(shape)), self.made[output])

    def _pool(self, node: Any, output: str, source: str) -> None:
        read, written = prod(_per_sample(self.shapes[source])), prod(_per_sample(self.shapes[output]))
        move = op("", "move", read=_size(self, read), write=_size(self, written),
                  makes=_per_sample(self.shapes[output]), what=node.op_type)  # fmt: skip
        self._put(output, move, self.made[source])

    def _product(self, node: Any, output: str, shape: Shape) -> None:
        """A product with weights where the second operand is one; else of two tensors that are both computed."""
        first, second = node.input[0], node.input[1]
        values = _attributes(node)
        a, b = self.shapes.get(first), self.shapes.get(second)
        if a is None or b is None or not a or not b:
            self.unsized[node.op_type] += 1
            self.made[output] = self.made.get(first) or self.made[second]
            return
        k = a[-2] if node.op_type == "Gemm" and values.get("transA") else a[-1]
        n = shape[-1]
        rows = _per_sample(shape)
        if second in self.weights and len(b) == 2 and first in self.made:
            product = op("", "linear", out=n)
            if node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]:
                product["bias"] = True
            if len(rows) < 3:
                self._put(output, product, self.made[first])
                return
            product = op("", "product", m=prod(rows[:-1]), n=n, k=k, weights=True)
        else:
            m = shape[-2] if len(shape) > 2 else 1
            product = op("", "product", m=m, n=n, k=k, batch=max(1, prod(rows[:-2]) if len(rows) > 2 else 1))
        source = self.made.get(first) or self.made[second]
        self._put(output, product, source)
        self._put(output, op("", "view", makes=rows), self.made[output])


def _per_sample(shape: Shape) -> Shape:
    """Without the batch, in at most three axes."""
    rest = tuple(size for size in shape[1:]) or (1,)
    if len(rest) > 3:
        rest = (rest[0], prod(rest[1:-1]), rest[-1])
    return rest


def _pair(values: Sequence[int]) -> Any:
    return values[0] if len(set(values)) == 1 else tuple(values)


def _size(reader: _Reader, count: int) -> int:
    if count > LARGEST_SIZE:
        raise InputError(f"{reader.file}: a tensor of {count:,} numbers is larger than any that is simulated")
    return max(1, count)


def _attributes(node: Any) -> dict[str, Any]:
    import onnx

    found = {}
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        found[each.name] = list(value) if isinstance(value, list | tuple) else value
    return found
