"""A workload file: an operation, its sizes, the schedule by which it is computed, and its precision.

Each operation is a class of its own, found by ``op`` and imported when a file asks for it. Beside what an operation's
own schedule has (`tile=32`, `v1=4`, `br`), there is one vocabulary for choices; a target says which of them it reads:

tile.LEVEL.AXIS     tile.shared.m, tile.unified_buffer.n, tile.l1.k: the level by the name that the machine gives it
order, split_k, stages, buffers, dataflow, keep

How a workload is laid out on an array with scratchpads, and how a matrix product is written for a GPU thread by thread,
stand here as well: each class of machines reads its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from hwsim.spec.base import (
    LARGEST_SIZE,
    KernelTile,
    Name,
    Precision,
    Products,
    Seed,
    Spec,
    SumFormat,
    Tile,
    sum_problem,
)
from hwsim.spec.fields import did_you_mean

NUMBERS = ("split_k", "stages", "buffers")
"""Choices that are a whole number, beside tiles."""
WORDS = ("order", "dataflow", "keep")
"""Choices that are one of some words."""
NAMES = (*WORDS, *NUMBERS)
AUTO = "auto"
"""The value of a choice that is left to the machine."""
PATTERN = rf"^(tile\.[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*|{'|'.join(NAMES)})$"

ChoiceName = Annotated[str, StringConstraints(pattern=PATTERN)]
ChoiceValue = int | str

LAYOUT = frozenset(
    [
        "layout",
        "w_layout",
        "a_layout",
        "b_layout",
        "ld",
        "packed",
        "view",
        "offset",
        "step",
        "contiguous",
        "reuses",
        "result",
    ]
)
"""Fields of schedules that say how data lies in memory or what is asked for: part of the problem on every machine."""

ALGORITHM = frozenset(
    ["variant", "algorithm", "fused", "fuse", "rewrite", "fold", "probabilities", "cutoff", "levels", "softmax"]
)
"""Fields of schedules that change the operations themselves, and so mean something wherever operations are computed."""


def is_choice(name: str) -> bool:
    """Whether a name is one of this vocabulary, whatever a machine makes of it."""
    return re.match(PATTERN, name) is not None


def is_tile(name: str) -> bool:
    """``tile.shared.m``: with a level and an axis."""
    return name.startswith("tile.") and is_choice(name)


def tile_parts(name: str) -> tuple[str, str]:
    """The level and the axis of a tile's name."""
    _, level, axis = name.split(".")
    return level, axis


def choice_problem(name: str, value: object) -> str:
    """What is wrong with a value, before a machine is known; nothing if it fits."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if name in WORDS:
        return "" if isinstance(value, str) else "must be a word"
    if not number or int(str(value)) < 1:
        return "must be a whole number of at least 1"
    return "" if int(str(value)) <= LARGEST_SIZE else f"must be at most {LARGEST_SIZE:,}"


TileExtent = Tile
TileOrder = Literal["auto", "mnk", "mkn", "nmk", "nkm", "kmn", "knm"]


class MappingSpec(Spec):
    """Tiles of a product C[m, n] += A[m, k] B[k, n], and what stays on the chip."""

    order: TileOrder = Field(
        "auto",
        description="Loops over tiles from the outermost to the innermost; auto takes the order, and the tiles, that "
        "take the least time.",
    )
    tile_m: TileExtent | None = Field(None, description="Rows of A and C in a tile; chosen if not given.")
    tile_n: TileExtent | None = Field(None, description="Columns of B and C in a tile; chosen if not given.")
    tile_k: TileExtent | None = Field(None, description="Columns of A and rows of B in a tile; chosen if not given.")
    box: dict[str, TileExtent] = Field(
        {},
        description="Iterations of single loops in a tile, such as {h: 4, w: 14} of a convolution; other loops of the "
        "same group are whole. Instead of tile_m, tile_n or tile_k.",
    )
    reuse: Literal["auto", "none"] = Field(
        "auto",
        description="What tiles of one loop share. auto: comes once where there is room; none: each tile loads all its "
        "inputs and weights anew, as a library does that calls one tile after the other.",
    )
    keep: Literal["auto", "none"] = Field(
        "auto",
        description="What one loop leaves for the next. auto: stays in a scratchpad where it fits; none: goes through "
        "main memory.",
    )
    buffers: Literal[1, 2] | None = Field(
        None,
        description="1: a tile is fetched when the one before is done with; 2: while that is worked on, in half the "
        "room. The faster one if not given.",
    )
    dataflow: Literal["ws", "os", "is"] | None = Field(
        None,
        description="Which operand stays in the cells, of those that the machine's array can be set to; its own if "
        "not given.",
    )

    @model_serializer(mode="wrap")
    def _without_open_choices(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        unsaid: dict[str, object] = {"box": {}, "reuse": "auto", "buffers": None, "dataflow": None}
        return {name: value for name, value in data.items() if name not in unsaid or value != unsaid[name]}


Extent = KernelTile
Rung = Literal[
    "library", "naive", "coalesced", "shared", "register_1d", "register_2d", "vectorised", "warp_tiled", "tensor"
]


class ThreadSchedule(Spec):
    """A hand-written kernel; what is not given is what the rung is known for."""

    kernel: Rung = Field(
        "library",
        description="library: what the vendor's library would choose. naive: a thread for each result, neighbours down "
        "a column. coalesced: neighbours along a row. shared: square tiles in shared memory. register_1d, register_2d: "
        "a column, or a square, of results for each thread. vectorised: loads of four words, one tile transposed. "
        "warp_tiled: tiles for blocks, warps and threads. tensor: the same on tensor cores, with copies under way.",
    )
    bm: Extent | None = Field(None, description="Rows of the tile of a block.")
    bn: Extent | None = Field(None, description="Columns of the tile of a block.")
    bk: Extent | None = Field(None, description="Depth of one step.")
    tm: Extent | None = Field(None, description="Rows of the results of a thread.")
    tn: Extent | None = Field(None, description="Columns of the results of a thread.")
    wm: Extent | None = Field(None, description="Rows of the tile of a warp.")
    wn: Extent | None = Field(None, description="Columns of the tile of a warp.")


_OPS = Path(__file__).resolve().parents[1] / "ops"
"""Where operations are declared."""

Distribution = Literal["uniform", "normal", "activations", "relu"]


class WorkloadSpec(Spec):
    """What is computed, how large it is, in which order, and in which precision."""

    format: Literal[1] = Field(description="Version of this file format.")
    name: Name = Field(description="What the workload is called; the file has the same name.")
    description: str = Field(description="One or two sentences for people.")
    shows: tuple[str, ...] = Field((), description="What a reader can learn from running it.")
    op: str = Field(description="The operation.", examples=["matmul"])
    precision: Precision = Field(
        "fp32",
        description="Number format of the tensors: one of these names, `e5m3` and the like, or a group that describes "
        "a format of your own. w8a16 and w4a16: fp16, with the weights of a product in int8 or int4.",
    )
    accumulate: SumFormat | None = Field(
        None, description="Number format of sums of products; if not given, one that suits the precision."
    )
    chunk: Products | None = Field(
        None, description="Products that are summed before the sum is rounded to its format; all if not given."
    )
    scale: Literal["none", "tensor", "row", "block", "auto"] | None = Field(
        None,
        description="Numbers are stored over a scale, which brings the largest to the end of the range: one scale "
        "for a tensor, for each row of the left and column of the right matrix, or for each block of those. auto: one "
        "for a tensor where the format has a short range and the operation can have scales. If not given, integers of "
        "up to 16 bits have one for a tensor, so that they stand for fractions as other formats do; none where an "
        "operation or inputs of your own are whole numbers.",
    )
    scale_block: Products = Field(32, ge=2, description="Numbers in a block with a common scale; a power of two.")
    convert: bool = Field(
        False,
        description="On a machine that does not compute in the precision: convert to a format that it has, and count "
        "the instructions for that.",
    )
    distribution: Distribution = Field(
        "uniform",
        description="Random inputs. uniform: in [-1, 1). normal: mean 0, deviation 1. activations: normal, with a few "
        "channels (positions along the last axis) 32 times larger. relu: normal, negative ones set to 0.",
    )
    inputs: dict[str, str] = Field(
        {}, description="Inputs of your own: `.npy` files by the names of the tensors.", examples=[{"A": "a.npy"}]
    )
    seed: Seed = Field(0, description="Seed of the random inputs.")
    mapping: MappingSpec = Field(MappingSpec(), description="Tiles on a machine with arrays; others do not read it.")
    threads: ThreadSchedule = Field(
        ThreadSchedule(), description="How a matrix product is written for a GPU; others do not read it."
    )

    choices: dict[ChoiceName, ChoiceValue] = Field(
        {},
        description="Choices of the schedule by the names that a machine reads: `tile.LEVEL.AXIS`, `order`, `split_k`, "
        "`stages`, `buffers`, `dataflow`, `keep`; `hwsim show WORKLOAD --on MACHINE` lists them.",
        examples=[{"tile.shared.m": 128, "split_k": 2}],
    )

    loops: ClassVar[tuple[str, ...]] = ()
    """Loops that a schedule may cut, where their names are not those of the sizes."""

    operation: ClassVar[Any] = None
    """The operation that a file of this class asks for, where it is declared by statements."""

    runner: ClassVar[str | None] = None
    """The module that runs and explains files of this class, where they are more than one kernel."""

    variants: ClassVar[dict[str, type[WorkloadSpec]]] = {}
    """The class of each operation that was asked for, by the names that its ``op`` may have."""
    makers: ClassVar[dict[str, Callable[[], type[WorkloadSpec]]]] = {}
    """How the class of an operation is made that nobody asked for yet: it takes longer than to import the operation."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass registers itself under the names that its ``op`` lists."""
        super().__pydantic_init_subclass__(**kwargs)
        for name in getattr(cls.model_fields["op"].annotation, "__args__", ()):
            WorkloadSpec.variants[name] = cls

    @field_validator("choices")
    @classmethod
    def _choices_fit(cls, choices: dict[str, int | str]) -> dict[str, int | str]:
        for name, value in choices.items():
            if problem := choice_problem(name, value):
                raise ValueError(f"{name}={value}: {problem}")
        return choices

    @model_serializer(mode="wrap")
    def _without_empty_choices(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Where nothing was chosen, nothing is written."""
        data: dict[str, Any] = handler(self)
        return {name: value for name, value in data.items() if value or name not in ("choices", "tensors")}

    @model_validator(mode="after")
    def _block_is_a_power_of_two(self) -> Self:
        if self.scale_block & (self.scale_block - 1):
            raise ValueError(f"scale_block: {self.scale_block} is not a power of two")
        return self

    @model_validator(mode="after")
    def _numbers_are_in_range(self) -> Self:
        """Sizes and schedules of every operation: what an address or a count could not hold any more."""
        for group in ("sizes", "schedule", "operations", "stages"):
            for name, number in _numbers(getattr(self, group, None), group):
                if abs(number) > LARGEST_SIZE:
                    raise ValueError(f"{name}: {number:,} is more than {LARGEST_SIZE:,}: no tensor is as long")
        return self

    @model_validator(mode="after")
    def _sums_fit_their_format(self) -> Self:
        if self.accumulate is not None and (problem := sum_problem(self.accumulate)):
            raise ValueError(f"accumulate: {problem}")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _choose_variant(cls, data: Any, handler: ModelWrapValidatorHandler[WorkloadSpec]) -> WorkloadSpec:
        """``WorkloadSpec.model_validate`` gives the class that ``op`` names."""
        if cls is not WorkloadSpec or not isinstance(data, dict):
            return handler(data)
        op = data.get("op")
        if not isinstance(op, str):
            return handler(data)
        model = workload_model(op)
        if model is WorkloadSpec:
            known = known_operations()
            raise ValueError(f"op: '{op}' is not one of {', '.join(known)}{did_you_mean(op, known)}")
        return model.model_validate(data)


def _numbers(value: object, path: str) -> Iterator[tuple[str, int]]:
    """The whole numbers of a group, with their paths."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield path, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _numbers(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _numbers(each, f"{path}.{name}")
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _numbers(each, f"{path}[{number}]")


def workload_model(op: str | None) -> type[WorkloadSpec]:
    """The class behind an ``op``; the common one if there is none of that name."""
    known = _variant(op or "")
    if op and (known is None or known.operation is None):  # a class may be known before what it does is
        import_home(op)
        known = _variant(op)
    return known or WorkloadSpec


def _variant(op: str) -> type[WorkloadSpec] | None:
    """The class of an operation that was imported."""
    if op not in WorkloadSpec.variants and op in WorkloadSpec.makers:
        WorkloadSpec.variants[op] = WorkloadSpec.makers[op]()
    return WorkloadSpec.variants.get(op)


def import_home(op: str) -> None:
    """Import the module of `hwsim.ops` that declares an operation: the one with its name, or a function of its name."""
    name = re.escape(op)
    declared = re.compile(rf'^(def {name}_?\(|    "{name}": |    op: Literal\[.*"{name}")', re.MULTILINE)
    for file in sorted(_OPS.glob("*.py")):
        if file.stem == op or declared.search(file.read_text(encoding="utf-8")):
            import_module(f"hwsim.ops.{file.stem}")


def import_operations() -> None:
    """Import every operation."""
    for file in sorted(_OPS.glob("*.py")):
        import_module(f"hwsim.ops.{file.stem}")


def known_operations() -> list[str]:
    """Every ``op`` that a file may name."""
    import_operations()
    return sorted({*WorkloadSpec.variants, *WorkloadSpec.makers})


def any_workload() -> Any:
    """The classes of all operations as one type, told apart by ``op``: for the JSON Schema of workload files."""
    models = dict.fromkeys(workload_model(name) for name in known_operations())
    return Annotated[reduce(or_, models), Field(discriminator="op")]
