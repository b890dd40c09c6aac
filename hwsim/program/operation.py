"""Operations: each declared once, as statements, a signature and a reference.

    @operation("X[m,n] gamma[n] -> Y[m,n]", '''
        scale: s[...] += X[...,c] ** 2
               s[...] = rsqrt(s[...] / |c| + epsilon)
        apply: Y[...,c] = X[...,c] * s[...] * gamma[c]
    ''', epsilon=1e-5)
    def rmsnorm(X, gamma, epsilon):
        return X * gamma / np.sqrt((X**2).mean(-1, keepdims=True) + epsilon)

The function is the reference: the answer in float64, by other means. Its name is that of the operation. The signature
names the tensors that are given and that are asked for, with the sizes that a workload file gives them when the
operation runs alone; in a chain their shapes are those of the tensors that it is applied to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property, lru_cache
from inspect import signature
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field, create_model, model_validator

from hwsim.errors import InputError, ShapeError
from hwsim.numerics.format import Array, Format, find_format
from hwsim.program.bind import Program, bind, is_recurrence, reduced_indices
from hwsim.program.contraction import ConvView, find_convolution
from hwsim.program.emit import Emitter
from hwsim.program.evaluate import find_product
from hwsim.program.expression import Apply, Element, Expr
from hwsim.program.kernel import Formula, Kernel, Rounding, Setting, storing_error, sum_pieces
from hwsim.program.loop_kernel import LoopKernel, Names, OperatorKernel, OperatorRun, Port, need_floats
from hwsim.program.loops import LoopPlan
from hwsim.program.statement import Line, Statement, TileBlock, all_statements, parse_statements
from hwsim.program.tensors import Storage
from hwsim.program.tiling import AxisView, Group, GroupLine, LoopCuts, all_groups, make_groups, needs_floats
from hwsim.spec.base import Extent, ParallelSchedule, Spec
from hwsim.spec.fields import did_you_mean
from hwsim.spec.workload import WorkloadSpec, import_home, import_operations
from hwsim.trace.nest import Size

Kept = str
"""The format of a tensor: ``stored`` (that of the tensors), ``sums`` (that of sums of products), ``half`` (that of the
tensors, or fp32 where that is below 16 bits or has no infinity), ``wide`` (fp32 at least), the name of a format, or
``=to``: the format that a parameter names."""

_TENSOR = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]")


def wide_format(fmt: Format) -> Format:
    """What maxima and sums of a row are kept in: fp32 at least."""
    return find_format("fp64" if fmt.computed == np.float64 else "fp32")


@dataclass(frozen=True)
class Parameter:
    """A number or a word that an operation takes beside its tensors, as a workload file may set it."""

    default: Any
    description: str = ""
    type: Any = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    """What pydantic checks: ``{"gt": 0}``."""
    alone: bool = True
    """Whether a file of the operation alone may set it; otherwise only a step of a chain."""
    size: bool = False
    """Whether such a file has it among its sizes."""


class NoSizes(Spec):
    """Nothing to choose."""


@dataclass(frozen=True)
class Measured:
    """Statements made to measure, with what their text alone does not tell."""

    text: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Extents of indices that run over a part of a tensor."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of tensors between the statements that are larger than what is written to them."""
    over: Mapping[str, str] = field(default_factory=dict)
    """Tensors between the statements, by the name of the memory that they take: several may take the same. They are
    placed in this order."""
    formats: Mapping[str, Kept] = field(default_factory=dict)


class OwnOperation:
    """The operation of a workload file that says itself what is computed."""

    def of(self, workload: Any) -> Operator:
        """The operation as a workload file asks for it."""
        raise NotImplementedError

    def kernel(self, workload: Any, setting: Setting, given: Mapping[str, Array] | None) -> Kernel:
        """The kernel of a workload that is this operation alone."""
        run = OperatorRun(workload.name, workload.precision, workload.schedule, given or {})
        return self.of(workload).make_kernel(run, setting)


@dataclass(frozen=True, eq=False)
class Operation(OwnOperation):
    """What is computed, said once. Everything else is derived for the shapes at hand."""

    name: str
    statements: str | Callable[..., str | Measured]
    """What is computed; where the text itself depends on shapes, parameters or schedule, a function of these."""
    inputs: Mapping[str, tuple[str, ...]]
    """Tensors that are given, with the sizes of their axes when the operation runs alone: ``m``, or ``m|n`` for m,
    else n."""
    outputs: Mapping[str, tuple[str, ...]]
    """Tensors that are asked for; the main one last."""
    reference: Callable[..., Any]
    """The outputs in float64 from the inputs in float64, by other means than the statements."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    sizes: type[Spec] = NoSizes
    schedule: type[ParallelSchedule] = ParallelSchedule
    scheduled: tuple[str, ...] = ()
    """What a step of a chain may say of its schedule, beside what the chain says of all."""
    layout: Callable[[Operator, Any, int], LoopCuts] | None = None
    """How its loops run, from its schedule and the lanes of a vector; in the order of the statements if not given."""
    extents: Mapping[str, int] = field(default_factory=dict)
    """How far indices run that the shapes do not tell: those of a window."""
    formats: Mapping[str, Kept] = field(default_factory=dict)
    positive: frozenset[str] = frozenset()
    over: Mapping[str, str] = field(default_factory=dict)
    """Outputs that take the memory of an input when the operation runs alone; scratch space that takes the memory of
    another where both have one format."""
    before_results: tuple[str, ...] = ()
    """Tensors between the statements that lie before the results in memory, and not after them."""
    thin: tuple[str, ...] = ()
    """Indices that make no loop where they run over one thing only."""
    make: Callable[[Operation, Mapping[str, Sequence[int]], Mapping[str, Any], Any], Operator] | None = None
    """Applies it to shapes by name, with parameters and a schedule, where tensors are seen with other axes."""
    fits: Callable[[Operator, Format], None] | None = None
    """Raises CapacityError where tiles exceed what the schedule gives them."""
    follow: Callable[[Operator, Mapping[str, Array]], Mapping[str, Array]] | None = None
    """Inputs that an earlier operation has made from the others: their values, where a user gives none."""
    padded_rows: frozenset[str] = frozenset()
    """Tensors whose rows begin ``schedule.ld`` elements apart, where that is given."""
    formulas: Callable[[Operator, Setting, Format], Sequence[Formula]] | None = None
    absorb: Callable[[Sequence[Operator]], Operator | None] | None = None
    """A way of its own to run with what follows it, where it has one: a convolution with its max-pool."""
    check: Callable[[Any], str] | None = None
    """What is wrong with a workload file, beyond single fields; nothing if all fits."""
    reshape: Callable[[Any, dict[str, tuple[int, ...]]], dict[str, tuple[int, ...]]] | None = None
    """Changes the shapes of the inputs, where a workload file says more of them than its sizes."""
    floats: bool | str | None = None
    """Whether whole numbers make no sense, or what of it needs others; if not said, the statements tell."""
    tolerance: Callable[[Operator, Rounding], float] | None = None
    """How far off rounding may bring it, where that is not what its statements tell one by one."""
    widens: bool = False
    """Whether the reference takes inputs as they are stored, and turns them into float64 piece by piece."""

    @property
    def summary(self) -> str:
        return (self.reference.__doc__ or self.name).strip()

    def measured(self, shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: Any) -> Measured:
        """The statements for some shapes."""
        made = self.statements if isinstance(self.statements, str) else self.statements(shapes, parameters, schedule)
        return Measured(made) if isinstance(made, str) else made

    def shapes(self, sizes: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs for the sizes of a workload file."""
        return {name: tuple(_extent(sizes, axis) for axis in axes) for name, axes in self.inputs.items()}

    def apply(
        self,
        shapes: Sequence[Sequence[int]],
        parameters: Mapping[str, Any] | None = None,
        schedule: ParallelSchedule | None = None,
    ) -> Operator:
        """The operation on tensors of some shapes, in the order of its inputs; those that it can do without are all
        given, or none of them."""
        known = signature(self.reference).parameters
        needed = [name for name in self.inputs if name not in known or known[name].default is not None]
        names = needed if len(shapes) == len(needed) else list(self.inputs)
        if len(shapes) != len(names):
            raise InputError(f"{self.name} has {len(names)} inputs ({', '.join(names)}), found {len(shapes)}")
        named = dict(zip(names, shapes, strict=True))
        if self.make is not None:
            defaults = {name: each.default for name, each in self.parameters.items()}
            return self.make(self, named, {**defaults, **(parameters or {})}, schedule)
        return Operator(self, named, parameters, schedule)

    def of(self, workload: Any) -> Operator:
        places = {name: workload.sizes if name in self._sized else workload for name in self.parameters}
        chosen = {name: getattr(place, name) for name, place in places.items() if self.parameters[name].alone}
        shapes = self.shapes(workload.sizes)
        if self.reshape is not None:
            shapes = self.reshape(workload, shapes)
        if self.make is not None:
            return self.make(self, shapes, chosen, workload.schedule)
        return Operator(self, shapes, chosen, workload.schedule)

    @cached_property
    def _sized(self) -> set[str]:
        """Parameters that a file has among its sizes."""
        return set(self.parameters) & set(self.sizes.model_fields)

    @cached_property
    def workload(self) -> type[WorkloadSpec]:
        """What a workload file of this operation may say."""
        fields: dict[str, Any] = {
            name: (p.type or type(p.default), Field(p.default, description=p.description, **p.limits))
            for name, p in self.parameters.items()
            if name not in self._sized and p.alone
        }
        described = self.summary.split("\n\n")[0]
        made = create_model(
            f"{self.name.title().replace('_', '')}Workload",
            __base__=WorkloadSpec,
            __doc__=self.summary,
            __validators__={} if self.check is None else {"_fields_fit": _validator(self.check)},
            **{"op": (Literal[self.name], Field(description=described)), **fields},
            sizes=(self.sizes, Field(self.sizes(), description="Extents.")),
            schedule=(self.schedule, Field(self.schedule(), description="How the loops run.")),
        )
        made.operation = self
        return made


OPERATIONS: dict[str, Operation] = {}
"""Every operation that was imported, by name."""


def find_operation(name: str) -> Operation:
    """An operation by its name; the module that declares it is imported for it."""
    if name not in OPERATIONS:
        import_home(name)
    if name not in OPERATIONS:
        import_operations()
        near = did_you_mean(name, OPERATIONS)
        raise InputError(f"'{name}' is no operation{near}; there are {', '.join(sorted(OPERATIONS))}")
    return OPERATIONS[name]


def is_own(made: object) -> bool:
    """Whether an operation is the user's, and not one that comes with hwsim."""
    return isinstance(made, Operation) and not made.reference.__module__.startswith("hwsim.")


def operation(
    tensors: str, statements: str | Callable[..., str | Measured], **options: Any
) -> Callable[[Callable[..., Any]], Operation]:
    """Declares an operation whose reference is the decorated function.

    Keywords are the fields of `Operation`; any other is one of its parameters: a `Parameter`, or just its default.
    Where `sizes` is no class but a text about them, a keyword with the name of a size of the signature is that size:
    its default, or its default and what it means.
    """
    given, arrow, made = tensors.partition("->")
    if not arrow:
        raise InputError(f"signature '{tensors}': write inputs -> outputs, such as X[m,n] -> Y[m,n]")
    fields = {each.name for each in dataclass_fields(Operation)}
    known = {name: value for name, value in options.items() if name in fields}
    own = {name: _parameter(value) for name, value in options.items() if name not in fields}
    extents = set() if isinstance(known.get("sizes"), type) else sizes_named(tensors) & own.keys()
    sizes = {name: each for name, each in own.items() if name in extents or each.size}

    def declare(reference: Callable[..., Any]) -> Operation:
        name = reference.__name__.rstrip("_")
        if sizes:
            known["sizes"] = _sizes_model(name, known.get("sizes"), sizes)
        parameters = {name: each for name, each in own.items() if name not in extents}
        found = Operation(name, statements, _tensors(given), _tensors(made), reference, parameters, **known)
        if name in OPERATIONS and OPERATIONS[name].statements != statements:
            raise InputError(f"there are two operations {name}")
        OPERATIONS[name] = found
        WorkloadSpec.makers[name] = lambda: found.workload
        if is_own(found):  # a mistake shows when it is declared
            if isinstance(statements, str):
                parse_statements(statements)
            found.workload  # noqa: B018 - makes the class of its files
        return found

    return declare


def sizes_named(tensors: str) -> set[str]:
    """The sizes of a signature."""
    return {name for axes in _tensors(tensors.replace("->", " ")).values() for axis in axes for name in axis.split("|")}


def _parameter(given: Any) -> Parameter:
    """A parameter, or its default, or its default and what it means."""
    return (
        given if isinstance(given, Parameter) else Parameter(*given) if isinstance(given, tuple) else Parameter(given)
    )


def _sizes_model(name: str, summary: str | None, sizes: Mapping[str, Parameter]) -> type[Spec]:
    """What a file of an operation may say of its sizes."""
    fields: dict[str, Any] = {
        key: (
            each.type or (int if each.limits else Extent if each.default is not None else Extent | None),
            Field(each.default, description=each.description or "An extent.", **each.limits),
        )
        for key, each in sizes.items()
    }
    title = name.title().replace("_", "")
    return create_model(f"{title}Sizes", __base__=Spec, __doc__=summary or f"Extents of {name}.", **fields)


def _validator(check: Callable[[Any], str]) -> Any:
    def fields_fit(workload: Any) -> Any:
        if problem := check(workload):
            raise ValueError(problem)
        return workload

    return model_validator(mode="after")(fields_fit)


def _tensors(text: str) -> dict[str, tuple[str, ...]]:
    found = {name: tuple(s.strip() for s in axes.split(",") if s.strip()) for name, axes in _TENSOR.findall(text)}
    if not found or _TENSOR.sub("", text).strip(" ,"):
        raise InputError(f"'{text.strip()}' is no list of tensors such as X[m,n] W[n,k]")
    return found


def _positions(program: Program) -> dict[str, int]:
    """Tensors that hold positions in others, and what these have to stay below."""
    found: dict[str, int] = {}
    for statement in program.statements:
        for element in statement.elements:
            for extent, position in zip(program.shapes[element.tensor], element.positions, strict=True):
                if position.lookup is not None:
                    free = extent - position.last(program.extents)
                    found[position.lookup.tensor] = min(free, found.get(position.lookup.tensor, free))
    return found


def _extent(sizes: Any, axis: str) -> int:
    """An extent of a signature: a number, the name of a size, or the first of several that is given."""
    for name in axis.split("|"):
        found = int(name) if name.isdigit() else getattr(sizes, name)
        if found is not None:
            return int(found)
    raise InputError(f"sizes: {axis} is not given")


class Operator:
    """An operation with shapes: ports, loops, reference and tolerance, all from its statements.

    It runs alone or as a part of a chain, and knows no machine; `kernel.setting` has lanes and cores.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    """What it makes; the main result last."""
    registers_needed: int = 1
    reads: frozenset[str]
    """Which of `accumulate` and `chunk` of a workload mean something to it: see `Kernel.reads`."""
    convolution: ConvView | None
    """Its product as a convolution of images, where that is one."""
    widens: bool = False
    """Whether its reference turns inputs into float64 by itself."""
    alone: bool = True
    """Whether the kernel has no tensors but its own. In a chain there are others, of any name."""
    text = Measured("")
    element_bytes: Mapping[str, Size] = {}
    """Of each tensor, once it has a place in memory."""

    def __init__(
        self,
        operation: Operation,
        shapes: Mapping[str, Sequence[int]],
        parameters: Mapping[str, Any] | None = None,
        schedule: ParallelSchedule | None = None,
        sizes: Mapping[str, int] | None = None,
        views: Mapping[str, AxisView] | None = None,
    ) -> None:
        """`sizes` are the extents of indices that no shape tells; `views` are tensors that statements and reference see
        with other axes than they have in memory."""
        self.operation = operation
        self.name, self.widens = operation.name, operation.widens
        self.parameters = {**{name: p.default for name, p in operation.parameters.items()}, **(parameters or {})}
        self.schedule = schedule or operation.schedule()
        numbers = {name: value for name, value in self.parameters.items() if isinstance(value, int | float)}
        self.text = operation.measured(shapes, self.parameters, self.schedule)
        lines = parse_statements(self.text.text)
        numbers |= {name: getattr(self.schedule, name) for name in _tile_names(lines) if name not in numbers}
        inputs, outputs = _given(lines, tuple(operation.inputs)), tuple(operation.outputs)
        self.views = {name: view for name, view in (views or {}).items() if name in (*inputs, *outputs)}
        seen = {name: self.views[name].shape if name in self.views else shapes[name] for name in inputs}
        self.program = bind(
            lines,
            shapes={**seen, **self.text.shapes},
            sizes={**operation.extents, **self.text.sizes, **(sizes or {})},
            parameters=numbers,
            inputs=inputs,
            outputs=outputs,
            thin=operation.thin,
        )
        self._layouts: dict[int, LoopCuts] = {}
        layout = self.layout(1)
        self.groups = all_groups(make_groups(self.program, fuse=layout.fuse, completes=layout.completes(self.program)))
        below = _positions(self.program)
        self.inputs = tuple(self._port(name, below) for name in inputs)
        self.outputs = tuple(self._port(name, below) for name in outputs)
        self.convolution = find_convolution(self.program)
        sums = any(each.sign == "+=" and reduced_indices(each) for each in self.program.statements)
        self.reads = frozenset({"accumulate", "chunk"}) if sums else frozenset()

    def layout(self, lanes: int) -> LoopCuts:
        """How the loops run with so many elements in a vector."""
        if lanes not in self._layouts:
            self._layouts[lanes] = self._choose_layout(lanes)
        return self._layouts[lanes]

    def _choose_layout(self, lanes: int) -> LoopCuts:
        if self.operation.layout is not None:
            return self.operation.layout(self, self.schedule, lanes)
        return LoopCuts(vector=getattr(self.schedule, "vector", True), fuse=getattr(self.schedule, "fused", True))

    def _port(self, name: str, below: Mapping[str, int]) -> Port:
        op, view = self.operation, self.views.get(name)
        shape = self.program.shapes[name] if view is None else view.port
        kept = self.formats.get(name, "stored")
        return Port(
            name,
            shape,
            halo=self.program.halos.get(name, ()),
            wide=kept == "sums",
            fmt="" if kept in ("stored", "sums", "half") else self._named(kept),
            positive=name in op.positive,
            below=below.get(name, 0),
            over=op.over.get(name, ""),
        )

    def scratch(self, name: str, names: Names) -> str:
        """The name of a scratch tensor of this operator: its own, told apart from others by the output's.

        No file can name a tensor with a dot, so nothing in a chain is called as its scratch space is.
        """
        output = self.outputs[-1].name
        return name if self.alone and names[output] == output else f"{names[output]}.{name}"

    def emit(self, kernel: LoopKernel, names: Names) -> None:
        """Add scratch space and loops to a kernel that already holds the tensors of all ports."""
        floats = self.operation.floats
        if needs_floats(self.program.statements) if floats is None else floats:
            need_floats(floats if isinstance(floats, str) else self.name, kernel.fmt)
        program, layout = self.written(kernel.fmt, kernel.setting.lanes)
        if self.operation.fits is not None:
            self.operation.fits(self, kernel.fmt)
        between, over = set(program.between), self.text.over
        own = {
            name: names.get(over.get(name, "")) or self.scratch(over.get(name, name), names)
            for name in dict.fromkeys((*over, *program.between))
            if name in between
        }
        formats = {name: self._format(kept, kernel) for name, kept in self.formats.items()}
        stages = {
            name: (self.scratch(stage, names) if stage else "", share) for name, (stage, share) in layout.stages.items()
        }
        layout = replace(layout, stages=stages) if stages else layout
        Emitter(kernel, program, {**names, **own}, layout, formats, self.views, self.operation.over).emit()
        self.element_bytes = {port: kernel.tensor(name).element_bytes for port, name in names.items()}

    @property
    def before_results(self) -> Mapping[str, tuple[int, ...]]:
        """Scratch tensors that lie before the results when it runs alone; others lie behind them."""
        named = self.operation.before_results
        return {name: self.program.shapes[name] for name in named if name in self.program.between}

    @cached_property
    def formats(self) -> Mapping[str, Kept]:
        return {**self.operation.formats, **self.text.formats}

    @property
    def factors(self) -> Mapping[str, int]:
        """Inputs that are factors of products of matrices, and the axis that these sum along."""
        return self._multiplied[0]

    @property
    def weights(self) -> Mapping[str, int]:
        """Inputs that are right factors of products, which a weight-only format stores more narrowly; and that axis."""
        return self._multiplied[1]

    @cached_property
    def _multiplied(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return _factors(self.groups, [port.name for port in self.inputs if port.name not in self.views])

    def storage(self, lanes: int) -> Mapping[str, Storage]:
        """How its tensors lie in memory when it runs alone, where that is not row by row."""
        ld = getattr(self.schedule, "ld", None)
        return {**{name: Storage(ld=ld) for name in self.operation.padded_rows}, **self.layout(lanes).storage}

    def written(self, fmt: Format, lanes: int) -> tuple[Program, LoopCuts]:
        """The statements as they run in a number format, and how their loops are cut; an operation may have several
        ways to run what it says."""
        return self.program, self.layout(lanes)

    def make_kernel(self, run: OperatorRun, setting: Setting) -> OperatorKernel:
        """The kernel of the operation alone."""
        return OperatorKernel(self, run, setting)

    def _format(self, kept: Kept, kernel: LoopKernel) -> Format:
        if kept == "wide" or (kept == "half" and (kernel.fmt.bits < 16 or not kernel.fmt.has_infinity)):
            return wide_format(kernel.fmt)
        if kept == "sums":
            return kernel.find_sum_format()
        return kernel.fmt if kept in ("stored", "half") else find_format(self._named(kept))

    def _named(self, kept: Kept) -> str:
        return str(self.parameters[kept[1:]]) if kept.startswith("=") else kept

    def reference(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Each output in float64, from all inputs in float64 (or, if it `widens`, as stored), both by port."""
        tensors = {
            name: self.views[name].values(values) if name in self.views else values for name, values in tensors.items()
        }
        known = {**tensors, **self.parameters, "schedule": self.schedule}
        wanted = signature(self.operation.reference).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in wanted.values())
        arguments = {**tensors, **self.parameters} if every else {name: known[name] for name in wanted if name in known}
        found = self.operation.reference(**arguments)
        if not isinstance(found, Mapping):
            found = (
                {self.outputs[-1].name: found}
                if len(self.outputs) == 1
                else dict(zip(self.operation.outputs, found, strict=True))
            )
        for name, values in found.items():
            if np.shape(values) != self.program.shapes[name]:
                raise ShapeError(
                    f"the reference of {self.name} gives {name} of shape {np.shape(values)}; "
                    f"it should be {self.program.shapes[name]}"
                )
        answers = {name: np.asarray(values, np.float64) for name, values in found.items()}
        return {
            name: self.views[name].stored(values) if name in self.views else values for name, values in answers.items()
        }

    def follow(self, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        """Inputs whose values follow from those of the others, where nobody gives them."""
        return {} if self.operation.follow is None else self.operation.follow(self, tensors)

    def tolerance(self, rounding: Rounding) -> float:
        """Where it rounds, and how long it sums: each stored tensor, each sum, and the longest chain of operations."""
        if self.operation.tolerance is not None:
            return self.operation.tolerance(self, rounding)
        program, layout = self.written(rounding.fmt, 1)
        lines = make_groups(program, fuse=layout.fuse, completes=layout.completes(program))
        extents, total, groups = program.extents, 0.0, all_groups(lines)
        stored = [name for group in groups for name in {group.result.tensor, *(e.tensor for e in group.stores)}]
        for name in stored:
            total += self._storing(self.formats.get(name, "stored"), rounding)
        for group in groups:
            for each in group.body:
                if (each.sign == "+=" or is_recurrence(each)) and (reduced := reduced_indices(each)):
                    total += rounding.sum(prod(extents[index] for index in reduced))
            if group.accumulates:
                loops = layout.extents(group, program)
                plan = layout.plan(group, loops, ()) or LoopPlan(tuple(loops))
                pieces = sum_pieces(plan, extents, group.reduced) * _tiles_of_sum(program, lines, group)
                total += rounding.kept_sum(pieces) - rounding.kept_sum() if pieces > 1 else 0.0
        return total + rounding.operations(max(map(_operations, program.statements)))

    def _storing(self, kept: Kept, rounding: Rounding) -> float:
        """What it costs to store a tensor; in a narrower format, a number between two others may go to either."""
        if kept in ("stored", "half"):
            return rounding.stored
        if kept == "sums":
            return rounding.kept
        fmt = wide_format(rounding.fmt) if kept == "wide" else find_format(self._named(kept))
        if fmt.is_integer:
            return 1 / float(fmt.largest)
        return storing_error(fmt) * (2 if storing_error(fmt) > rounding.stored else 1)

    def formulas(self, setting: Setting, fmt: Format) -> tuple[Formula, ...]:
        return tuple(self.operation.formulas(self, setting, fmt)) if self.operation.formulas is not None else ()


def _factors(groups: Sequence[Group], inputs: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Inputs that products of matrices read, with the axis that is summed over; and those of them that are weights."""
    axes: dict[str, set[int | None]] = {}
    left: set[str] = set()
    weights: dict[str, int] = {}
    for group in groups:
        for statement in group.body:
            product = find_product(statement, group.indices)
            for element in () if product is None else (product.left, product.right):
                assert product is not None
                inner = [
                    axis - len(element.positions)
                    for axis, position in enumerate(element.positions)
                    if position.is_plain and position.factors[0][0] in product.inner
                ]
                plain = len(product.inner) == 1 and all(position.is_plain for position in element.positions)
                axes.setdefault(element.tensor, set()).add(inner[0] if plain else None)
                if element is product.left:
                    left.add(element.tensor)
                elif inner:
                    weights.setdefault(element.tensor, inner[0])
    factors = {name: next(iter(found)) for name, found in axes.items() if name in inputs and len(found) == 1}
    return (
        {name: axis for name, axis in factors.items() if axis is not None},
        {name: axis for name, axis in weights.items() if name in inputs and name not in left},
    )


def _operations(statement: Statement) -> int:
    """Operations one after the other of one value; a product that is added to a sum counts there."""
    value = statement.value
    if statement.sign == "+=" and isinstance(value, Apply) and value.function == "*":
        return max(map(_depth, value.arguments))
    return _depth(value)


def _tiles_of_sum(program: Program, lines: Sequence[GroupLine], group: Group) -> int:
    """How often the tiles around a loop come back to a sum that is kept in memory."""
    for line in lines:
        if not isinstance(line, Group) and any(each is group for each in all_groups(line[1])):
            block, body = line
            outside = block.index not in group.target.indices and group.target.tensor in program.outputs
            times = -(-program.extents[block.index] // program.size(block)) if outside else 1
            return times * _tiles_of_sum(program, body, group)
    return 1


def _tile_names(lines: Sequence[Line]) -> set[str]:
    """Sizes of tiles that a schedule gives by name."""
    blocks = [line for line in lines if isinstance(line, TileBlock)]
    found = {block.size for block in blocks if not block.size.isdigit()}
    return found.union(*(_tile_names(block.body) for block in blocks))


@lru_cache(maxsize=1024)
def _given(lines: tuple[Line, ...], named: tuple[str, ...]) -> tuple[str, ...]:
    """Of the tensors that may be given, those that the statements read before they make them."""
    read: set[str] = set()
    made: set[str] = set()
    for statement in all_statements(lines):
        read |= {each.tensor for each in statement.elements if each is not statement.target} - made
        made.add(statement.name)
    return tuple(name for name in named if name in read)


def _depth(expr: Expr) -> int:
    """Operations one after the other."""
    if isinstance(expr, Element) or not expr.parts:
        return 0
    return max(map(_depth, expr.parts)) + (1 if isinstance(expr, Apply) else 0)
