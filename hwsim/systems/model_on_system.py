"""A model on a system by name: its phases on all devices, the check of its split, and the search for a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hwsim.errors import CapacityError, InputError
from hwsim.models.graph import ModelGraph
from hwsim.models.load import load_model
from hwsim.models.run import choose_kernels, phases_of
from hwsim.ops.model import ModelWorkload
from hwsim.spec.parameters import with_parameters
from hwsim.systems.communicate import Network
from hwsim.systems.find import device_of, load_system
from hwsim.systems.layout import NUMBERS, ParallelLayout, has_experts, layouts, make_layout
from hwsim.systems.parallel import Parallel, ParallelStep
from hwsim.systems.shards import SplitCheck, check_split
from hwsim.systems.spec import SystemSpec

OWN = (*NUMBERS, "library")
"""Parameters of the split; all others are those of the model."""


@dataclass(frozen=True)
class SystemRun:
    """What a model costs on several devices, phase by phase."""

    model: ModelWorkload
    system: SystemSpec
    layout: ParallelLayout
    library: str
    steps: tuple[tuple[ParallelStep, float], ...]
    """Phases, each with how often it runs."""
    check: SplitCheck
    formats: str

    @property
    def speaks(self) -> bool:
        """Whether it reads tokens; otherwise images."""
        return ModelGraph.of(self.model).takes_tokens

    @property
    def fits(self) -> bool:
        return all(step.fits for step, _ in self.steps)

    @property
    def seconds(self) -> float:
        """Of all phases together."""
        return sum(step.seconds * times for step, times in self.steps)

    @property
    def joules(self) -> float | None:
        found = [None if step.joules is None else step.joules * times for step, times in self.steps]
        return None if None in found else sum(each or 0.0 for each in found)

    def named(self) -> dict[str, list[tuple[ParallelStep, float]]]:
        """By the name of the phase; decoding is priced at several lengths."""
        found: dict[str, list[tuple[ParallelStep, float]]] = {}
        for step, times in self.steps:
            found.setdefault(step.phase.name, []).append((step, times))
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.name, "system": self.system.name, "machine": self.system.machine,
            "layout": asdict(self.layout), "library": self.library, "formats": self.formats, "fits": self.fits,
            "seconds": self.seconds, "joules": self.joules, "check": asdict(self.check),
            "steps": [{**step.to_dict(), "times": times} for step, times in self.steps],
        }  # fmt: skip


def run_on_system(
    model: str, system: str, given: Mapping[str, str], *, timeline: bool = False,
    told: Callable[[str], None] | None = None,
) -> SystemRun:  # fmt: skip
    """Simulate a model on several devices, as a command line says it."""
    joined, loaded = load_system(system), load_asked(model, given)
    numbers = {name: whole_number(name, given[name]) for name in NUMBERS if name in given}
    layout = make_layout(joined, {**loaded.parallel.given(), **numbers})
    network = Network(joined, given.get("library"))
    return run_layout(loaded, joined, layout, network, timeline=timeline, told=told)


def run_layout(
    model: ModelWorkload, system: SystemSpec, layout: ParallelLayout, network: Network, *, timeline: bool = False,
    told: Callable[[str], None] | None = None,
) -> SystemRun:  # fmt: skip
    if layout.ep > 1 and not has_experts(model):
        raise InputError(f"ep={layout.ep}: {model.name} has no experts to divide; tp, pp and dp divide other models")
    graph = ModelGraph.of(model)
    wanted = list(phases_of(model, graph))
    parallel = Parallel(
        device_of(system), model, network, layout, kernels=choose_kernels(model, graph, wanted[0][0]),
        told=told,
    )  # fmt: skip
    grown = model.use.prompt + model.use.generate if model.use.phase == "all" else 0
    steps = tuple((parallel.step(phase, timeline=timeline, grown=grown), times) for phase, times in wanted)
    check = check_split(layout, experts=has_experts(model))
    return SystemRun(model, system, layout, network.library, steps, check, parallel.numbers.words())


@dataclass(frozen=True)
class Candidate:
    """A layout that was tried."""

    layout: ParallelLayout
    run: SystemRun | None
    why: str = ""
    """Why it cannot be used."""


def search_layouts(
    model: str, system: str, given: Mapping[str, str], told: Callable[[str], None] | None = None
) -> list[Candidate]:
    """All layouts that use the whole system, fastest first; those that do not fit come last, with the reason."""
    joined, loaded = load_system(system), load_asked(model, given)
    network = Network(joined, given.get("library"))
    found = []
    for layout in layouts(joined.count, experts=has_experts(loaded)):
        if told is not None:
            told(layout.words)
        try:
            run = run_layout(loaded, joined, layout, network)
        except (CapacityError, InputError) as error:
            found.append(Candidate(layout, None, str(error)))
            continue
        why = "" if run.fits else "does not fit the memory of a device"
        found.append(Candidate(layout, run, why))
    return sorted(found, key=lambda each: (bool(each.why), each.run.seconds if each.run is not None else 0.0))


def load_asked(model: str, given: Mapping[str, str]) -> ModelWorkload:
    """A model by name, with the parameters of a command line that are its own."""
    loaded = with_parameters(load_model(model).model, {name: value for name, value in given.items() if name not in OWN})
    assert isinstance(loaded, ModelWorkload)
    return loaded


def whole_number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise InputError(f"{name}={text}: a whole number is needed")
    return int(text)
