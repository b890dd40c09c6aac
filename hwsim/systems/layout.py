"""Layout: how the devices of a system divide a model among themselves, and which of them belong together.

Devices that divide a layer (tp) are neighbours, because they talk most; then those that divide experts (ep), then
stages of a pipeline (pp), then whole copies (dp).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from hwsim.errors import InputError
from hwsim.models.graph import ModelGraph
from hwsim.ops.model import Attention, Experts, LatentAttention, ModelWorkload
from hwsim.systems.spec import SystemSpec

AXES = ("tp", "pp", "dp", "ep")
NUMBERS = (*AXES, "sp", "micro")
"""What a command line or a model file may say of a layout."""


@dataclass(frozen=True)
class ParallelLayout:
    """How many devices divide heads and widths (tp), layers (pp), sequences (dp) and experts (ep)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    micro: int = 1
    """Parts into which the batch of a copy is cut, so that stages of a pipeline work at the same time."""
    sp: int = 0
    """1 where devices of a tensor group divide by tokens what each of them would do alike."""

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.ep

    @property
    def words(self) -> str:
        named = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1] or ["tp=1"]
        return " ".join([*named, *(["sp=1"] if self.sp else []), *([f"micro={self.micro}"] if self.micro > 1 else [])])

    def device(self, t: int = 0, e: int = 0, p: int = 0, d: int = 0) -> int:
        """The number of a device, by its places."""
        return ((d * self.pp + p) * self.ep + e) * self.tp + t

    def tensor_group(self, p: int = 0) -> tuple[int, ...]:
        """Devices of the first copy that divide the layers of a stage."""
        return tuple(self.device(t=t, p=p) for t in range(self.tp))

    def expert_group(self, p: int = 0) -> tuple[int, ...]:
        return tuple(self.device(e=e, p=p) for e in range(self.ep))

    def gradient_group(self, p: int = 0) -> tuple[int, ...]:
        """Devices that hold the same weights: their gradients are added up."""
        return tuple(self.device(p=p, d=d, e=e) for d in range(self.dp) for e in range(self.ep))


def make_layout(system: SystemSpec, numbers: Mapping[str, int]) -> ParallelLayout:
    """What a command line says; tp fills the system where it is not said. Raises InputError where it does not fit."""
    for name in (*AXES, "micro"):
        if numbers.get(name, 1) < 1:
            raise InputError(f"{name}={numbers[name]}: at least 1")
    if numbers.get("sp", 0) not in (0, 1):
        raise InputError(f"sp={numbers['sp']}: 1 divides norms and sums of a tensor group by tokens, 0 does not")
    others = numbers.get("pp", 1) * numbers.get("dp", 1) * numbers.get("ep", 1)
    tp = numbers.get("tp", max(1, system.count // others))
    pp = numbers.get("pp", 1)
    sp = numbers.get("sp", 0) if tp > 1 else 0
    layout = ParallelLayout(tp, pp, numbers.get("dp", 1), numbers.get("ep", 1), numbers.get("micro", pp), sp)
    if layout.devices > system.count:
        raise InputError(f"{layout.words}: {layout.devices} devices, and {system.name} has {system.count}")
    return layout


def check_heads(model: ModelWorkload, tp: int) -> None:
    """Raises InputError where tp does not divide the heads of a model: a device would get a part of one."""
    for _, node in ModelGraph.of(model).nodes():
        if not isinstance(node.op, Attention | LatentAttention):
            continue
        heads, shared = node.size("heads"), node.sizes.get("kv_heads", tp)
        if heads % tp or (shared % tp and tp % shared):
            fit = [each for each in _divisors(heads) if not (shared % each and each % shared)]
            raise InputError(
                f"tp={tp}: {model.name} has {heads} heads ({shared} of keys and values), which so many devices cannot "
                f"divide evenly; tp can be {', '.join(map(str, fit))}"
            )


def has_experts(model: ModelWorkload) -> bool:
    return any(isinstance(node.op, Experts) for _, node in ModelGraph.of(model).nodes())


def layouts(count: int, *, experts: bool = False) -> Iterator[ParallelLayout]:
    """All ways to use so many devices by powers of two, and what else divides their number."""
    for tp in _divisors(count):
        for pp in _divisors(count // tp):
            for ep in _divisors(count // tp // pp) if experts else (1,):
                dp = count // tp // pp // ep
                for micro in sorted({1, pp, 4 * pp}) if pp > 1 else (1,):
                    yield ParallelLayout(tp, pp, dp, ep, micro)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def stages_of(model: ModelWorkload, graph: ModelGraph, pp: int) -> Iterator[ModelGraph]:
    """What each stage of a pipeline has of a graph; raises InputError where there are more stages than layers."""
    layers = sum(block.repeat for block in graph.blocks if block.repeat > 1)
    if pp > max(1, layers):
        raise InputError(f"pp={pp}: {model.name} has {layers} layers that can be divided")
    if pp == 1:
        yield graph
        return
    edges = [round(layers * stage / pp) for stage in range(pp + 1)]
    yield from (graph.layers(first, last - first) for first, last in pairwise(edges))
