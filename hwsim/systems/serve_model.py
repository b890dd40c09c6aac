"""Serving a model by name: from the words of a command line to a result, for one load or for several.

What a step of a served model costs on a group of devices: the price that the serving simulation asks for.

A step is one pass over all its tokens, those of prompts and those that are decoded. So products and everything that
goes row by row are priced once for all rows together; attention is priced apart, for decoding requests by their number
and mean context, for prompts by their new tokens and those before; what devices have to tell each other is played on
their links. Each of these is a smooth function of one or two numbers, known at the points of a grid (1, 2, 3, 4, 6, 8,
12, …) and taken as straight between them.

Where experts are divided, each of `ep` devices has its share of the requests, and all wait for the fullest. Stages of a
pipeline take as many parts of a step as there are stages, one behind the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hwsim.catalog import expand
from hwsim.energy import static_watts
from hwsim.engine import FEMTOSECONDS
from hwsim.errors import CapacityError, InputError
from hwsim.models.count import Formats, kept_per_token, stored_bits
from hwsim.models.graph import LAST, Exchange, ModelGraph
from hwsim.models.load import load_model
from hwsim.models.memory import capacity, weight_bytes
from hwsim.models.price import PassCost, StepPrice
from hwsim.ops.model import Attention, LatentAttention, ModelWorkload
from hwsim.spec.fields import did_you_mean
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import with_parameters
from hwsim.systems.communicate import Network
from hwsim.systems.parallel import AXES, ParallelLayout, check_heads, has_experts, make_layout, stages_of
from hwsim.systems.scheduler import StepWork, Stream, closed_loop, open_loop, read_trace
from hwsim.systems.serve import ServeResult, StepTime, serve
from hwsim.systems.spec import EngineSpec, SystemSpec, device_of, load_engine, load_system
from hwsim.units import data

MOST_ROWS = 1 << 24


def _grid() -> Iterator[int]:
    yield 0
    power = 1
    while power <= MOST_ROWS:
        yield power
        if power > 1:
            yield power + power // 2
        power *= 2


GRID = tuple(_grid())

Pair = tuple[float, float]
"""Seconds and joules."""


def _between(low: Pair, high: Pair, share: float) -> Pair:
    return low[0] + (high[0] - low[0]) * share, low[1] + (high[1] - low[1]) * share


class PriceCurve:
    """A function of a whole number, asked for only at the points of the grid."""

    def __init__(self, function: Callable[[int], Pair]) -> None:
        self._function = function
        self._known: dict[int, Pair] = {}

    def at(self, number: float) -> Pair:
        """The straight line between the neighbours on the grid."""
        place = bisect_right(GRID, number) - 1
        low = GRID[place]
        if low == number:
            return self._point(low)
        high = GRID[place + 1]
        return _between(self._point(low), self._point(high), (number - low) / (high - low))

    def _point(self, number: int) -> Pair:
        if number not in self._known:
            self._known[number] = self._function(number) if number else (0.0, 0.0)
        return self._known[number]


class Surface:
    """The same of two numbers: straight along both; `second` may be zero and still cost something."""

    def __init__(self, function: Callable[[int, int], Pair]) -> None:
        self._function = function
        self._curves: dict[int, PriceCurve] = {}

    def at(self, first: int, second: float) -> Pair:
        place = bisect_right(GRID, second) - 1
        low = GRID[place]
        if low == second:
            return self._curve(low).at(first)
        high = GRID[place + 1]
        return _between(self._curve(low).at(first), self._curve(high).at(first), (second - low) / (high - low))

    def _curve(self, second: int) -> PriceCurve:
        if second not in self._curves:
            self._curves[second] = PriceCurve(lambda first: self._function(first, second))
        return self._curves[second]


Pieces = tuple[tuple[int, int, bool], ...]
"""Pieces of prompts: new tokens, tokens before them, and whether the prompt ends with them."""


@dataclass(frozen=True)
class Load:
    """A part of a step: requests that decode, the tokens before them, and pieces of prompts."""

    decoding: int
    context: int
    chunks: Pieces = ()

    @property
    def rows(self) -> int:
        return self.decoding + sum(tokens for tokens, _, _ in self.chunks)

    def parts(self, count: int) -> list[Load]:
        """Shares as equal as whole requests allow; the fullest first, empty ones left out."""
        if count == 1:
            return [self]
        chunks: list[list[tuple[int, int, bool]]] = [[] for _ in range(count)]
        rows = [(self.decoding + count - 1 - place) // count for place in range(count)]
        decoding = list(rows)
        for chunk in sorted(self.chunks, reverse=True):
            place = rows.index(min(rows))
            chunks[place].append(chunk)
            rows[place] += chunk[0]
        context = self.context / max(1, self.decoding)
        found = [
            Load(each, round(each * context), tuple(own))
            for each, own in zip(decoding, chunks, strict=True)
            if each or own
        ]
        return sorted(found, key=lambda load: -load.rows)


@dataclass
class ServedModel:
    """A model on a group of devices that share it, as a layout says; `dp` is the business of who sends requests."""

    machine: MachineSpec
    model: ModelWorkload
    engine: EngineSpec
    network: Network
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    told: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        check_heads(self.model, self.layout.tp)
        self.graph = ModelGraph.of(self.model, self.layout.tp, self.layout.ep)
        self.stages = list(stages_of(self.model, self.graph, self.layout.pp))
        self.numbers = Formats.of(self.model)
        if not self.graph.is_generative:
            raise InputError(f"{self.model.name} makes no tokens one by one; serving is for models that do")
        self._price = StepPrice(self.machine, self.graph, self.numbers, told=self.told)
        self._mixing = {
            (block.name, node.name)
            for block, node in self.graph.nodes()
            if isinstance(node.op, Attention | LatentAttention)
        }
        self._heads = {(block.name, node.name) for block, node in self.graph.nodes() if node.out.rows == LAST}
        self._rows = PriceCurve(self._rows_at)
        self._head = PriceCurve(self._head_at)
        self._decode = Surface(self._decode_at)
        self._prompt = Surface(self._prompt_at)
        self._talk = PriceCurve(lambda rows: self._exchanged(rows, last=False))
        self._talk_last = PriceCurve(lambda rows: self._exchanged(rows, last=True))
        self._steps: dict[tuple[object, ...], StepTime] = {}
        self._priced = True

    # What serving asks ------------------------------------------------------------------------------------------------

    @cached_property
    def idle_watts(self) -> float | None:
        """Power of the group while it waits."""
        return static_watts(self.machine.energy) * self.devices if self.machine.energy is not None else None

    @property
    def devices(self) -> int:
        return self.layout.tp * self.layout.ep * self.layout.pp

    def step(self, work: StepWork) -> StepTime:
        chunks = tuple((chunk.tokens, chunk.cached, chunk.ends_prompt) for chunk in work.chunks)
        return self.price(work.decoding, work.context, chunks)

    def price(self, decoding: int, context: int, chunks: Pieces = ()) -> StepTime:
        """So many requests that decode, with `context` tokens before them in all, beside pieces of prompts."""
        key = (decoding, context, chunks)
        if key not in self._steps:
            if len(self._steps) > MOST_STEPS:
                self._steps.clear()
            self._steps[key] = self._piped(Load(decoding, context, chunks))
        return self._steps[key]

    def _piped(self, load: Load) -> StepTime:
        """As many parts as stages, one behind the other: a step takes the sum of a stage's work on all of them, or all
        stages of the longest where there are too few parts to keep the stages busy; a part is handed on between."""
        stages = self.layout.pp
        if stages == 1:
            return self._divided(load)
        found = [self._divided(part) for part in load.parts(stages)]
        longest = max(found, key=lambda each: each.seconds)
        total = sum(each.seconds for each in found) / stages
        scale = max(total, longest.seconds) / sum(each.seconds for each in found)
        sent = (stages - 1) * self._handed_on(-(-load.rows // stages))
        joules = [each.joules for each in found]
        return StepTime(
            scale * sum(each.prompts for each in found), scale * sum(each.decoding for each in found),
            scale * sum(each.communication for each in found) + sent,
            None if None in joules else sum(each or 0.0 for each in joules),
        )  # fmt: skip

    def _divided(self, load: Load) -> StepTime:
        """Each device of the experts has its share of the requests; experts wait for the fullest."""
        parts = load.parts(self.layout.ep)
        fullest = self._sum(parts[0])
        if fullest.joules is None:
            return fullest
        return replace(fullest, joules=fullest.joules * sum(part.rows for part in parts) / parts[0].rows)

    def _sum(self, load: Load) -> StepTime:
        decoding, chunks, rows = load.decoding, load.chunks, load.rows
        last = decoding + sum(ends for _, _, ends in chunks)
        body, head = self._rows.at(rows), self._head.at(last)
        decode = self._decode.at(decoding, load.context / decoding) if decoding else (0.0, 0.0)
        prompts = [self._prompt.at(tokens, cached) for tokens, cached, _ in chunks]
        talk, talk_last = self._talk.at(rows), self._talk_last.at(last)
        alone = self._rows.at(decoding)
        more = body[0] - alone[0] if decoding else body[0]
        joules = sum(part[1] for part in (body, head, decode, *prompts, talk, talk_last)) * self.layout.tp
        return StepTime(
            more + sum(part[0] for part in prompts), alone[0] + head[0] + decode[0] if decoding else head[0],
            talk[0] + talk_last[0], joules if self._priced else None,
        )  # fmt: skip

    def _handed_on(self, rows: int) -> float:
        """What a stage sends to the next."""
        width = self.stages[-1].blocks[0].nodes[0].flow.per_row
        nbytes = -(-round(rows * width * stored_bits(self.numbers.activations) / 8) // self.layout.tp)
        pair = (self.layout.device(), self.layout.device(p=1))
        return self.network.collective_fs("send", nbytes, pair, self.numbers.activations) / FEMTOSECONDS

    # Closed form ------------------------------------------------------------------------------------------------------

    def closed_form(self, batch: int, prompt: int, output: int) -> float:
        """TPOT = step + (b-1)/osl · prefill: while one request makes its tokens, each of the others reads a prompt."""
        step = self.price(batch, round(batch * (prompt + output / 2))).seconds
        host = self.engine.host
        device = step
        own = float(host.step.amount + batch * host.request.amount)
        step = max(device, own) if host.overlap else device + own
        return step + (batch - 1) / output * self.price(0, 0, ((prompt, 0, True),)).seconds

    # Memory -----------------------------------------------------------------------------------------------------------

    def blocks_of(self, block: int) -> int:
        """Blocks of so many tokens that fit beside the weights; raises CapacityError where not even one does."""
        has = capacity(self.machine)
        weights = max(weight_bytes(stage, self.numbers) for stage in self.stages)
        working = self.working_bytes
        each = self.token_bytes * block
        if has is None:
            return MOST_ROWS
        room = has * self.engine.memory - weights - working
        if room < each:
            raise CapacityError(
                f"{self.model.name} in {self.numbers.words()} needs {data(weights)} for weights and {data(working)} to "
                f"work in on each of {self.devices}, and {self.engine.name} takes {self.engine.memory:.0%} of "
                f"{data(has)} of {self.machine.name}; more devices (tp=, pp=), weights=fp8 or a larger machine would "
                "help"
            )
        return int(room // each) * self.layout.ep

    @property
    def token_bytes(self) -> float:
        """Keys and values of one token on the device that keeps most of them."""
        return self.numbers.kv_bytes(max(kept_per_token(stage) for stage in self.stages))

    @cached_property
    def working_bytes(self) -> int:
        """Activations of the largest step."""
        widest = max(node.out.width for _, node in self.graph.nodes() if node.out.rows != LAST)
        return round(3 * self.numbers.activation_bytes(widest * self.engine.tokens))

    # Points of the curves ---------------------------------------------------------------------------------------------

    def _rows_at(self, rows: int) -> Pair:
        cost = self._price.decode(rows, 1)
        return self._parts(cost, lambda key: key not in self._mixing | self._heads)

    def _head_at(self, rows: int) -> Pair:
        return self._parts(self._price.decode(rows, 1), lambda key: key in self._heads)

    def _decode_at(self, batch: int, context: int) -> Pair:
        return self._parts(self._price.decode(batch, max(1, context)), lambda key: key in self._mixing)

    def _prompt_at(self, tokens: int, cached: int) -> Pair:
        return self._parts(self._price.prefill(tokens, 1, cached), lambda key: key in self._mixing)

    def _parts(self, cost: PassCost, wanted: Callable[[tuple[str, str]], bool]) -> Pair:
        """Seconds and joules of some operations of a step."""
        chosen = [each for each in cost.operations if wanted((each.block, each.name))]
        joules = [each.joules for each in chosen]
        if None in joules:
            self._priced = False
        return sum(each.seconds for each in chosen), sum(each or 0.0 for each in joules)

    def _exchanged(self, rows: int, *, last: bool) -> Pair:
        """What the devices tell each other in a step of so many rows."""
        if self.layout.tp * self.layout.ep == 1:
            return 0.0, 0.0
        repeats = {block.name: block.repeat for block in self.graph.blocks}
        total = sum(
            repeats[each.block] * self.exchange_s(each, rows)
            for each in self.graph.exchanges
            if (each.flow.rows == LAST) == last
        )
        return total, total * (static_watts(self.machine.energy) if self.machine.energy is not None else 0.0)

    def exchange_s(self, exchange: Exchange, rows: int) -> float:
        """One exchange, alone on the links of the first group of devices."""
        bits = stored_bits(self.numbers.activations)
        nbytes = round(rows * exchange.flow.per_row * bits / 8)
        experts = exchange.collective == "all_to_all"
        members = self.layout.expert_group() if experts else self.layout.tensor_group()
        if len(members) == 1:
            return 0.0
        fs = self.network.collective_fs(exchange.collective, nbytes, members, self.numbers.activations)
        return (2 if experts else 1) * fs / FEMTOSECONDS  # tokens go to their experts, and come back


MOST_STEPS = 20_000
"""Prices of steps that are remembered."""

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
            return open_loop(_rate(value), prompt, output, count, spread, seed)
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


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"rate={text}: a number is needed") from None
