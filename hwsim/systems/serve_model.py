"""Serving a model by name: from the words of a command line to a result, for one load or for several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hwsim.catalog import expand
from hwsim.errors import InputError
from hwsim.models.load import load_model
from hwsim.ops.model import ModelWorkload
from hwsim.spec.fields import did_you_mean
from hwsim.spec.parameters import with_parameters
from hwsim.systems.communicate import Network
from hwsim.systems.engine_spec import EngineSpec
from hwsim.systems.find import device_of, load_engine, load_system
from hwsim.systems.layout import AXES, has_experts, make_layout
from hwsim.systems.requests import Stream, closed_loop, open_loop, read_trace
from hwsim.systems.serve import ServeResult, serve
from hwsim.systems.spec import SystemSpec
from hwsim.systems.step_price import ServedModel

FORMATS = ("precision", "weights", "kv", "activations")
NUMBERS = ("prompt", "generate", "requests", "seed", "prefix", "tp", "pp", "dp", "ep", "blocks", "budget")
OTHERS = ("load", "rate", "trace", "engine", "spread", "library")
PARAMETERS = (*FORMATS, *NUMBERS, *OTHERS)
DEFAULT_ENGINE = "vllm"
DEFAULT_PROMPT, DEFAULT_OUTPUT = 1024, 128


@dataclass(frozen=True)
class Service:
    """A model on a system behind an engine, ready for requests."""

    model: ModelWorkload
    system: SystemSpec
    engine: EngineSpec
    price: ServedModel
    replicas: int
    prefix: int
    blocks: int | None
    numbers: Mapping[str, int]

    def run(self, stream: Stream, *, timeline: bool = False, told: Callable[[int], None] | None = None) -> ServeResult:
        return serve(
            stream, self.engine, self.price, replicas=self.replicas, prefix=self.prefix, blocks=self.blocks,
            timeline=timeline, told=told,
        )  # fmt: skip

    def stream(self, kind: str, value: str, spread: float) -> Stream:
        """The requests of one load: `load` users, a `rate`, or a `trace`."""
        if kind == "trace":
            return read_trace(expand(value))
        prompt, output = self.numbers.get("prompt", DEFAULT_PROMPT), self.numbers.get("generate", DEFAULT_OUTPUT)
        count, seed = self.numbers.get("requests"), self.numbers.get("seed", 0)
        if kind == "rate":
            return open_loop(_float("rate", value), prompt, output, count, spread, seed)
        users = _whole("load", value)
        return closed_loop(users, prompt, output, count, spread, seed)

    def closed_form(self, users: int) -> float:
        """Seconds per output token by the formula, for so many users at a time."""
        prompt, output = self.numbers.get("prompt", DEFAULT_PROMPT), self.numbers.get("generate", DEFAULT_OUTPUT)
        return self.price.closed_form(max(1, -(-users // self.replicas)), prompt, output)


def make_service(
    model: str, system: str, given: Mapping[str, str], told: Callable[[str], None] | None = None
) -> Service:
    """What a command line asks for; raises InputError with what is allowed."""
    for name in given:
        if name not in PARAMETERS:
            raise InputError(f"'{name}' is not one of {', '.join(PARAMETERS)}{did_you_mean(name, PARAMETERS)}")
    numbers = {name: _whole(name, given[name]) for name in NUMBERS if name in given}
    for name in (*AXES, "requests", "blocks", "budget"):
        if numbers.get(name, 1) < 1:
            raise InputError(f"{name}={numbers[name]}: at least 1")
    joined = load_system(system)
    loaded = with_parameters(load_model(model).model, {name: given[name] for name in FORMATS if name in given})
    assert isinstance(loaded, ModelWorkload)
    said = {name: value for name, value in loaded.parallel.given().items() if name in AXES}
    layout = make_layout(joined, {**said, **{name: numbers[name] for name in AXES if name in numbers}})
    if layout.ep > 1 and not has_experts(loaded):
        raise InputError(f"ep={layout.ep}: {loaded.name} has no experts to divide; tp, pp and dp divide other models")
    engine = load_engine(given.get("engine", DEFAULT_ENGINE))
    if "budget" in numbers:
        engine = engine.model_copy(update={"tokens": numbers["budget"]})
    library = given.get("library") or (engine.library if engine.library in joined.libraries else None)
    machine = device_of(joined)
    price = ServedModel(machine, loaded, engine, Network(joined, library), layout, told)
    return Service(loaded, joined, engine, price, layout.dp, numbers.get("prefix", 0), numbers.get("blocks"), numbers)


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InputError(f"{name}={text}: a whole number below 1,000,000,000 is needed")
    return int(text)


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}={text}: a number is needed") from None
