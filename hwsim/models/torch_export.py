"""Programs of `torch.export.save`: a zip whose graph is written in JSON, with the shape of every tensor.

Only that JSON is read, with the standard library: weights, sample inputs and whatever else the archive holds stay
closed, so that a program from anybody can be looked at, and PyTorch is not needed. Operators are those of ATen, before
or after `run_decompositions()`.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hwsim.errors import InputError
from hwsim.models.layers import Data
from hwsim.models.traced import Shape, Traced, plain
from hwsim.units import data as shown_bytes

MOST_GRAPH_BYTES = 64_000_000
"""Of the graph alone; weights may be as large as they are."""
MOST_NODES = 40_000
NEWEST = 8
"""The schema that torch 2.5 to 2.13 write."""
OLD_GRAPH = "serialized_exported_program.json"
"""Where torch up to 2.7 puts the graph; later ones have it in models/."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
"""What zipfile raises for archives that are damaged, encrypted, or packed in unknown ways."""

WHOLE = frozenset((1, 3, 4, 5, 12, 28, 34, 35))
"""Types of numbers that are indices, masks and counts."""
PRECISIONS = {6: "fp16", 7: "fp32", 13: "bf16"}
"""Types of numbers by the formats that they are computed in."""

VIEWS = frozenset(
    ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t",
     "expand", "expand_as", "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "narrow", "detach",
     "detach_", "alias", "lift_fresh_copy", "lift_fresh", "dropout", "feature_dropout", "alpha_dropout", "identity",
     "view_as", "movedim", "swapaxes", "numpy_T", "contiguous", "clone", "to", "_to_copy", "type_as", "native_dropout",
     "unsafe_split", "unsafe_chunk", "tensor_split", "pixel_shuffle", "real", "broadcast_to")
)  # fmt: skip
"""Operators that are another look at the same numbers, where these lie in order."""
COPIES = frozenset(("reshape", "flatten", "contiguous", "clone", "_unsafe_view", "pixel_shuffle"))
"""Those that move numbers which do not lie in order."""
UNARY = {
    "relu": "relu", "relu6": "relu6", "hardtanh": "relu6", "sigmoid": "sigmoid", "tanh": "tanh", "gelu": "gelu",
    "silu": "silu", "hardswish": "hard_swish", "leaky_relu": "relu", "elu": "tanh", "erf": "tanh", "sqrt": "scale",
    "rsqrt": "scale", "neg": "scale", "exp": "tanh", "pow": "scale", "clamp": "relu6", "abs": "scale", "mish": "tanh",
    "reciprocal": "scale", "square": "scale", "cos": "tanh", "sin": "tanh", "log": "tanh", "hardsigmoid": "hard_swish",
    "softplus": "tanh", "clamp_min": "relu", "masked_fill": "scale",
}  # fmt: skip
BINARY = {"add": "add", "sub": "add", "rsub": "add", "mul": "mul", "div": "mul"}
SOFTMAX = frozenset(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"))
PRODUCTS = {
    "linear": ("input", "weight", "bias"), "addmm": ("mat1", "mat2", "self"), "mm": ("self", "mat2", ""),
    "bmm": ("self", "mat2", ""), "matmul": ("self", "other", ""), "baddbmm": ("batch1", "batch2", "self"),
    "mv": ("self", "vec", ""), "dot": ("self", "tensor", ""),
}  # fmt: skip
"""Products, with what they call their two operands and what is added."""
NORMS = {
    "batch_norm": "batch_norm", "_native_batch_norm_legit_no_training": "batch_norm", "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm", "cudnn_batch_norm": "batch_norm", "layer_norm": "layernorm",
    "native_layer_norm": "layernorm", "group_norm": "group_norm", "native_group_norm": "group_norm",
    "rms_norm": "rmsnorm", "_fused_rms_norm": "rmsnorm",
}  # fmt: skip
CONVS = frozenset(
    ("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
)
ATTENTION = frozenset(
    ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
     "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention")
)  # fmt: skip
CONSTANTS = frozenset(
    ("full_like", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "arange")
)
"""Operators whose numbers do not depend on what they are given."""
KNOWN_MOVES = frozenset(
    ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "var_mean", "where", "index", "index_select", "gather",
     "index_put", "slice_scatter", "select_scatter", "scatter", "roll", "flip", "repeat", "repeat_interleave", "tile",
     "constant_pad_nd", "pad", "stack", "cumsum", "upsample_nearest2d", "upsample_bilinear2d", "instance_norm",
     "adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d", "avg_pool1d", "max_pool1d", "copy", "copy_",
     "maximum", "minimum", "logsumexp", "linalg_vector_norm", "norm", "im2col", "col2im", "glu", "pow", "upsample")
)  # fmt: skip
"""Operators that are movements and little else: nothing needs to be said about them."""


def read_program(path: Path, name: str) -> tuple[Data, list[str]]:
    """The model file that an exported program describes, as plain data, and what was not understood."""
    program, notes = _open(path)
    version = program.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if isinstance(major, int) and major > NEWEST:
        notes.append(f"written in a newer format ({major}); read as far as it is like format {NEWEST}")
    made, more = _Program(str(path), program, name).read()
    return made, [*notes, *more]


def _open(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The JSON of the graph; nothing else of the archive is opened."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [each.filename for each in archive.infolist()]
            graphs = sorted(name for name in names if re.search(r"(^|/)models/[^/]+\.json$", name))
            graphs = graphs or [name for name in names if name.rpartition("/")[2] == OLD_GRAPH]
            if not graphs:
                script = any("/code/" in name for name in names)
                what = "a TorchScript archive" if script else "an archive without the graph of a program"
                raise InputError(
                    f"{path}: {what}; torch.export.save(torch.export.export(model, inputs), 'model.pt2') writes one "
                    "that is read here"
                )
            with archive.open(graphs[0]) as stream:
                content = stream.read(MOST_GRAPH_BYTES + 1)
    except _DAMAGE as error:
        raise InputError(f"{path}: not a program of torch.export, or a damaged one: {_first(error)}") from None
    if len(content) > MOST_GRAPH_BYTES:
        raise InputError(f"{path}: its graph is larger than {shown_bytes(MOST_GRAPH_BYTES)}")
    try:
        program = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: the graph in it is not JSON: {_first(error)}") from None
    if not isinstance(program, dict):
        raise InputError(f"{path}: the graph in it is no object of fields")
    others = [f"the archive holds {len(graphs)} programs; {plain(graphs[0])} is read"] if len(graphs) > 1 else []
    return program, others


def _first(error: Exception) -> str:
    return plain(str(error).strip().split("\n")[0]) or type(error).__name__


@dataclass(frozen=True)
class _Call:
    """An operator with its arguments by name."""

    name: str
    values: Mapping[str, Any]
    """Numbers, lists of numbers, and names of tensors."""
    sources: tuple[str, ...]
    outputs: tuple[str, ...]

    def tensor(self, name: str) -> str | None:
        found = self.values.get(name)
        return found if isinstance(found, str) else None

    def sides(self, name: str, count: int, usual: int) -> Shape:
        """A number for each axis; one number stands for all."""
        found = self.values.get(name, usual)
        listed = [found] * count if isinstance(found, int) else found
        if not isinstance(listed, list) or not all(isinstance(each, int) for each in listed):
            return (usual,) * count
        return tuple(listed * count if len(listed) == 1 else listed or [usual] * count)[:count]

    def number(self, name: str, usual: int) -> int:
        found = self.values.get(name, usual)
        return int(found) if isinstance(found, int) else usual


class _Program(Traced):
    """Goes through the operators in order."""

    def __init__(self, file: str, program: dict[str, Any], name: str) -> None:
        super().__init__(file, name)
        module = self._field(program, "graph_module", dict)
        self.graph = self._field(module, "graph", dict, "graph_module.")
        self.nodes = self._field(self.graph, "nodes", list, "graph_module.graph.")
        if not self.nodes:
            raise InputError(f"{file}: a program without operators")
        if len(self.nodes) > MOST_NODES:
            raise InputError(f"{file}: {len(self.nodes):,} operators; at most {MOST_NODES:,} are read")
        signature = self._field(module, "signature", dict, "graph_module.")
        self.specs = self._field(signature, "input_specs", list, "graph_module.signature.")
        self.parameters: dict[str, str] = {}
        """Tensors that are learned, with what the model calls them."""
        self.whole: set[str] = set()
        self.in_order: set[str] = set()
        """Tensors whose numbers lie in memory in the order of their axes."""
        self.types: dict[str, int] = {}
        self.opened: dict[str, int] = {}
        """Axes that were left open, with the size at which the program was exported."""
        self.batch_name = ""
        self.used: set[str] = set()
        """Tensors that an operator reads; of two names for the same weights, only one is."""

    def _field(self, data: dict[str, Any], name: str, kind: type[Any], where: str = "") -> Any:
        found = data.get(name)
        if not isinstance(found, kind):
            told = "missing" if found is None else f"must be {'a list' if kind is list else 'an object'}"
            raise InputError(f"{self.file}: {where}{name}: {told}; this is no program that torch.export.save wrote")
        return found

    def read(self) -> tuple[Data, list[str]]:
        given = self._signature()
        tensors = self._field(self.graph, "tensor_values", dict, "graph_module.graph.")
        self._find_batch(tensors, given)
        for name, about in tensors.items():
            self._tensor(str(name), about)
        self.comes_in(given)
        for node in self.nodes:
            self._node(node)
        types = [self.types[name] for name in self.parameters if self.types.get(name) in PRECISIONS]
        types = types or [self.types[name] for name in given if self.types.get(name) in PRECISIONS]
        precision = PRECISIONS[max(set(types), key=types.count)] if types else "fp32"
        made = self.model("A model from a program of torch.export.", precision)
        return made, [*self._open_notes(), *self.notes(), *self._weight_notes()]

    def _signature(self) -> list[str]:
        """Names of what comes in; weights are put down."""
        given = []
        for spec in self.specs:
            for kind, about in spec.items() if isinstance(spec, dict) else ():
                name = _tensor_name(about.get("arg")) if isinstance(about, dict) else None
                if name is None:
                    continue
                if kind == "user_input":
                    given.append(name)
                else:
                    self.weights[name] = name
                    if kind == "parameter":
                        self.parameters[name] = str(about.get("parameter_name", name))
        return given

    # Shapes -----------------------------------------------------------------------------------------------------------

    def _find_batch(self, tensors: dict[str, Any], given: Sequence[str]) -> None:
        """The name of the batch, where the first axis of the first input was left open."""
        about = tensors.get(given[0]) if given else None
        sizes = about.get("sizes") if isinstance(about, dict) else None
        if isinstance(sizes, list) and sizes:
            self.batch_name = next(iter(_symbols(sizes[0])), "")
            self.opened[self.batch_name] = _hint(sizes[0]) or 1

    def _tensor(self, name: str, about: Any) -> None:
        sizes = about.get("sizes") if isinstance(about, dict) else None
        if not isinstance(sizes, list):
            return
        shape = [self._size_of(size) for size in sizes]
        if all(shape):
            self.shapes[name] = tuple(size or 1 for size in shape)
        kind = about.get("dtype")
        if isinstance(kind, int):
            self.types[name] = kind
            if kind in WHOLE:
                self.whole.add(name)
        strides = [_hint(each) for each in _listed(about.get("strides"))]
        hinted = [_hint(each) or 1 for each in sizes]
        wanted = [prod(hinted[axis + 1 :]) for axis in range(len(hinted))]
        pairs = zip(hinted, strides, wanted, strict=False)
        if all(size == 1 or stride == want for size, stride, want in pairs):
            self.in_order.add(name)

    def _size_of(self, size: Any) -> int | None:
        """An extent; the batch counts as one, other open extents as they were when the program was exported."""
        found, names = _hint(size), _symbols(size)
        if not found or found < 0:
            return None
        if self.batch_name in names:
            return max(1, found // self.opened[self.batch_name])
        for name in names[:1]:
            self.opened.setdefault(name, found)
        return found

    def _open_notes(self) -> list[str]:
        rest = [f"{plain(name)} as {size:,}" for name, size in self.opened.items() if name and name != self.batch_name]
        return [f"open sizes are taken as they were when it was exported: {', '.join(rest[:8])}"] if rest else []

    def _weight_notes(self) -> list[str]:
        missed = [name for name in self.parameters if name in self.used - self.counted.keys() and name in self.shapes]
        if not missed:
            return []
        held = sum(prod(self.shapes[name]) for name in missed)
        names = ", ".join(plain(self.parameters[name]) for name in missed[:3]) + (", ..." if len(missed) > 3 else "")
        return [f"{held:,} parameters ({names}) are in no operation that is known to hold weights; not counted"]

    # Operators --------------------------------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        call = self._call(node)
        if call is None or not call.outputs:
            return
        sources = [name for name in call.sources if name in self.made]
        if not sources or call.name in CONSTANTS:  # made of weights or of nothing
            made_of = next((self.weights[name] for name in call.sources if name in self.weights), "")
            self.weights |= dict.fromkeys(call.outputs, made_of)
            return
        if call.outputs[0] in self.whole:
            for name in call.outputs:
                self.alias(name, sources[0])
            return
        if any(name not in self.shapes for name in (*sources, call.outputs[0])):
            self.unsized[plain(call.name)] += 1
            for name in call.outputs:
                self.alias(name, sources[0])
                self.shapes.setdefault(name, self.shapes.get(sources[0], (1, 1)))
            return
        self._operator(call, [name for name in sources if name not in self.whole] or sources)

    def _call(self, node: Any) -> _Call | None:
        if not isinstance(node, dict) or not isinstance(node.get("target"), str):
            raise InputError(f"{self.file}: an operator without a target; this is no program that torch.export wrote")
        values: dict[str, Any] = {}
        sources: list[str] = []
        for number, each in enumerate(_listed(node.get("inputs"))):
            if isinstance(each, dict):
                value, tensors = _argument(each.get("arg"))
                values[str(each.get("name") or number)] = value
                sources += tensors
        self.used.update(sources)
        outputs = [name for each in _listed(node.get("outputs")) for name in _argument(each)[1]]
        about = node.get("metadata")
        self.label = _module(about.get("nn_module_stack") if isinstance(about, dict) else None)
        return _Call(_plain_target(node["target"]), values, tuple(sources), tuple(outputs))

    def _operator(self, call: _Call, sources: list[str]) -> None:
        kind, output, source = call.name, call.outputs[0], sources[0]
        if kind in VIEWS or kind == "getitem":
            self._look(call, source)
        elif kind in PRODUCTS:
            self._multiply(call)
        elif kind in CONVS:
            self._convolve(call, source)
        elif kind in NORMS:
            self.norm(NORMS[kind], output, source, call.tensor("weight"), call.tensor("bias"))
        elif kind in ATTENTION:
            self._attend(call)
        elif kind in BINARY and len(sources) > 1:
            self.pointwise(BINARY[kind], output, sources[:2], kind)
        elif kind in BINARY:
            other = next((name for name in call.sources if name in self.weights), None)
            self.scaled(output, source, other, kind == "add")
        elif kind in UNARY and self.shapes[source] == self.shapes[output]:
            self.pointwise(UNARY[kind], output, [source], kind)
        elif kind in SOFTMAX and call.number("dim", -1) in (-1, len(self.shapes[output]) - 1):
            self.pointwise("softmax", output, [source], kind)
        elif kind in OTHERS:
            OTHERS[kind](self, call, source)
        else:
            self.move(kind, call.outputs, sources, known=kind in KNOWN_MOVES or kind in SOFTMAX or kind in UNARY)

    def _look(self, call: _Call, source: str) -> None:
        """Another look at the same numbers; a copy where they do not lie in order."""
        if call.name in COPIES and source not in self.in_order:
            self.move(call.name, call.outputs[:1], [source], known=True)
            return
        for output in call.outputs:
            if output in self.shapes:
                self.view(output, source)
            else:
                self.alias(output, source)

    def _multiply(self, call: _Call) -> None:
        first, second, added = (call.tensor(name) for name in PRODUCTS[call.name])
        a = self.shapes.get(first or "", ())
        if first is None or second is None or not a or not self.shapes.get(second):
            self.move(call.name, call.outputs, [name for name in call.sources if name in self.made])
            return
        self.product(call.name, call.outputs[0], first, second, a[-1], added)

    def _convolve(self, call: _Call, source: str) -> None:
        weight = call.tensor("weight") or ""
        axes = max(0, len(self.shapes.get(weight, ())) - 2)
        automatic = isinstance(call.values.get("padding"), _Text)
        self.conv(
            call.outputs[0], source, weight, bias=call.tensor("bias"), stride=call.sides("stride", axes, 1),
            padding=None if automatic else call.sides("padding", axes, 0), dilation=call.sides("dilation", axes, 1),
            groups=max(1, call.number("groups", 1)),
            transposed="transpose" in call.name or call.values.get("transposed") is True,
        )  # fmt: skip

    def _attend(self, call: _Call) -> None:
        """In one operation, or as two products and what is between them."""
        q, k, v = (call.tensor(name) or "" for name in ("query", "key", "value"))
        output, causal = call.outputs[0], call.values.get("is_causal") is True
        if self.attention(output, q, k, v, causal):
            return
        a, b = self.shapes.get(q, ()), self.shapes.get(k, ())
        if len(a) < 2 or len(b) < 2 or not self.shapes.get(v):
            self.move(call.name, [output], [name for name in call.sources if name in self.made])
            return
        for name in ("scores", "weights"):
            self.shapes[f"{output} {name}"] = (*a[:-1], b[-2])
        self.product(call.name, f"{output} scores", q, k, a[-1])
        self.pointwise("softmax", f"{output} weights", [f"{output} scores"], "softmax")
        self.product(call.name, output, f"{output} weights", v, b[-2])

    def _embed(self, call: _Call, source: str) -> None:
        table = call.tensor("weight") or ""
        if self.is_weight(table) and len(self.shapes.get(table, ())) == 2:
            self.embedding(call.outputs[0], source, table)
        else:
            self.move(call.name, call.outputs, [source])

    def _pool(self, call: _Call, source: str) -> None:
        kernel = call.sides("kernel_size", 2, 1)
        stride = call.sides("stride", 2, 1) if call.values.get("stride") else kernel
        word = "maxpool" if "max" in call.name else "avgpool"
        self.pool(word, call.outputs[0], source, kernel, stride, call.sides("padding", 2, 0))

    def _average(self, call: _Call, source: str) -> None:
        """Over all of an image, where one number of each channel is left."""
        given, shape = self.shapes[source], self.shapes[call.outputs[0]]
        if len(given) == 4 and prod(shape[2:]) == 1 and shape[:2] == given[:2]:
            self.global_pool(call.outputs[0], source)
        else:
            self.move(call.name, call.outputs, [source], known=True)

    def _join(self, call: _Call, source: str) -> None:
        output = call.outputs[0]
        tokens = [name for name in call.sources if name in self.weights]
        others = [name for name in call.sources if name in self.made]
        if len(tokens) == len(others) == 1 and self.class_token(output, others[0], tokens[0]):
            return
        self.concat(output, others, call.number("dim", 0))

    def _einsum(self, call: _Call, source: str) -> None:
        """A product of two tensors: indices of both and of the result are its batch, those of neither are summed."""
        equation = str(call.values.get("equation", "")).replace(" ", "")
        found = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]*)", equation)
        if not found or len(call.sources) != 2:
            self.move(call.name, call.outputs, [name for name in call.sources if name in self.made])
            return
        sizes: dict[str, int] = {}
        for indices, name in zip(found.groups()[:2], call.sources, strict=True):
            sizes |= dict(zip(indices, self.shapes.get(name, ()), strict=False))
        a, b, out = (set(each) for each in found.groups())
        k = prod(sizes.get(each, 1) for each in (a & b) - out)
        self.shapes[f"{source} product"] = (
            *(sizes.get(each, 1) for each in found[3] if each in a and each in b),
            prod(sizes.get(each, 1) for each in (a - b) & out),
            prod(sizes.get(each, 1) for each in (b - a) & out),
        )
        first, second = call.sources
        self.product(call.name, f"{source} product", first, second, k)
        self.view(call.outputs[0], f"{source} product")


OTHERS: Mapping[str, Callable[[_Program, _Call, str], None]] = {
    "embedding": _Program._embed, "max_pool2d": _Program._pool, "max_pool2d_with_indices": _Program._pool,
    "avg_pool2d": _Program._pool, "adaptive_avg_pool2d": _Program._average, "_adaptive_avg_pool2d": _Program._average,
    "mean": _Program._average, "cat": _Program._join, "concat": _Program._join, "einsum": _Program._einsum,
}  # fmt: skip


class _Text(str):
    """A string argument, which is no name of a tensor."""


def _argument(arg: Any) -> tuple[Any, list[str]]:
    """The value of an argument, and the tensors that it names."""
    if not isinstance(arg, dict) or not arg:
        return None, []
    kind, value = next(iter(arg.items()))
    if kind in ("as_tensor", "as_optional_tensor"):
        name = _tensor_name(arg) or _tensor_name(value)
        return name, [name] if name else []
    if kind in ("as_tensors", "as_optional_tensors"):
        names = [_tensor_name({"as_tensor": each}) or _tensor_name(each) for each in _listed(value)]
        return None, [name for name in names if name]
    if kind == "as_sym_ints":
        return [each.get("as_int") for each in _listed(value) if isinstance(each, dict)], []
    if kind == "as_sym_int":
        return value.get("as_int") if isinstance(value, dict) else None, []
    if kind in ("as_int", "as_bool", "as_float", "as_ints", "as_bools", "as_floats"):
        return value, []
    return (_Text(value), []) if kind == "as_string" else (None, [])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tensor_name(arg: Any) -> str | None:
    """The name in {"as_tensor": {"name": "x"}}, or in {"name": "x"} itself."""
    about = arg.get("as_tensor", arg) if isinstance(arg, dict) else None
    name = about.get("name") if isinstance(about, dict) else None
    return name if isinstance(name, str) else None


def _hint(size: Any) -> int | None:
    """An extent as a number: its own, or that of the inputs at which the program was exported."""
    if not isinstance(size, dict):
        return None
    found = size.get("as_int")
    about = size.get("as_expr")
    if found is None and isinstance(about, dict):
        hint = about.get("hint")
        found = hint.get("as_int") if isinstance(hint, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _symbols(size: Any) -> list[str]:
    """Names of open sizes in an expression such as Mul(Integer(16), Symbol('s77', integer=True)), or s77."""
    about = size.get("as_expr") if isinstance(size, dict) else None
    text = about.get("expr_str") if isinstance(about, dict) else None
    return re.findall(r"\b[su]\d+\b", text[:2000]) if isinstance(text, str) else []


def _plain_target(target: str) -> str:
    """conv2d of torch.ops.aten.conv2d.default; operators of others keep the name of their library."""
    parts = target.removeprefix("torch.ops.").split(".")
    if parts[0] == "aten" and len(parts) > 1:
        name = parts[1]
        return name[:-1] if name.endswith("_") and not name.startswith("_") else name
    return ".".join(parts[:2]) if len(parts) > 1 else parts[0]


def _module(stack: Any) -> str:
    """The path of the innermost module, as its owner calls it: layer1.0.conv1."""
    last = stack.rpartition(";")[2] if isinstance(stack, str) else ""
    parts = last.split(",")
    path = parts[1] if len(parts) > 1 else ""
    return path.removeprefix("L['self'].").replace("_modules", "")
