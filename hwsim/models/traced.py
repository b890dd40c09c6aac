"""A traced program, tensor by tensor: what ONNX files and torch.export programs have in common.

A reader tells which tensors are weights and which come in, then goes through its operators in order and says of each
what it is: a convolution, a product, a norm, a pass over elements, a movement. The first axis of what comes in is the
batch; everything is counted for one sample of it.

Layers that follow each other and are alike become one block that repeats. A program may be cut where one tensor alone
goes on. Operations between two cuts belong to the numbered module that the file names for them (layers.3 of
layers.3.attn.out), and those of one module are a block. Neighbours that say the same but for their number are one
block, as often as there are such.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from hwsim.errors import InputError
from hwsim.models.layers import Data, op
from hwsim.spec.base import LARGEST_SIZE

MOST_OPERATIONS, MOST_BLOCKS = 4096, 1024
"""Of a block of a model file, and of a model file."""

Shape = tuple[int, ...]


class Traced:
    """The operations of a model file, made one after the other."""

    def __init__(self, file: str, name: str) -> None:
        self.file, self.name = file, name
        self.batch = 1
        self.input: Shape = (1, 1, 1)
        """What comes in first, as a model file says it; any further input is a view of numbers from elsewhere."""
        self.shapes: dict[str, Shape] = {}
        """Of every tensor, with the batch."""
        self.weights: dict[str, str] = {}
        """Tensors that nothing computes, each with the one of the file that it was made of."""
        self.counted: Counter[str] = Counter()
        """Weights of the file that stand in operations."""
        self.made: dict[str, str] = {}
        """The operation that makes a tensor."""
        self.tables: set[str] = set()
        """Weights of the file that are tables of embeddings."""
        self.label = ""
        """What the file calls the part of the model that the next operations belong to."""
        self.operations: list[Data] = []
        self.unknown: Counter[str] = Counter()
        self.unsized: Counter[str] = Counter()
        self._forms: dict[str, Shape] = {}
        self._views: dict[str, str] = {}
        """What a view looks at."""
        self._labels: dict[str, str] = {}
        self._count = 0

    # What comes in and what goes out ----------------------------------------------------------------------------------

    def comes_in(self, tensors: Sequence[str]) -> None:
        """Inputs of the program; the first axis of the first one is the batch."""
        if not tensors:
            raise InputError(f"{self.file}: it has no input")
        for tensor in tensors:
            if tensor not in self.shapes:
                raise InputError(f"{self.file}: input {tensor[:60]!r}: its shape is not known")
        self.batch = (self.shapes[tensors[0]] or (1,))[0]
        shape = self.sample(tensors[0])
        self.input = shape if len(shape) == 3 else (self._size(prod(shape)), 1, 1)
        for tensor in tensors:
            self._put(tensor, op("", "view", makes=self.sample(tensor)), ("input",))

    def model(self, description: str, precision: str) -> Data:
        """The model file, as plain data."""
        read = {name for each in self.operations for name in each["inputs"]}
        kept = [each for each in self.operations[:-1] if each["op"] != "view" or each["name"] in read]
        kept += self.operations[-1:]
        blocks = find_blocks(kept, self._labels, self._forms)
        largest = max(len(each["operations"]) for each in blocks)
        if largest > MOST_OPERATIONS or len(blocks) > MOST_BLOCKS:
            raise InputError(
                f"{self.file}: {len(blocks):,} blocks, of which the largest has {largest:,} operations; at most "
                f"{MOST_BLOCKS:,} blocks of {MOST_OPERATIONS:,} operations are read"
            )
        return {
            "format": 1, "name": self.name, "description": description, "op": "model", "precision": precision,
            "input": self.input, "use": {"phase": "forward", "batch": self.batch},
            "blocks": blocks,
        }  # fmt: skip

    def notes(self) -> list[str]:
        """What was not understood."""
        found = [
            f"{count} x {kind}: not known; counted as a movement of its bytes"
            for kind, count in sorted(self.unknown.items())
        ]
        return found + [f"{count} x {kind}: shapes not known; left out" for kind, count in sorted(self.unsized.items())]

    # Shapes -----------------------------------------------------------------------------------------------------------

    def sample(self, tensor: str) -> Shape:
        """The shape of one sample of the batch, in at most three axes."""
        shape = self.shapes[tensor]
        if self.batch in shape:
            axis = shape.index(self.batch)
            rest = shape[:axis] + shape[axis + 1 :]
        else:  # rows of all samples may stand in one axis
            divided = shape[:1] and shape[0] % self.batch == 0
            rest = (shape[0] // self.batch, *shape[1:]) if divided else shape
        rest = rest or (1,)
        return rest if len(rest) <= 3 else (rest[0], prod(rest[1:-1]), rest[-1])

    def is_made(self, tensor: str | None) -> bool:
        return tensor is not None and tensor in self.made

    def is_weight(self, tensor: str | None) -> bool:
        return tensor is not None and tensor in self.weights

    # Operations -------------------------------------------------------------------------------------------------------

    def _put(self, tensor: str, operation: Data, sources: Sequence[str], form: Shape | None = None) -> None:
        """An operation that makes a tensor, under a name of ours: theirs may be anything."""
        self._count += 1
        operation["name"] = f"{operation['op']}_{self._count}"
        self._labels[operation["name"]] = self.label
        operation["inputs"] = tuple(sources)
        self.operations.append(operation)
        self.made[tensor] = operation["name"]
        if operation["op"] == "view":
            self._views[operation["name"]] = sources[0]
        self._forms[operation["name"]] = operation.get("makes") or form or self.sample(tensor)

    def alias(self, tensor: str, source: str) -> None:
        """Another name for the same numbers."""
        self.made[tensor] = self.made[source]

    def _seen(self, source: str, shape: Shape) -> str:
        """The operation that makes a tensor, in another shape where it is needed."""
        maker = self.made[source]
        if self._forms[maker] == shape:
            return maker
        while self._views.get(maker, "input") != "input":  # a view of a view is one of what that one looks at
            maker = self._views[maker]
            if self._forms[maker] == shape:
                return maker
        self._put(f"{source} {shape}", op("", "view", makes=shape), (maker,))
        return self.made.pop(f"{source} {shape}")

    def view(self, tensor: str, source: str) -> None:
        """The same numbers, or some of them, in another shape: nothing moves."""
        self.made[tensor] = self.made[source]
        self.made[tensor] = self._seen(tensor, self.sample(tensor))

    def _row_form(self, tensor: str) -> Shape:
        """One sample as rows of the last axis."""
        rest, width = self.sample(tensor), (self.shapes[tensor] or (1,))[-1]
        return rest if rest == (width,) else (prod(rest) // max(1, width), width)

    def rows(self, source: str) -> str:
        """The operation that makes a tensor, as rows of its last axis."""
        return self._seen(source, self._row_form(source))

    def _put_seen(self, tensor: str, operation: Data, sources: Sequence[str], form: Shape) -> None:
        """An operation that makes a form of its own, which is then seen as the file has it."""
        self._put(tensor, operation, sources, form)
        self.made[tensor] = self._seen(tensor, self.sample(tensor))

    def _put_rows(self, tensor: str, operation: Data, sources: Sequence[str]) -> None:
        self._put_seen(tensor, operation, sources, self._row_form(tensor))

    def move(self, kind: str, outputs: Sequence[str], sources: Sequence[str], known: bool = False) -> None:
        """An operator of which only the bytes are counted; one that is more than a movement is told to the user."""
        if not known:
            self.unknown[plain(kind)] += 1
        read = sum(prod(self.sample(name)) for name in sources)
        written = sum(prod(self.sample(name)) for name in outputs if name in self.shapes)
        moved = op("", "move", read=self._size(read), write=self._size(written), makes=self.sample(outputs[0]),
                   what=plain(kind))  # fmt: skip
        self._put(outputs[0], moved, (self.made[sources[0]],))
        for name in outputs[1:]:
            if name in self.shapes:
                self.view(name, outputs[0])

    def _size(self, count: int) -> int:
        if count > LARGEST_SIZE:
            raise InputError(f"{self.file}: a tensor of {count:.3g} numbers is larger than any that is simulated")
        return max(1, count)

    def pointwise(self, word: str, output: str, sources: Sequence[str], kind: str) -> None:
        """A pass over elements: of tensors that are alike, or with one number for each channel of an image."""
        shape, own = self.sample(output), [self.sample(name) for name in sources]
        alike = all(each == shape for each in own)
        channels = len(shape) == 3 and all(len(each) == 3 and each[0] == shape[0] for each in own)
        if alike or (len(own) > 1 and channels and shape in own):
            self._put(output, op("", word), [self._seen(name, self.sample(name)) for name in sources])
        else:
            self.move(kind, [output], sources, known=True)

    def scaled(self, output: str, source: str, other: str | None, adds: bool) -> None:
        """Element by element with a number or with weights; a table that is added is one of positions."""
        table = self.weights.get(other or "")
        width = (self.shapes[output] or (1,))[-1]
        held = prod(self.shapes.get(table or "", ()))
        if adds and table is not None and self.shapes[source] == self.shapes[output] and held % width == 0 and held:
            self.counted[table] += 1
            self._put_rows(output, op("", "positions", rows=held // width), (self.rows(source),))
            return
        if table is not None and not adds and held == width:
            normed = self._take_normed()
            if normed:
                self.counted[table] += 1
                self.made[source] = normed
                self._put_rows(output, op("", "rmsnorm"), (self.rows(source),))
                return
        self._put_seen(output, op("", "scale"), (self.made[source],), self._forms[self.made[source]])

    def _take_normed(self) -> str:
        """What the last five operations divide by its root mean square: x², mean, + epsilon, 1/√, x times that.

        They are taken back: with the weights that come next they are a norm, which libraries have a kernel for.
        """
        tail = self.operations[-5:]
        if [each["op"] for each in tail] != ["scale", "move", "scale", "scale", "move"]:
            return ""
        square, mean, _, root, product = tail
        ends = product["inputs"] in (square["inputs"], (root["name"],))
        if not ends or (mean["what"], product["what"]) != ("mean", "mul"):
            return ""
        del self.operations[-5:]
        return str(square["inputs"][0])

    def norm(self, word: str, output: str, source: str, gamma: str | None, beta: str | None) -> None:
        """A norm over rows or over channels; one without weights is a movement."""
        width = prod(self.shapes.get(gamma or "", ()))
        by_channel = word in ("batch_norm", "group_norm")
        shape = self.sample(source)
        if not self.is_weight(gamma) or width != (shape[0] if by_channel and len(shape) > 1 else shape[-1]):
            self.move(word, [output], [source], known=True)
            return
        for each in (gamma, beta):
            if each is not None and each in self.weights:
                self.counted[self.weights[each]] += 1
        made = op("", word)
        if beta is None and word == "layernorm":
            made["offset"] = False
        if not by_channel:
            self._put_rows(output, made, (self.rows(source),))
            return
        image = shape if len(shape) != 2 else (*shape, 1)
        self._put_seen(output, made, (self._seen(source, image),), image)

    def embedding(self, output: str, indices: str, table: str) -> None:
        rows, width = self.shapes[table]
        self.tables.add(self.weights[table])
        self.counted[self.weights[table]] += 1
        source = self._seen(indices, (prod(self.sample(indices)), 1))
        self._put_rows(output, op("", "embedding", rows=rows, width=width), (source,))

    def pool(self, word: str, output: str, source: str, kernel: Shape, stride: Shape, padding: Shape) -> None:
        """A window over an image; where its sizes are not the usual ones, a movement."""
        given, shape = self.sample(source), self.sample(output)
        if len(given) == len(shape) == 3 and len(kernel) == 2:
            pairs = zip(given[1:], kernel, stride, padding, strict=True)
            if tuple((size + 2 * pad - side) // max(1, step) + 1 for size, side, step, pad in pairs) == shape[1:]:
                made = op("", word, kernel=pair(kernel), stride=pair(stride), padding=pair(padding))
                self._put(output, made, (self._seen(source, given),))
                return
        self.move(word, [output], [source], known=True)

    def global_pool(self, output: str, source: str) -> None:
        shape = self.sample(source)
        if len(shape) != 3:
            self.move("mean", [output], [source], known=True)
            return
        self._put_seen(output, op("", "global_avgpool"), (self._seen(source, shape),), (shape[0],))

    def class_token(self, output: str, source: str, token: str) -> bool:
        """A learned row before all others; whether it is one."""
        given, shape = self.sample(source), self.sample(output)
        origin = self.weights[token]
        if len(shape) != 2 or (given[0] + 1, given[1:]) != (shape[0], shape[1:]):
            return False
        if prod(self.shapes.get(origin, ())) != shape[1]:
            return False
        self.counted[origin] += 1
        self._put(output, op("", "class_token"), (self._seen(source, given),))
        return True

    def concat(self, output: str, sources: Sequence[str], axis: int) -> None:
        own, shape = [self.sample(name) for name in sources], self.sample(output)
        rank = len(self.shapes[output])
        beside = axis % rank == (1 if len(shape) == 3 else rank - 1) if rank else False
        if beside and rank - 1 == len(shape) and all(len(each) == len(shape) for each in own):
            self._put(output, op("", "concat"), [self._seen(name, self.sample(name)) for name in sources])
        else:
            self.move("concat", [output], sources, known=True)

    def conv(
        self, output: str, source: str, weight: str, *, bias: str | None, stride: Shape, padding: Shape | None,
        dilation: Shape = (), groups: int = 1, transposed: bool = False,
    ) -> None:  # fmt: skip
        """A convolution over a line or an image; any other as the product that it is."""
        kernel = self.shapes.get(weight, ())
        given, shape, sides = self.shapes[source], self.shapes[output], kernel[2:]
        if not sides or len(given) != len(kernel) or len(shape) != len(kernel) or not self.is_weight(weight):
            self.move("convolution without known weights", [output], [source])
            return
        for each in (weight, bias):
            if each is not None and each in self.weights:
                self.counted[self.weights[each]] += 1
        channels = kernel[1] * groups if transposed else kernel[0]
        if len(sides) > 2 or any(step != 1 for step in dilation) or (transposed and groups > 1):
            places = prod((given if transposed else shape)[2:])
            n = prod(kernel[1:]) if transposed else kernel[0] // groups
            k = given[1] // groups if transposed else prod(kernel[1:])
            made = op("", "product", m=places, n=n, k=k, batch=groups, weights=True)
            self._put_seen(output, made, (self.made[source],), (groups * places, n))
            return
        if padding is None:  # uneven or automatic: what the sizes ask for
            pairs = zip(given[2:], shape[2:], sides, stride, strict=True)
            padding = tuple(max(0, -(-((out - 1) * step + side - size) // 2)) for size, out, side, step in pairs)
        if len(sides) == 1:
            sides, stride, padding = (*sides, 1), (*stride, 1), (*padding, 0)
        made = op("", "conv", channels=channels, kernel=pair(sides))
        fields = (("stride", pair(stride), 1), ("padding", pair(padding), 0), ("groups", groups, 1),
                  ("bias", bias is not None, False), ("transposed", transposed, False))  # fmt: skip
        made |= {field: value for field, value, usual in fields if value != usual}
        image = (given[1], given[2], given[3] if len(given) > 3 else 1)
        windows = list(zip(image[1:], sides, stride, padding, strict=True))
        form = [(size + 2 * pad - side) // max(1, step) + 1 for size, side, step, pad in windows]
        if transposed:
            form = [(size - 1) * step + side - 2 * pad for size, side, step, pad in windows]
        self._put_seen(output, made, (self._seen(source, image),), (channels, *form))

    def product(self, kind: str, output: str, first: str, second: str, k: int, bias: str | None = None) -> None:
        """A product with weights where the second operand is a matrix of them; else of two that are computed."""
        shape = self.shapes[output]
        n = shape[-1] if shape else 1
        origin = self.weights.get(second, "")
        held = prod(self.shapes[origin]) if origin in self.shapes else 0
        if self.is_made(first) and held == k * n and self._row_form(first)[-1] == k:
            made = op("", "linear", out=n)
            if bias is not None and self.is_weight(bias):
                made["bias"] = True
                self.counted[self.weights[bias]] += 1
            if origin in self.tables:
                made["tied"] = True
            self.counted[origin] += 1
            self._put_rows(output, made, (self.rows(first),))
            return
        whole = max(1, prod(self.sample(output)) // max(1, n))
        m = shape[-2] if len(shape) > 2 and whole % shape[-2] == 0 else whole
        many = whole // m
        made = op("", "product", m=m, n=n, k=k, batch=many)
        if held == many * k * n:
            made["weights"] = True
            self.counted[origin] += 1
        self._put_seen(output, made, (self._maker(kind, first, second),), (many * m, n))

    def _maker(self, kind: str, first: str, second: str) -> str:
        maker = self.made.get(first) or self.made.get(second)
        if maker is None:
            raise InputError(f"{self.file}: {plain(kind)}: nothing makes {first[:60]!r}")
        return maker

    def attention(self, output: str, q: str, k: str, v: str, causal: bool) -> bool:
        """Attention over heads, [batch, heads, tokens, width]; whether it is one that a model file can say."""
        shapes = [self.shapes.get(name, ()) for name in (q, k, v)]
        if any(len(shape) != 4 for shape in shapes) or not all(self.is_made(name) for name in (q, k, v)):
            return False
        (_, heads, queries, dim), (_, kv_heads, keys, _), (_, _, _, out) = shapes
        if queries != keys or heads % kv_heads:
            return False
        made = op("", "attention", heads=heads, kv_heads=kv_heads, head_dim=dim, causal=causal)
        if out != dim:
            made["value_dim"] = out
        sources = [self._seen(q, (queries, heads * dim)), self._seen(k, (keys, kv_heads * dim)),
                   self._seen(v, (keys, kv_heads * out))]  # fmt: skip
        self._put_seen(output, made, sources, (queries, heads * out))
        return True


def plain(text: str) -> str:
    """A name from a file, without anything that could steer a terminal."""
    return "".join(letter for letter in text if letter.isascii() and (letter.isalnum() or letter in " ._"))[:60]


def pair(values: Sequence[int]) -> Any:
    return values[0] if len(set(values)) == 1 else tuple(values)


_NUMBERED = re.compile(r"^(?:[^.]*\.)*?(?:[^.]*_)?\d+(?=\.|$)")
"""The path of a module up to the first part that is a number, or ends in one: encoder.layers.layer_0."""


def find_blocks(operations: Sequence[Data], labels: Mapping[str, str], forms: Mapping[str, Any]) -> list[Data]:
    """Blocks of a model file. Labels are module paths by operation, and forms the shapes that operations make."""
    found: list[Data] = []
    came, names = "input", _Names()
    repeats = False
    for module, own in _modules(operations, labels):
        inner, made = _renamed(own, labels, module, came), forms[own[-1]["name"]]
        if repeats and found[-1]["operations"] == inner:
            found[-1]["repeat"] = found[-1].get("repeat", 1) + 1
        else:  # what it makes has to fit into its next repetition
            repeats = forms.get(came) == made
            found.append({"name": names.unused(plain_name(module) or _first(own, labels)), "operations": inner})
        came = own[-1]["name"]
    return found


def plain_name(path: str) -> str:
    """A path as a name of a model file: letters, digits and underscores, at most sixty."""
    text = re.sub(r"[^a-z0-9]+", "_", path.lower()).strip("_")[-60:].strip("_")
    return text if text[:1].isalpha() else ""


class _Names:
    """Names that were not used before."""

    def __init__(self) -> None:
        self.used: set[str] = {"input", "source"}

    def unused(self, begin: str) -> str:
        name, number = begin, 1
        while name in self.used:
            number += 1
            name = f"{begin}_{number}"
        self.used.add(name)
        return name


def _segments(operations: Sequence[Data]) -> Iterator[list[Data]]:
    """Pieces between which one tensor alone goes on: that of the operation before."""
    read_last = {name: number for number, each in enumerate(operations) for name in each["inputs"]}
    piece: list[Data] = []
    until = read_last.get("input", 0)
    for number, operation in enumerate(operations):
        if piece and until < number:
            yield piece
            piece = []
        if number:  # what the operation before the last one made has to be read before a cut
            until = max(until, read_last.get(operations[number - 1]["name"], 0))
        piece.append(operation)
    if piece:
        yield piece


def _modules(operations: Sequence[Data], labels: Mapping[str, str]) -> Iterator[tuple[str, list[Data]]]:
    """Pieces of one numbered module together."""
    current, own = "", list[Data]()
    for piece in _segments(operations):
        module = next((found[0] for each in piece if (found := _NUMBERED.match(labels.get(each["name"], "")))), "")
        if own and module != current:
            yield current, own
            own = []
        current = module
        own += piece
    if own:
        yield current, own


def _renamed(own: Sequence[Data], labels: Mapping[str, str], module: str, came: str) -> list[Data]:
    """Operations under names inside their module."""
    names, called = _Names(), {came: "input"}
    found = []
    for each in own:
        path = labels.get(each["name"], "")
        inside = path[len(module) :] if module and path.startswith(module) else path
        begin = plain_name(inside)
        called[each["name"]] = names.unused(f"{begin}_{each['op']}" if begin else each["op"])
        inputs = tuple(called[name] for name in each["inputs"])
        found.append({**each, "name": called[each["name"]], "inputs": inputs})
    return found


def _first(own: Sequence[Data], labels: Mapping[str, str]) -> str:
    """A block outside of numbered modules: after the first module in it."""
    path = next((labels[each["name"]] for each in own if labels.get(each["name"])), "")
    return plain_name(path.partition(".")[0]) or "graph"
