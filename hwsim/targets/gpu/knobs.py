"""What a GPU reads of a schedule, and the kernels that it makes of that: tiles, split sums, stages, attention.

What is not chosen stays as the library has it. What is chosen must fit the registers, the shared memory and the threads
of an SM; where it does not, the error names the largest that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import ceil
from typing import Any

from hwsim.errors import InputError
from hwsim.numerics.datapath import find_datapath
from hwsim.spec.machine import MachineSpec, ScratchpadSpec
from hwsim.spec.workload import AUTO, ThreadSchedule, WorkloadSpec
from hwsim.target import Knob, Rung
from hwsim.targets.gpu.device import MMA_BYTES, Device, Footprint, check_block, element_bytes, fits, occupancy
from hwsim.targets.gpu.gemm import OTHER_REGISTERS, GemmBytes, library_tiles, tile_footprint
from hwsim.targets.gpu.spec import AttentionKernelSpec, TileSpec
from hwsim.targets.knobs import algorithm_knobs, allowed_of, by_name, has_products

LIBRARY = "library"
LARGEST, SMALLEST = 256, 16
"""Sides of a block's tile that tensor cores and registers allow."""


def knobs(machine: MachineSpec, work: WorkloadSpec) -> Mapping[str, Knob]:
    """Choices of the library's kernels, and of kernels that are written by hand."""
    device, shared = Device.of(machine), shared_name(machine)
    found = dict(algorithm_knobs(work, _unread(work)))
    by_hand = work.op == "matmul" and work.threads.kernel != LIBRARY
    if not by_hand and work.op != "attention" and has_products(work):
        found |= _product_knobs(device, shared, work)
    if fuses_attention(work):
        found |= _attention_knobs(device, shared)
    if work.op == "matmul":
        found |= _thread_knobs(work)
    return found


def with_epilogues(work: WorkloadSpec, limit: int | None) -> WorkloadSpec:
    """A chain in which no more is fused behind a product than the library does; less, where somebody asked for less."""
    schedule = getattr(work, "schedule", None)
    if work.op != "chain" or limit is None or schedule is None:
        return work
    asked = min(limit, schedule.epilogues or limit)
    return work.model_copy(update={"schedule": schedule.model_copy(update={"epilogues": asked})})


def choices_of(machine: MachineSpec, work: WorkloadSpec) -> dict[str, int]:
    """What was chosen, with the level of the machine called `shared`."""
    shared = shared_name(machine)
    named = {name.replace(f"tile.{shared}.", "tile.shared.", 1): size for name, size in work.choices.items()}
    return {name: size for name, size in named.items() if isinstance(size, int)}


def shared_name(machine: MachineSpec) -> str:
    """What the machine calls the memory that the threads of a block share."""
    return next((level.name for level in machine.memory if isinstance(level, ScratchpadSpec)), "shared")


def ladder(machine: MachineSpec, story: str) -> tuple[Rung, ...]:
    """The matrix product from a thread for each result to the library's kernel on tensor cores."""
    from hwsim.targets.gpu.hand_written import DEFAULTS

    if story != "matmul":
        return ()
    rungs = [Rung(name, "matmul", {"n": 1024, "threads.kernel": name}) for name in DEFAULTS if name != "tensor"]
    sm = Device.of(machine).sm
    half = next((name for name in ("fp16", "bf16") if name in sm.tensor), None)
    library = Rung("library", "matmul", {"n": 1024})
    if half is None:
        return (*rungs, library)
    tensor = Rung(f"tensor cores, {half}", "matmul", {"n": 1024, "threads.kernel": "tensor", "precision": half})
    return (*rungs, library, tensor, Rung(f"library, {half}", "matmul", {"n": 1024, "precision": half}))


def _product_knobs(device: Device, shared: str, work: WorkloadSpec) -> Mapping[str, Knob]:
    library = device.sm.library
    tiles = library.lane_tiles
    with suppress(InputError):  # a format that it does not have is refused when it is run
        if device.unit_for(find_datapath(work.precision).a.name) == "tensor":
            tiles = library.tensor_tiles
    depths = sorted({tile.k for tile in tiles})
    depths = [*depths, *(2 * depth for depth in depths[-1:])]
    sides = f"{SMALLEST}..{LARGEST}:x2"
    large = sorted({side for tile in tiles for side in (tile.m, tile.n) if side >= 64})
    return by_name(
        Knob(f"tile.{shared}.m", "Rows of the output that a block computes.", AUTO, sides, tries=_list(large)),
        Knob(f"tile.{shared}.n", "Columns of the output that a block computes.", AUTO, sides, tries=_list(large)),
        Knob(f"tile.{shared}.k", "Depth of one step of its main loop.", AUTO, "8..256:x2", tries=_list(depths)),
        Knob("split_k", "Parts of the sum over k, each a block of its own.", AUTO, "1..64", tries="1,2,4"),
        Knob("stages", "Steps of operands that shared memory holds at once.", AUTO, "1..8", tries="2,3,4"),
    )


def _attention_knobs(device: Device, shared: str) -> Mapping[str, Knob]:
    if not device.sm.library.attention:
        return {}
    rows, keys = "Queries that a block keeps.", "Keys and values of one step."
    return by_name(
        Knob(f"tile.{shared}.queries", rows, AUTO, "16..256:x2", tries="64,128,256"),
        Knob(f"tile.{shared}.keys", keys, AUTO, "16..256:x2", tries="32,64,128,256"),
    )


def _thread_knobs(work: WorkloadSpec) -> Mapping[str, Knob]:
    """Of a kernel that is written by hand: which one, and its tiles."""
    found = {}
    tiles = None
    if work.threads.kernel != LIBRARY:
        from hwsim.targets.gpu.hand_written import DEFAULTS

        tiles = DEFAULTS.get(work.threads.kernel)
    for name, field in ThreadSchedule.model_fields.items():
        if name == "kernel" or tiles is not None:
            value = work.threads.kernel if name == "kernel" else getattr(work.threads, name) or getattr(tiles, name)
            meaning, allowed = (field.description or "").partition(".")[0], allowed_of(field.annotation)
            found[f"threads.{name}"] = Knob(f"threads.{name}", meaning, str(value), allowed, group="threads")
    return found


def _unread(work: WorkloadSpec) -> frozenset[str]:
    """The library has one softmax, whatever passes a loop would make."""
    return frozenset({"softmax"} | ({"variant"} if work.op == "softmax" else set()))


def fuses_attention(work: WorkloadSpec) -> bool:
    """Whether attention is one kernel in it."""
    if work.op == "chain":
        steps: Iterable[Any] = getattr(work, "operations", ())
        return any(step.op == "attention" and step.variant == "fused" for step in steps)
    schedule: Any = getattr(work, "schedule", None)
    return work.op == "attention" and schedule.variant == "fused"


def _list(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


# Kernels with what was chosen -----------------------------------------------------------------------------------------

Choices = Mapping[str, int]

TILE = {"tile.shared.m": "m", "tile.shared.n": "n", "tile.shared.k": "k", "stages": "stages"}
SPLIT = "split_k"
QUERIES, KEYS = "tile.shared.queries", "tile.shared.keys"

MMA_ROWS, MMA_COLUMNS = 16, 8
"""Of the result of one tensor-core instruction of a warp."""
THREAD_SUMS = 128
"""Sums that one thread of the library's largest tiles keeps in registers."""
LEAST_THREADS = {"tensor": 128, "lanes": 64}
"""Threads of the library's smallest blocks."""


def choose_tiles(
    device: Device, precision: str, unit: str, data: GemmBytes, choices: Choices
) -> tuple[TileSpec, ...] | None:
    """The library's kernels for a format with what was chosen; None where nothing about tiles was."""
    asked = {field: choices[name] for name, field in TILE.items() if name in choices}
    if not asked:
        return None
    _check_shape(precision, unit, choices)
    made = [_with(device, unit, tile, asked) for tile in library_tiles(device, precision, unit, turns=data.convert > 0)]
    if not made:
        raise InputError(f"{device.machine.name} has no {unit} tiles for {precision} in {device.sm.name}.library")
    made = [tile for number, tile in enumerate(made) if tile not in made[:number]]
    fitting = tuple(tile for tile in made if fits(device, tile_footprint(tile, data)))
    if not fitting:
        smallest = min(made, key=lambda tile: (tile.m * tile.n, tile.k * tile.stages))
        what = f"a block with {_words(smallest)}"
        check_block(device, tile_footprint(smallest, data), what, lambda: _smaller(device, unit, smallest, asked, data))
    return fitting


def choose_split(choices: Choices, k: int, tiles: tuple[TileSpec, ...] | None) -> int | None:
    """Into how many parts the sum over k is cut, each with a step of its own; None where the library may choose."""
    split = choices.get(SPLIT)
    if split is None:
        return None
    depth = min(tile.k for tile in tiles) if tiles else 1
    steps = ceil(k / depth)
    if split > steps:
        raise InputError(f"split_k={split}: a sum of {k} products in steps of {depth} has {steps} parts at most")
    return split


def choose_attention(
    device: Device, base: AttentionKernelSpec, head_dim: int, precision: str, choices: Choices
) -> AttentionKernelSpec:
    """A fused attention kernel with the tiles that were chosen; as many blocks share an SM as then fit."""
    queries, keys = choices.get(QUERIES, base.queries), choices.get(KEYS, base.keys)
    if (queries, keys) == (base.queries, base.keys):
        return base
    _check_multiple(QUERIES, queries, MMA_ROWS, "rows")
    _check_multiple(KEYS, keys, MMA_COLUMNS, "columns")
    size = element_bytes(precision)
    what = f"a block of attention with {queries} queries and {keys} keys of {head_dim}"
    block = _attention_footprint(device, queries, keys, head_dim, size)
    check_block(device, block, what, lambda: _smaller_attention(device, queries, keys, head_dim, size))
    work = ceil(base.queries * base.keys / (queries * keys))
    resident = min(occupancy(device, block, what).blocks, base.resident * work)
    return base.model_copy(update={"queries": queries, "keys": keys, "resident": max(1, resident)})


def _with(device: Device, unit: str, tile: TileSpec, asked: Mapping[str, int]) -> TileSpec:
    """A kernel of the library with other sizes, and with threads for its sums where their number changes."""
    made = tile.model_copy(update=dict(asked))
    if (made.m, made.n) == (tile.m, tile.n):
        return made
    threads = LEAST_THREADS[unit]
    while made.m * made.n > THREAD_SUMS * threads and threads < device.sm.block_threads:
        threads *= 2
    return made.model_copy(update={"threads": threads})


def _smaller(device: Device, unit: str, tile: TileSpec, asked: Mapping[str, int], data: GemmBytes) -> str:
    """The largest values of what was chosen, halved one after the other, that fit."""
    left = dict(asked)
    while any(size > 1 for size in left.values()):
        largest = max(left, key=lambda name: (name != "stages", left[name]))
        if left[largest] == 1:
            largest = "stages"
        left[largest] = max(1, left[largest] // 2)
        if fits(device, tile_footprint(_with(device, unit, tile, left), data)):
            names = {field: name for name, field in TILE.items()}
            return f"{' '.join(f'{names[field]}={size}' for field, size in left.items())} would fit"
    return "no smaller choice of these fits"


def _attention_footprint(device: Device, queries: int, keys: int, head_dim: int, size: float) -> Footprint:
    """Scores and results in registers, queries, keys and values in shared memory; as few threads as can hold them."""
    sums, threads = queries * (keys + head_dim), LEAST_THREADS["tensor"]
    while ceil(sums / threads) + OTHER_REGISTERS > device.sm.thread_registers and threads < device.sm.block_threads:
        threads *= 2
    shared = (queries + 2 * keys) * head_dim * size
    return Footprint(threads, ceil(sums / threads) + OTHER_REGISTERS, ceil(shared))


def _smaller_attention(device: Device, queries: int, keys: int, head_dim: int, size: float) -> str:
    while queries > MMA_ROWS or keys > MMA_ROWS:
        queries, keys = (queries, max(MMA_ROWS, keys // 2)) if keys >= queries else (max(MMA_ROWS, queries // 2), keys)
        if fits(device, _attention_footprint(device, queries, keys, head_dim, size)):
            return f"{QUERIES}={queries} {KEYS}={keys} would fit"
    return "no tile of attention fits"


def _check_shape(precision: str, unit: str, choices: Choices) -> None:
    """Tensor cores take whole instructions."""
    if unit == "tensor":
        depth = max(1, round(MMA_BYTES / element_bytes(precision)))
        for name, unit_size, what in (
            ("tile.shared.m", MMA_ROWS, "rows"),
            ("tile.shared.n", MMA_COLUMNS, "columns"),
            ("tile.shared.k", depth, "products"),
        ):
            if name in choices:
                _check_multiple(name, choices[name], unit_size, what)


def _check_multiple(name: str, value: int, unit: int, what: str) -> None:
    if value % unit:
        below, above = value // unit * unit, ceil(value / unit) * unit
        near = f"{below} or {above}" if below else str(above)
        raise InputError(
            f"{name}={value} is no multiple of the {unit} {what} of a tensor-core instruction; take {near}"
        )


def _words(tile: TileSpec) -> str:
    return f"a tile of {tile.m}x{tile.n}x{tile.k} in {tile.stages} stages and {tile.threads} threads"
