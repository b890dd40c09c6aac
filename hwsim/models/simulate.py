"""One kernel of a model on one machine, simulated once and kept: whole, or a slice of it that stands for the whole.

Where a machine's run replays every access, a kernel of a model is too large. A slice has the same inner sizes as far as
they matter (rows of a tile, a stretch of the sum) and fewer of what repeats: rows, columns, heads. It starts with cold
caches, as the whole does, so that weights come from memory once. Its time and energy are scaled by the multiply-adds,
or the elements, of the whole. Schedules are what a good library does on cores: vectors, a register tile, packed cache
tiles, all cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from pydantic import ValidationError

from hwsim.api import run_all
from hwsim.energy import static_watts
from hwsim.errors import CapacityError, HwsimError, InputError, ShapeError
from hwsim.models.kernels import KernelCall
from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec, RegistersSpec
from hwsim.spec.workload import WorkloadSpec
from hwsim.target import Starts, Target, find_target

FEW_ROWS = 8
"""Products with fewer rows read weights once: they are shared out by columns."""
MOST = {"n": 256, "k": 512}
MOST_TILE, LEAST_TILE = 64, 8
"""Rows of a tile: as many as there are for each core, within reason."""
MOST_FEW = {"m": FEW_ROWS, "n": 2048, "k": 1024}
MOST_ELEMENTS = 1 << 18
MANY_ROWS = {"order": "ijk", "vector": True, "packed": True, "parallel": "rows"}
FEW = {"order": "jik", "vector": True, "v1": 4, "v2": 8, "parallel": "rows", "b_layout": "jk"}


@dataclass(frozen=True)
class Slice:
    """What is simulated, as a workload file would say it, and how often it fits into the whole."""

    data: dict[str, Any]
    scale: float = 1.0


def cut(target: Target, call: KernelCall) -> Slice:
    """The whole kernel where a run lays out tiles, a slice of it where a run walks through accesses."""
    data = call.data()
    if _needs_scale(call):
        data["scale"] = "tensor"
    if not walks(target):
        return Slice(data)
    data["convert"] = True  # a core without the format converts on the way to registers, and that is counted
    sizes, cores = data["sizes"], sum(unit.count for unit in target.machine.compute)
    match call.op:
        case "matmul" | "matmul_batched":
            return _product(data, sizes, cores, _tile_rows(target))
        case "attention":
            return _attention(data, sizes)
        case "conv2d":
            return _convolution(data, sizes, cores, _tile_rows(target))
    return _rows(data, sizes)


def _needs_scale(call: KernelCall) -> bool:
    """Whole numbers stand for fractions wherever there is more to do than to multiply and add."""
    plain = call.op in ("matmul", "matmul_batched", "conv2d")
    return call.precision in ("int8", "int16") and not plain


def walks(target: Target) -> bool:
    """Whether a run on this machine goes through the accesses of a kernel one by one."""
    found: bool | None = target.__dict__.get("_walks")
    if found is None:
        about = {"format": 1, "name": "small", "description": "", "op": "copy", "sizes": {"n": 16}}
        work = WorkloadSpec.model_validate(about)
        try:
            found = target.estimate(target.prepare(work, math=False), work) is not None
        except HwsimError:  # a machine that cannot even copy walks through nothing
            found = False
        target.__dict__["_walks"] = found
    return found


def _tile_rows(target: Target) -> int:
    """Rows of a register tile of two vectors a row: their sums, one row of B and a number of A fit the registers."""
    counts = [level.count for level in target.machine.memory if isinstance(level, RegistersSpec)]
    return 8 if counts and counts[0] >= 2 * 8 + 2 + 1 else 4


def _product(data: dict[str, Any], sizes: dict[str, int], cores: int, rows: int) -> Slice:
    few = sizes["m"] <= FEW_ROWS
    tile = min(MOST_TILE, max(LEAST_TILE, sizes["m"] // cores // LEAST_TILE * LEAST_TILE))
    # Every core has a tile of rows; the more of them there are, the fewer columns stand for all.
    many = {"m": tile * cores, "n": max(MOST_TILE, MOST["n"] * MOST_TILE // (tile * cores)), "k": MOST["k"]}
    most = MOST_FEW if few else many
    cut_sizes = {name: min(size, most.get(name, 1)) for name, size in sizes.items()}
    schedule: dict[str, Any] = FEW if few else {**MANY_ROWS, "v1": rows, "tile": tile}
    if data["op"] != "matmul":
        schedule = {name: value for name, value in schedule.items() if few or name != "packed"}
    scale = prod(sizes.values()) / prod(cut_sizes.values())
    return Slice({**data, "sizes": cut_sizes, "schedule": schedule}, scale)


def _attention(data: dict[str, Any], sizes: dict[str, int]) -> Slice:
    groups = sizes["heads"] // sizes["kv_heads"]
    kept = min(sizes["kv_heads"], 8)
    queries, keys = min(sizes["queries"], 64), min(sizes["n"], 1024)
    cut_sizes = {**sizes, "batch": 1, "heads": kept * groups, "kv_heads": kept, "queries": queries, "n": keys}
    cut_sizes["causal"] = False
    pairs = sizes["queries"] * sizes["n"]
    if sizes.get("causal"):
        pairs -= sizes["queries"] * (sizes["queries"] - 1) // 2
    scale = sizes["batch"] * sizes["heads"] * pairs / (kept * groups * queries * keys)
    schedule = {"variant": "fused", "br": min(queries, 16), "bc": min(keys, 64), "parallel": "rows"}
    return Slice({**data, "sizes": cut_sizes, "schedule": schedule}, scale)


def _convolution(data: dict[str, Any], sizes: dict[str, int], cores: int, places: int) -> Slice:
    """Channels last: a vector of filters, for so many neighbouring places at a time."""
    groups = sizes.get("groups", 1)
    co = sizes["co"] if groups > 1 else min(sizes["co"], 64)
    height = min(sizes["height"], max(16, cores) * sizes["stride"] + sizes["kernel"])
    cut_sizes = {**sizes, "batch": 1, "co": co, "height": height}
    rows = (sizes["height"] + 2 * sizes["padding"] - sizes["kernel"]) // sizes["stride"] + 1
    own = (height + 2 * sizes["padding"] - sizes["kernel"]) // sizes["stride"] + 1
    scale = sizes["batch"] * sizes["co"] / co * rows / own
    schedule = {"layout": "nhwc", "w_layout": "hwio", "unroll": {"w": places}, "vector": True, "parallel": "rows"}
    return Slice({**data, "sizes": cut_sizes, "schedule": schedule}, scale)


def _rows(data: dict[str, Any], sizes: dict[str, int]) -> Slice:
    if "m" not in sizes:
        length = min(sizes["n"], MOST_ELEMENTS)
        cut_data = {**data, "sizes": {"n": length}, "schedule": {"vector": True, "parallel": "rows"}}
        return Slice(cut_data, sizes["n"] / length)
    m, n = sizes["m"], sizes["n"]
    rows = max(1, min(m, MOST_ELEMENTS // n))
    return Slice({**data, "sizes": {"m": rows, "n": n}, "schedule": {"vector": True, "parallel": "rows"}}, m / rows)


@dataclass(frozen=True)
class KernelPrice:
    """One kernel on one machine."""

    seconds: float
    """At work, without being started."""
    joules: float | None
    starts: int
    """Kernels that it takes; none where work needs no start."""
    each_s: float
    host_s: float
    """What one start takes inside a graph, and from the host."""
    result: RunResult
    scale: float
    """Of the simulated slice to the whole; 1 where all of it was simulated."""


class RefusedError(Exception):
    """The machine does not compute a kernel."""


def starts_of(target: Target, result: RunResult) -> Starts:
    """What starting took in a run. Cores that share a kernel are started once for all of it, not for each slice."""
    found, spawned = target.starts(result), result.bounds.parts.get(SPAWN, 0.0)
    return found if found.kernels or not spawned else Starts(1, spawned, spawned, 0.0, SPAWN)


SPAWN = "spawn"
"""The part of a run on several cores that starts them."""


class Simulated:
    """Kernels that were simulated on one machine in this process."""

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.target = find_target(machine)
        self.prices: dict[object, KernelPrice | RefusedError] = {}

    def price(self, call: KernelCall) -> KernelPrice:
        key = call.key
        if key not in self.prices:
            try:
                self.prices[key] = self._simulate(call)
            except RefusedError as refusal:
                self.prices[key] = refusal
        found = self.prices[key]
        if isinstance(found, RefusedError):
            raise found
        return found

    def multiplies(self, precision: str) -> bool:
        """Whether the machine has products of a format."""
        try:
            self.price(KernelCall("matmul", precision, (("m", 64), ("n", 64), ("k", 64)), product=True))
        except RefusedError:
            return False
        return True

    def _simulate(self, call: KernelCall) -> KernelPrice:
        part: Slice = cut(self.target, call)
        try:
            work = WorkloadSpec.model_validate(part.data)
            result = run_all(self.machine, work, math=False).result
        except ValidationError as error:
            raise RefusedError(str(error.errors(include_url=False)[0]["msg"])) from error
        except (InputError, CapacityError, ShapeError) as error:
            raise RefusedError(_short(error)) from error
        starts = starts_of(self.target, result)
        seconds = max(0.0, result.time_s - starts.seconds)
        joules = result.energy_j
        if joules is not None and self.machine.energy is not None:
            saved = starts.seconds - starts.kernels * starts.each_s
            joules = max(0.0, joules - saved * static_watts(self.machine.energy)) * part.scale
        return KernelPrice(
            seconds * part.scale, joules, starts.kernels, starts.each_s, starts.host_s, result, part.scale
        )


def _short(error: HwsimError) -> str:
    return str(error).split("\n")[0]


def simulated_on(machine: MachineSpec) -> Simulated:
    """What was simulated on a machine that is described by the same text."""
    text = machine.model_dump_json()
    if text not in _SIMULATED:
        while len(_SIMULATED) >= MOST_MACHINES:
            _SIMULATED.pop(next(iter(_SIMULATED)))
        _SIMULATED[text] = Simulated(machine)
    return _SIMULATED[text]


MOST_MACHINES = 32

_SIMULATED: dict[str, Simulated] = {}
