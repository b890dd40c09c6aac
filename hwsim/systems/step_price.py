"""What a step of a served model costs on a group of devices: the price that the serving simulation asks for.

A step is one pass over all its tokens, those of prompts and those that are decoded. So products and everything that
goes row by row are priced once for all rows together; attention is priced apart, for decoding requests by their number
and mean context, for prompts by their new tokens and those before; what devices have to tell each other is played on
their links. Each of these is a smooth function of one or two numbers, known at the points of a grid (1, 2, 3, 4, 6, 8,
12, …) and taken as straight between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from hwsim.energy import static_watts
from hwsim.engine.outcome import FEMTOSECONDS
from hwsim.errors import CapacityError, InputError
from hwsim.models.count import kept_per_token
from hwsim.models.graph import LAST, Exchange, Graph
from hwsim.models.memory import capacity, weight_bytes
from hwsim.models.numbers import Numbers, stored_bits
from hwsim.models.price import StepCost, StepPrice
from hwsim.ops.model import Attention, LatentAttention, ModelWorkload
from hwsim.spec.machine import MachineSpec
from hwsim.systems.communicate import Network
from hwsim.systems.engine_spec import EngineSpec
from hwsim.systems.layout import check_heads
from hwsim.systems.scheduler import StepWork
from hwsim.systems.serve import StepTime
from hwsim.text import data

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


class Curve:
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
        self._curves: dict[int, Curve] = {}

    def at(self, first: int, second: float) -> Pair:
        place = bisect_right(GRID, second) - 1
        low = GRID[place]
        if low == second:
            return self._curve(low).at(first)
        high = GRID[place + 1]
        return _between(self._curve(low).at(first), self._curve(high).at(first), (second - low) / (high - low))

    def _curve(self, second: int) -> Curve:
        if second not in self._curves:
            self._curves[second] = Curve(lambda first: self._function(first, second))
        return self._curves[second]


@dataclass
class ServedModel:
    """A model on a group of devices that share it: `tp` divides heads and widths."""

    machine: MachineSpec
    model: ModelWorkload
    engine: EngineSpec
    network: Network
    tp: int = 1
    told: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        check_heads(self.model, self.tp)
        self.graph = Graph.of(self.model, self.tp)
        self.numbers = Numbers.of(self.model)
        if not self.graph.is_generative:
            raise InputError(f"{self.model.name} makes no tokens one by one; serving is for models that do")
        self._price = StepPrice(self.machine, self.graph, self.numbers, told=self.told)
        self._mixing = {
            (block.name, node.name)
            for block, node in self.graph.nodes()
            if isinstance(node.op, Attention | LatentAttention)
        }
        self._heads = {(block.name, node.name) for block, node in self.graph.nodes() if node.out.rows == LAST}
        self._rows = Curve(self._rows_at)
        self._head = Curve(self._head_at)
        self._decode = Surface(self._decode_at)
        self._prompt = Surface(self._prompt_at)
        self._talk = Curve(lambda rows: self._exchanged(rows, last=False))
        self._talk_last = Curve(lambda rows: self._exchanged(rows, last=True))
        self._steps: dict[tuple[object, ...], StepTime] = {}
        self._priced = True

    # What serving asks ------------------------------------------------------------------------------------------------

    @cached_property
    def idle_watts(self) -> float | None:
        """Power of the group while it waits."""
        return static_watts(self.machine.energy) * self.devices if self.machine.energy is not None else None

    @property
    def devices(self) -> int:
        return self.tp

    def step(self, work: StepWork) -> StepTime:
        chunks = tuple((chunk.tokens, chunk.cached, chunk.ends_prompt) for chunk in work.chunks)
        return self.price(work.decoding, work.context, chunks)

    def price(self, decoding: int, context: int, chunks: tuple[tuple[int, int, bool], ...] = ()) -> StepTime:
        """So many requests that decode, with `context` tokens before them in all, beside pieces of prompts: new tokens,
        tokens before them, and whether the prompt ends with them."""
        key = (decoding, context, chunks)
        if key not in self._steps:
            if len(self._steps) > MOST_STEPS:
                self._steps.clear()
            self._steps[key] = self._sum(decoding, context, chunks)
        return self._steps[key]

    def _sum(self, decoding: int, context: int, chunks: tuple[tuple[int, int, bool], ...]) -> StepTime:
        new = sum(tokens for tokens, _, _ in chunks)
        rows, last = decoding + new, decoding + sum(ends for _, _, ends in chunks)
        body, head = self._rows.at(rows), self._head.at(last)
        decode = self._decode.at(decoding, context / decoding) if decoding else (0.0, 0.0)
        prompts = [self._prompt.at(tokens, cached) for tokens, cached, _ in chunks]
        talk, talk_last = self._talk.at(rows), self._talk_last.at(last)
        alone = self._rows.at(decoding)
        more = body[0] - alone[0] if decoding else body[0]
        joules = sum(part[1] for part in (body, head, decode, *prompts, talk, talk_last)) * self.devices
        return StepTime(
            more + sum(part[0] for part in prompts), alone[0] + head[0] + decode[0] if decoding else head[0],
            talk[0] + talk_last[0], joules if self._priced else None,
        )  # fmt: skip

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
        weights = weight_bytes(self.graph, self.numbers)
        working = self.working_bytes
        each = self.token_bytes * block
        if has is None:
            return MOST_ROWS
        room = has * self.engine.memory - weights - working
        if room < each:
            raise CapacityError(
                f"{self.model.name} in {self.numbers.words()} needs {data(weights)} for weights and {data(working)} to "
                f"work in on each of {self.devices}, and {self.engine.name} takes {self.engine.memory:.0%} of "
                f"{data(has)} of {self.machine.name}; more devices (tp=), weights=fp8 or a larger machine would help"
            )
        return int(room // each)

    @property
    def token_bytes(self) -> float:
        """Keys and values of one token on one device."""
        return self.numbers.kv_bytes(kept_per_token(self.graph))

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

    def _parts(self, cost: StepCost, wanted: Callable[[tuple[str, str]], bool]) -> Pair:
        """Seconds and joules of some operations of a step."""
        chosen = [each for each in cost.operations if wanted((each.block, each.name))]
        joules = [each.joules for each in chosen]
        if None in joules:
            self._priced = False
        return sum(each.seconds for each in chosen), sum(each or 0.0 for each in joules)

    def _exchanged(self, rows: int, *, last: bool) -> Pair:
        """What the devices tell each other in a step of so many rows."""
        if self.devices == 1:
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
        members = range(self.devices)
        return self.network.collective_fs(exchange.collective, nbytes, members, self.numbers.activations) / FEMTOSECONDS


MOST_STEPS = 20_000
"""Prices of steps that are remembered."""
