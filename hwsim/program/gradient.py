"""The graph of an expression, and `gradient(out)`: another graph, which computes the derivatives.

    graph = build_graph("(exp(v1) + 1) * exp(v1)")      # exp(v1) is one node that two others read
    adjoints = graph.gradient()

Reverse mode, as courses write it: go through the nodes from the last to the first; the adjoint of a node is the sum of
what each of its readers sends back, and a reader sends its own adjoint times its derivative by the node. The result is
symbolic: it is built once, and computed for any inputs.

Derivatives: the backward pass of a program, as a program.

Reverse mode, by the rules of calculus on the statements themselves: for ``T += f(A, B)`` follow ``dA += dT * ∂f/∂A``
and ``dB += dT * ∂f/∂B``, each a statement over the same loops. The adjoint of a tensor is the sum over all that read
it. A matrix product gives two products, a convolution its transposed one, a softmax with cross-entropy y - t.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hwsim.errors import InputError
from hwsim.program.bind import Program, reduced_indices, statement_indices
from hwsim.program.expression import (
    FUNCTIONS,
    ONE,
    ZERO,
    Affine,
    Apply,
    Element,
    Expr,
    IndexValue,
    Local,
    Number,
    Symbol,
    apply,
    elements,
    is_cast,
    mapped,
    show,
    walk,
)
from hwsim.program.statement import Sign, Statement, TileBlock, parse_expression

_STEP = 1e-6
_BAR = "d"
"""Before the name of an adjoint: dv2 is the derivative of the result by v2."""


@dataclass(frozen=True)
class GradientNode:
    """One value of a graph: an input, a constant, or a function of other nodes."""

    name: str
    value: Expr
    """In terms of the names of other nodes."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Nodes that it reads, each once."""
        return tuple(dict.fromkeys(part.name for part in walk(self.value) if isinstance(part, Symbol)))


@dataclass(frozen=True)
class Adjoint:
    """The derivative of the result by a node, as the sum of what its readers send back."""

    node: str
    sent: Mapping[str, Expr]
    """By reader; for the result itself, one."""

    @property
    def name(self) -> str:
        return f"{_BAR}{self.node}"

    @property
    def value(self) -> Expr:
        total: Expr = ZERO
        for part in self.sent.values():
            total = apply("+", total, part)
        return total


@dataclass(frozen=True)
class ExpressionGraph:
    """Nodes in an order in which they can be computed; the last one is the result."""

    inputs: tuple[str, ...]
    nodes: tuple[GradientNode, ...]
    text: str = field(compare=False, default="")

    @property
    def result(self) -> str:
        return self.nodes[-1].name if self.nodes else self.inputs[-1]

    def values(self, given: Mapping[str, float]) -> dict[str, float]:
        """The value of every node."""
        missing = [name for name in self.inputs if name not in given]
        strange = [name for name in given if name not in self.inputs]
        if missing or strange:
            raise InputError(
                f"give a value for each of {', '.join(self.inputs)}, such as {self.inputs[0]}=2"
                if missing
                else f"'{strange[0]}' is not in {self.text}; it has {', '.join(self.inputs)}"
            )
        found = {name: float(given[name]) for name in self.inputs}
        for node in self.nodes:
            found[node.name] = evaluate(node.value, found)
        return found

    def gradient(self) -> tuple[Adjoint, ...]:
        """The adjoint of each node, from the result back to the inputs."""
        sent: dict[str, dict[str, Expr]] = {name: {} for name in (*self.inputs, *(node.name for node in self.nodes))}
        sent[self.result]["result"] = ONE
        found: list[Adjoint] = []
        for node in reversed(self.nodes):
            adjoint = Adjoint(node.name, sent[node.name])
            found.append(adjoint)
            if adjoint.value == ZERO:
                continue
            for name, slope in self._slopes(node).items():
                sent[name][node.name] = _times(Symbol(adjoint.name), slope)
        return (*found, *(Adjoint(name, sent[name]) for name in self.inputs))

    def derivatives(self, given: Mapping[str, float]) -> dict[str, float]:
        """The derivative of the result by each node, at a point."""
        known = self.values(given)
        found: dict[str, float] = {}
        for adjoint in self.gradient():
            found[adjoint.node] = known[adjoint.name] = evaluate(adjoint.value, known)
        return found

    def differences(self, given: Mapping[str, float]) -> dict[str, float]:
        """Central differences by each input: two evaluations each, and not exact."""
        found = {}
        for name in self.inputs:
            ends = [self.values({**given, name: given[name] + step})[self.result] for step in (_STEP, -_STEP)]
            found[name] = (ends[0] - ends[1]) / (2 * _STEP)
        return found

    def operations(self) -> int:
        """Functions that one evaluation computes."""
        return sum(_count(node.value) for node in self.nodes)

    def reverse_operations(self) -> int:
        """Functions that the adjoints of all nodes take, once the values are known."""
        return sum(_count(adjoint.value) for adjoint in self.gradient())

    def forward_operations(self) -> int:
        """Functions that forward mode takes for all inputs: a pass for each."""
        return sum(self._tangents(name) for name in self.inputs)

    def _tangents(self, source: str) -> int:
        """One pass of forward mode: the derivative of every node by one input."""
        moving, count = {source}, 0
        for node in self.nodes:
            total: Expr = ZERO
            for name, slope in self._slopes(node).items():
                if name in moving:
                    total = apply("+", total, _times(Symbol(f"t{name}"), slope))
            if total != ZERO:
                moving.add(node.name)
                count += _count(total)
        return count

    def _slopes(self, node: GradientNode) -> dict[str, Expr]:
        """The derivative of a node by each node that it reads; one that it reads twice has a sum."""
        found: dict[str, Expr] = {}
        if not isinstance(node.value, Apply):
            return {node.value.name: ONE} if isinstance(node.value, Symbol) else {}
        rule = FUNCTIONS[node.value.function].slopes
        if rule is None:
            raise InputError(f"{node.value.function} has no derivative")
        slopes = rule(*node.value.arguments, Symbol(node.name))
        for argument, slope in zip(node.value.arguments, slopes, strict=True):
            if isinstance(argument, Symbol) and slope != ZERO:
                found[argument.name] = apply("+", found.get(argument.name, ZERO), slope)
        return found


def build_graph(text: str) -> ExpressionGraph:
    """A node for each different part of an expression: what occurs twice is computed once."""
    asked = parse_expression(re.sub(r"\bln\s*\(", "log(", text.replace("·", "*")))
    inputs = tuple(dict.fromkeys(part.name for part in walk(asked) if isinstance(part, Symbol)))
    if not inputs:
        raise InputError(f"'{text}' has no variable to differentiate by")
    nodes: dict[Expr, GradientNode] = {}
    start = _first_number(inputs)

    def node_of(expr: Expr) -> Expr:
        if isinstance(expr, Symbol | Number):
            return expr
        if not isinstance(expr, Apply) or is_cast(expr.function):
            raise InputError(f"'{show(expr)}': an expression is made of numbers, names and functions of them")
        value = Apply(expr.function, tuple(node_of(part) for part in expr.arguments))
        if value not in nodes:
            nodes[value] = GradientNode(f"v{start + len(nodes)}", value)
        return Symbol(nodes[value].name)

    node_of(asked)
    return ExpressionGraph(inputs, tuple(nodes.values()), text)


def evaluate(expr: Expr, known: Mapping[str, float]) -> float:
    """The value of an expression."""
    if isinstance(expr, Number):
        return expr.value
    if isinstance(expr, Symbol):
        return known[expr.name]
    assert isinstance(expr, Apply)
    arguments = [np.float64(evaluate(part, known)) for part in expr.arguments]
    with np.errstate(all="ignore"):
        return float(FUNCTIONS[expr.function].compute(*arguments))


def written(expr: Expr) -> str:
    """As people write it, without the outermost brackets."""
    text = show(expr)
    inner = text[1:-1]
    balanced = text.startswith("(") and _closes_last(text)
    return inner if balanced else text


def _closes_last(text: str) -> bool:
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place == len(text) - 1
    return False


def _first_number(inputs: tuple[str, ...]) -> int:
    """Nodes go on counting where inputs named v1, v2, … end."""
    numbers = [int(match[1]) for name in inputs if (match := re.fullmatch(r"v(\d+)", name))]
    return max(numbers, default=0) + 1


def _count(expr: Expr) -> int:
    """Functions in an expression."""
    return sum(isinstance(part, Apply) for part in walk(expr))


def backward(program: Program, wrt: Sequence[str], seeds: Mapping[str, str]) -> tuple[Statement, ...]:
    """Statements that make ``dX`` for each X of `wrt`, from the adjoints of the outputs.

    `seeds` names the given adjoint of each output: ``{"Y": "dY"}``. Tensors of the forward pass are read as they are.
    """
    statements = _single_assignment(program)
    adjoints: dict[str, str] = dict(seeds)
    needed = _dependent(statements, wrt)
    found: list[Statement] = []
    made: set[str] = set()
    for statement in reversed(statements):
        target = statement.target
        assert isinstance(target, Element)
        if target.tensor not in adjoints or target.tensor not in needed:
            continue
        seed: Expr = Element(adjoints[target.tensor], target.positions)
        if statement.sign in ("max=", "min="):
            seed = apply("where", apply("==", statement.value, target), seed, ZERO)
        for element, slope in slopes(statement.value, seed, target if statement.sign == "=" else None):
            if element.tensor not in needed:
                continue
            name = adjoints.setdefault(element.tensor, f"d{element.tensor}")
            found.append(_contribution(name, element, slope, name in made))
            made.add(name)
    missing = [name for name in wrt if adjoints.get(name) not in made]
    if missing:
        raise InputError(f"nothing that is asked for depends on {', '.join(missing)}")
    return tuple(found)


def slopes(expr: Expr, seed: Expr, result: Element | None = None) -> list[tuple[Element, Expr]]:
    """What each element of an expression gets of an adjoint: ``seed * ∂expr/∂element``; `result` holds its value."""
    totals: list[tuple[Element, Expr]] = []

    def add(part: Expr, adjoint: Expr) -> None:
        if adjoint == ZERO:
            return
        if isinstance(part, Element):
            for number, (known, total) in enumerate(totals):
                if known.same(part):
                    totals[number] = (known, apply("+", total, adjoint))
                    return
            totals.append((part, adjoint))
        elif isinstance(part, Apply):
            if is_cast(part.function):
                add(part.arguments[0], adjoint)  # rounding is seen as doing nothing
                return
            rule = FUNCTIONS[part.function].slopes
            if rule is None:
                raise InputError(f"{part.function} has no derivative")
            for argument, slope in zip(
                part.arguments,
                rule(*part.arguments, result if result is not None and part is expr else part),
                strict=True,
            ):
                if slope != ZERO and elements(argument):
                    add(argument, _times(adjoint, slope))

    add(expr, seed)
    return totals


def text(statements: Sequence[Statement]) -> str:
    """As they are written."""
    return "\n".join(f"{each.target} {each.sign} {show(each.value)}" for each in statements)


def _times(adjoint: Expr, slope: Expr) -> Expr:
    if isinstance(slope, Apply) and slope.function == "where" and ONE in slope.arguments[1:]:
        condition, yes, no = slope.arguments
        return apply("where", condition, _times(adjoint, yes), _times(adjoint, no))
    if isinstance(slope, Apply) and slope.function == "/" and slope.arguments[0] == ONE:
        return apply("/", adjoint, slope.arguments[1])
    if slope == apply("neg", ONE):
        return apply("neg", adjoint)
    return apply("*", adjoint, slope)


def _contribution(name: str, element: Element, value: Expr, again: bool) -> Statement:
    """``name[…] += value``, with one index along each axis of the target."""
    positions, moves = [], dict[str, Affine]()
    taken: set[str] = set()
    for position in element.positions:
        if position.lookup is not None:
            raise InputError(f"the derivative by {element}, which is looked up, is a scatter: write it as a statement")
        if position.is_plain and position.factors[0][0] not in taken:
            taken.add(position.factors[0][0])
            positions.append(position)
            continue
        solved = next(((i, f) for i, f in position.factors if f == 1 and i not in taken and i not in moves), None)
        if solved is None:
            raise InputError(f"the derivative by {element} would be stored with a stride; only steps of 1 are known")
        index, _ = solved
        rest = tuple((i, -f) for i, f in position.factors if i != index)
        moves[index] = Affine(((index, 1), *rest), -position.constant)  # the index now runs along the axis itself
        taken.add(index)
        positions.append(Affine(((index, 1),)))
    target = Element(name, tuple(positions))
    moved = _substituted(value, moves)
    sign: Sign = "+=" if again or reduced_indices(Statement(target, "+=", moved)) else "="
    return Statement(target, sign, moved, name, f"{target} {sign} {show(moved)}")


def _substituted(expr: Expr, moves: Mapping[str, Affine]) -> Expr:
    """An expression with some indices exchanged for affine ones."""
    if not moves:
        return expr

    def move(position: Affine) -> Affine:
        factors: dict[str, int] = {}
        constant = position.constant
        for index, factor in position.factors:
            by = moves.get(index, Affine(((index, 1),)))
            constant += factor * by.constant
            for inner, step in by.factors:
                factors[inner] = factors.get(inner, 0) + factor * step
        return Affine(tuple((i, f) for i, f in factors.items() if f), constant, position.lookup)

    def change(part: Expr) -> Expr | None:
        if isinstance(part, Element):
            return replace(part, positions=tuple(map(move, part.positions)))
        return IndexValue(move(part.position)) if isinstance(part, IndexValue) else None

    return mapped(expr, change)


def _single_assignment(program: Program) -> list[Statement]:
    """Statements in which every tensor is made once: one that is made again gets a name of its own."""
    if any(isinstance(line, TileBlock) for line in program.lines):
        raise InputError("a program with blocks of tiles is not differentiated; write it without them")
    current: dict[str, str] = {}
    locals_: dict[str, Expr] = {}
    last = {each.name: number for number, each in enumerate(program.statements)}
    found: list[Statement] = []

    def change(part: Expr) -> Expr | None:
        if isinstance(part, Local):
            return locals_[part.name]
        return replace(part, tensor=current.get(part.tensor, part.tensor)) if isinstance(part, Element) else None

    for number, each in enumerate(program.statements):
        value = mapped(each.value, change)
        if isinstance(each.target, Local):
            locals_[each.target.name] = value
            continue
        name = each.name if last[each.name] == number else f"{each.name}.{number}"
        current[each.name] = name
        found.append(replace(each, target=replace(each.target, tensor=name), value=value))
    return found


def _dependent(statements: Sequence[Statement], wrt: Sequence[str]) -> set[str]:
    """Tensors whose values depend on what is asked for."""
    found = set(wrt)
    for each in statements:
        if found & {element.tensor for element in each.reads}:
            found.add(each.name)
    return found


def forward(program: Program) -> tuple[Statement, ...]:
    """The statements of a program, each tensor made once: what a backward pass may read."""
    return tuple(_single_assignment(program))


def points(program: Program, statements: Sequence[Statement]) -> int:
    """Points of all loops of some statements: what they cost, in multiply-adds where each is one."""
    total = 0
    for each in statements:
        count = 1
        for index in statement_indices(each):
            count *= program.extents[index]
        total += count
    return total
