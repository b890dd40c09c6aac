"""A small transformer, computed whole and computed shard by shard: a split is checked by its answer.

The model has layers of attention and of a gated network (or of experts), a table of words and a head. Split, every
device holds its share of the weights and computes with it alone; what passes between devices passes through the
messages of collectives (`exchange`), as it does in time. The two answers differ by the order of sums, and nothing else.

    tp  heads, inner widths and the vocabulary: partial sums are all-reduced, logits gathered
    sp  tokens, between the products of tp: partial sums are reduce-scattered, norms gathered
    pp  layers: activations are sent on
    ep  experts: tokens go to where their expert is, and come back (all-to-all)
    dp  sequences: gradients are all-reduced

A model on a system by name: its phases on all devices, the check of its split, and the search for a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwsim.errors import CapacityError, InputError
from hwsim.models.graph import ModelGraph
from hwsim.models.load import load_model
from hwsim.models.run import choose_kernels, phases_of
from hwsim.ops.model import ModelWorkload
from hwsim.record import NEVER_COMPARED
from hwsim.spec.variant import with_parameters
from hwsim.systems.collective import build_schedule, exchange
from hwsim.systems.communicate import Network
from hwsim.systems.parallel import NUMBERS, Parallel, ParallelLayout, ParallelStep, has_experts, layouts, make_layout
from hwsim.systems.spec import SystemSpec, alone, device_of, load_system

Array = NDArray[np.float64]
Weights = dict[str, Array]
HEAD_DIM, TOP_K = 4, 2
EPSILON = 1e-6


@dataclass(frozen=True)
class Small:
    """Sizes that a layout divides evenly, and random weights."""

    layers: int
    heads: int
    inner: int
    words: int
    experts: int
    sequences: int
    tokens: int = 5
    seed: int = 0

    @classmethod
    def of(cls, layout: ParallelLayout, *, experts: bool = False, seed: int = 0) -> Small:
        """The smallest model that has something for every device of a layout."""
        batch = 2 * layout.dp * layout.ep
        return cls(
            2 * layout.pp, 2 * layout.tp, 6 * layout.tp, 7 * layout.tp, 2 * layout.ep if experts else 0, batch,
            2 * layout.tp if layout.sp else 5, seed,
        )  # fmt: skip

    @property
    def width(self) -> int:
        return self.heads * HEAD_DIM

    def weights(self) -> Weights:
        chance = np.random.default_rng(self.seed)

        def some(*shape: int) -> Array:
            return chance.normal(0, 1 / np.sqrt(shape[-2]), shape)

        width, inner = self.width, self.inner
        found = {"words": some(self.words, width), "head": some(width, self.words)}
        for layer in range(self.layers):
            found |= {f"{layer}.{name}": some(width, width) for name in ("q", "k", "v", "o")}
            if self.experts:
                found[f"{layer}.router"] = some(width, self.experts)
                found[f"{layer}.gate"] = some(self.experts, width, inner)
                found[f"{layer}.up"] = some(self.experts, width, inner)
                found[f"{layer}.down"] = some(self.experts, inner, width)
            else:
                found |= {f"{layer}.gate": some(width, inner), f"{layer}.up": some(width, inner)}
                found[f"{layer}.down"] = some(inner, width)
        return found

    def text(self) -> NDArray[np.int64]:
        return np.random.default_rng((self.seed, 1)).integers(0, self.words, (self.sequences, self.tokens))


# The parts of a layer -------------------------------------------------------------------------------------------------


def norm(x: Array) -> Array:
    return x / _root(x)


def _root(x: Array) -> Array:
    return np.asarray(np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON))


def attention(x: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Causal attention of the heads whose weights are given; also the probabilities, for the way back."""
    heads = q.shape[1] // HEAD_DIM
    split = (*x.shape[:2], heads, HEAD_DIM)
    queries, keys, values = ((x @ w).reshape(split).transpose(0, 2, 1, 3) for w in (q, k, v))
    scores = queries @ keys.transpose(0, 1, 3, 2) / np.sqrt(HEAD_DIM)
    scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = (shares @ values).transpose(0, 2, 1, 3).reshape(*x.shape[:2], heads * HEAD_DIM)
    return mixed, shares


def gated(x: Array, gate: Array, up: Array) -> Array:
    inner: Array = x @ gate
    return np.asarray(inner / (1 + np.exp(-inner)) * (x @ up))


def chosen(x: Array, router: Array) -> tuple[NDArray[np.int64], Array]:
    """The experts of each token, best first, and their shares."""
    scores = x @ router
    top = np.argsort(-scores, axis=-1, kind="stable")[..., :TOP_K]
    weight = np.exp(np.take_along_axis(scores, top, -1))
    return top, weight / weight.sum(axis=-1, keepdims=True)


# Whole ----------------------------------------------------------------------------------------------------------------


def whole(small: Small, weights: Weights, text: NDArray[np.int64]) -> Array:
    """Logits of all tokens, on one device."""
    x = weights["words"][text]
    for layer in range(small.layers):
        own = {name: weights[f"{layer}.{name}"] for name in ("q", "k", "v", "o", "gate", "up", "down")}
        x = x + attention(norm(x), own["q"], own["k"], own["v"])[0] @ own["o"]
        h = norm(x)
        if small.experts:
            top, share = chosen(h, weights[f"{layer}.router"])
            out = np.zeros_like(x)
            for place in range(TOP_K):
                for expert in range(small.experts):
                    here = top[..., place] == expert
                    made = gated(h[here], own["gate"][expert], own["up"][expert]) @ own["down"][expert]
                    out[here] += share[..., place][here][:, None] * made
            x = x + out
        else:
            x = x + gated(h, own["gate"], own["up"]) @ own["down"]
    return norm(x) @ weights["head"]


# In shards ------------------------------------------------------------------------------------------------------------


def _collective(op: str, algorithm: str, arrays: Sequence[Array]) -> list[Array]:
    """A collective of arrays of one shape, through the messages of its schedule."""
    if len(arrays) == 1:
        return list(arrays)
    schedule = build_schedule(algorithm, op, len(arrays))
    assert schedule is not None
    shape = arrays[0].shape
    found = exchange(schedule, op, [array.ravel() for array in arrays])
    return [np.asarray(each, np.float64).reshape(shape) for each in found]


def all_reduce(arrays: Sequence[Array]) -> list[Array]:
    return _collective("all_reduce", "ring", arrays)


def gather_last(arrays: Sequence[Array]) -> Array:
    """Shards side by side along the last axis, as every device has them after an all-gather."""
    parts = len(arrays)
    if parts == 1:
        return arrays[0]
    held = [np.zeros((parts, *arrays[0].shape)) for _ in arrays]
    for rank, array in enumerate(arrays):
        held[rank][rank] = array
    return np.concatenate(list(_collective("all_gather", "ring", held)[0]), axis=-1)


def scatter_sum(arrays: Sequence[Array]) -> list[Array]:
    """The sum of partial results, to each device its tokens (the second axis)."""
    summed = _collective("reduce_scatter", "ring", [array.swapaxes(0, 1) for array in arrays])
    size = len(summed[0]) // len(arrays)
    return [each[rank * size : (rank + 1) * size].swapaxes(0, 1) for rank, each in enumerate(summed)]


def gather_tokens(arrays: Sequence[Array]) -> list[Array]:
    """All tokens on every device, from the share of each."""
    size = arrays[0].shape[1]
    held = []
    for rank, array in enumerate(arrays):
        room = np.zeros((size * len(arrays), array.shape[0], array.shape[2]))
        room[rank * size : (rank + 1) * size] = array.swapaxes(0, 1)
        held.append(room)
    return [each.swapaxes(0, 1) for each in _collective("all_gather", "ring", held)]


@dataclass(frozen=True)
class TensorGroup:
    """Devices that divide layers, and with `sp` the tokens between their products, too."""

    tp: int
    sp: int

    def summed(self, partial: Sequence[Array]) -> list[Array]:
        """What each device has of the sum of partial results."""
        return scatter_sum(partial) if self.sp else all_reduce(partial)

    def read(self, copies: Sequence[Array]) -> list[Array]:
        """What each device's products read: every token."""
        return gather_tokens(copies) if self.sp else list(copies)


def send(array: Array) -> Array:
    """To the next device in line."""
    return _collective("send", "direct", [array, np.zeros_like(array)])[1]


def columns(weight: Array, rank: int, parts: int) -> Array:
    size = weight.shape[-1] // parts
    return weight[..., rank * size : (rank + 1) * size]


def rows(weight: Array, rank: int, parts: int) -> Array:
    size = weight.shape[-2] // parts
    return weight[..., rank * size : (rank + 1) * size, :]


def in_shards(small: Small, weights: Weights, text: NDArray[np.int64], layout: ParallelLayout) -> Array:
    """The same logits, every device with its share of weights and sequences."""
    tp, groups, team = layout.tp, layout.dp * layout.ep, TensorGroup(layout.tp, layout.sp)
    parts = np.split(text, groups)
    # the table of words is divided by rows: who does not have a word adds nothing
    x = [team.summed([_looked_up(weights["words"], part, t, tp) for t in range(tp)]) for part in parts]
    each_stage = small.layers // layout.pp
    for layer in range(small.layers):
        if layer and layer % each_stage == 0:
            x = [[send(copy) for copy in copies] for copies in x]
        x = [_attention_sharded(weights, layer, copies, team) for copies in x]
        if small.experts:
            for first in range(0, groups, layout.ep):
                last = first + layout.ep
                x[first:last] = _experts_sharded(small, weights, layer, x[first:last], team)
        else:
            x = [_gated_sharded(weights, layer, copies, team) for copies in x]
    top = [team.read([norm(copy) for copy in copies]) for copies in x]
    made = [gather_last([copy @ columns(weights["head"], t, tp) for t, copy in enumerate(c)]) for c in top]
    return np.concatenate(made)


def _looked_up(table: Array, text: NDArray[np.int64], rank: int, parts: int) -> Array:
    size = table.shape[0] // parts
    local = text - rank * size
    here = (local >= 0) & (local < size)
    own: Array = table[rank * size : (rank + 1) * size][np.where(here, local, 0)]
    return np.where(here[..., None], own, 0.0)


def _attention_sharded(weights: Weights, layer: int, copies: list[Array], team: TensorGroup) -> list[Array]:
    partial, tp = [], team.tp
    for t, h in enumerate(team.read([norm(copy) for copy in copies])):
        q, k, v = (columns(weights[f"{layer}.{name}"], t, tp) for name in ("q", "k", "v"))
        partial.append(attention(h, q, k, v)[0] @ rows(weights[f"{layer}.o"], t, tp))
    return [copy + total for copy, total in zip(copies, team.summed(partial), strict=True)]


def _gated_sharded(weights: Weights, layer: int, copies: list[Array], team: TensorGroup) -> list[Array]:
    partial, tp = [], team.tp
    for t, h in enumerate(team.read([norm(copy) for copy in copies])):
        gate, up = (columns(weights[f"{layer}.{name}"], t, tp) for name in ("gate", "up"))
        partial.append(gated(h, gate, up) @ rows(weights[f"{layer}.down"], t, tp))
    return [copy + total for copy, total in zip(copies, team.summed(partial), strict=True)]


def _experts_sharded(
    small: Small, weights: Weights, layer: int, groups: list[list[Array]], team: TensorGroup
) -> list[list[Array]]:
    """Tokens go to the devices of their experts and come back; the inner width of an expert is divided by tp."""
    ep, tp = len(groups), team.tp
    own = small.experts // ep
    read = [team.read([norm(copy) for copy in copies]) for copies in groups]
    totals = [[np.zeros_like(copy) for copy in copies] for copies in groups]
    for place in range(TOP_K):
        partial: list[list[Array]] = [[] for _ in groups]
        for t in range(tp):
            flat = [copies[t].reshape(-1, small.width) for copies in read]
            picks = [chosen(tokens, weights[f"{layer}.router"]) for tokens in flat]
            # for each other device a buffer with room for all tokens; those that stay at home are zeros
            homes = [[top[:, place] // own == e for e in range(ep)] for top, _ in picks]
            sent = [
                np.stack([np.where(home[:, None], tokens, 0.0) for home in each])
                for tokens, each in zip(flat, homes, strict=True)
            ]
            which = [
                np.stack([np.where(home, top[:, place], -1) for home in each])
                for (top, _), each in zip(picks, homes, strict=True)
            ]
            came = _collective("all_to_all", "direct", sent)
            labels = _collective("all_to_all", "direct", [each.astype(float) for each in which])
            made = [_own_experts(weights, layer, t, tp, e * own, own, came[e], labels[e]) for e in range(ep)]
            back = _collective("all_to_all", "direct", made)
            for e, (_, share) in enumerate(picks):
                partial[e].append(back[e].sum(axis=0) * share[:, place][:, None])
        for e in range(ep):
            shaped = [each.reshape(read[e][0].shape) for each in partial[e]]
            for t, total in enumerate(team.summed(shaped)):
                totals[e][t] += total
    return [[copy + total for copy, total in zip(*pair, strict=True)] for pair in zip(groups, totals, strict=True)]


def _own_experts(
    weights: Weights, layer: int, t: int, tp: int, first: int, count: int, tokens: Array, labels: Array
) -> Array:
    """What the experts of one device make of the tokens that came."""
    made = np.zeros_like(tokens)
    for expert in range(first, first + count):
        here = labels == expert
        gate, up = (columns(weights[f"{layer}.{name}"][expert], t, tp) for name in ("gate", "up"))
        made[here] = gated(tokens[here], gate, up) @ rows(weights[f"{layer}.down"][expert], t, tp)
    return made


# Gradients ------------------------------------------------------------------------------------------------------------


def gradients(small: Small, weights: Weights, text: NDArray[np.int64], count: int) -> Weights:
    """Derivatives of Σ logits² / (2 count) by all weights of a model without experts, from the last to the first."""
    x, kept = weights["words"][text], []
    for layer in range(small.layers):
        q, k, v, o, gate, up, down = (weights[f"{layer}.{n}"] for n in ("q", "k", "v", "o", "gate", "up", "down"))
        h = norm(x)
        mixed, shares = attention(h, q, k, v)
        middle = x + mixed @ o
        g = norm(middle)
        kept.append((x, h, mixed, shares, middle, g))
        x = middle + gated(g, gate, up) @ down
    top = norm(x)
    logits = top @ weights["head"]
    found: Weights = {}
    back = logits / count
    found["head"] = _outer(top, back)
    back = _norm_back(x, back @ weights["head"].T)
    for layer in reversed(range(small.layers)):
        x, h, mixed, shares, middle, g = kept[layer]
        q, k, v, o, gate, up, down = (weights[f"{layer}.{n}"] for n in ("q", "k", "v", "o", "gate", "up", "down"))
        inner, other = g @ gate, g @ up
        sigmoid = 1 / (1 + np.exp(-inner))
        found[f"{layer}.down"] = _outer(inner * sigmoid * other, back)
        into = back @ down.T
        to_gate = into * other * sigmoid * (1 + inner * (1 - sigmoid))
        to_up = into * inner * sigmoid
        found[f"{layer}.gate"], found[f"{layer}.up"] = _outer(g, to_gate), _outer(g, to_up)
        back = back + _norm_back(middle, to_gate @ gate.T + to_up @ up.T)
        found[f"{layer}.o"] = _outer(mixed, back)
        to_q, to_k, to_v = _attention_back(h, q, k, v, shares, back @ o.T)
        found |= {f"{layer}.q": _outer(h, to_q), f"{layer}.k": _outer(h, to_k), f"{layer}.v": _outer(h, to_v)}
        back = back + _norm_back(x, to_q @ q.T + to_k @ k.T + to_v @ v.T)
    found["words"] = np.zeros_like(weights["words"])
    np.add.at(found["words"], text, back)
    return found


def _outer(x: Array, back: Array) -> Array:
    return x.reshape(-1, x.shape[-1]).T @ back.reshape(-1, back.shape[-1])


def _norm_back(x: Array, back: Array) -> Array:
    scale = 1 / _root(x)
    return np.asarray(scale * back - x * scale**3 * np.mean(x * back, axis=-1, keepdims=True))


def _attention_back(h: Array, q: Array, k: Array, v: Array, shares: Array, back: Array) -> tuple[Array, Array, Array]:
    batch, tokens, width = back.shape
    split = (batch, tokens, width // HEAD_DIM, HEAD_DIM)
    queries, keys, values, into = (each.reshape(split).transpose(0, 2, 1, 3) for each in (h @ q, h @ k, h @ v, back))
    to_shares = into @ values.transpose(0, 1, 3, 2)
    to_scores = shares * (to_shares - np.sum(to_shares * shares, axis=-1, keepdims=True)) / np.sqrt(HEAD_DIM)
    found = (to_scores @ keys, to_scores.transpose(0, 1, 3, 2) @ queries, shares.transpose(0, 1, 3, 2) @ into)
    joined = [each.transpose(0, 2, 1, 3).reshape(batch, tokens, width) for each in found]
    return joined[0], joined[1], joined[2]


def gradients_in_shards(small: Small, weights: Weights, text: NDArray[np.int64], dp: int) -> Weights:
    """Every device takes its share of the sequences; gradients are all-reduced, tensor by tensor."""
    own = [gradients(small, weights, part, text.size) for part in np.split(text, dp)]
    return {name: all_reduce([each[name] for each in own])[0] for name in own[0]}


# The check ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitCheck:
    """How far the split model is from the whole one, relative to the largest number of the answer."""

    words: str
    logits: float
    gradients: float | None
    """Of data parallelism; None where nothing is divided that way."""

    @property
    def passed(self) -> bool:
        return max(self.logits, self.gradients or 0.0) <= TOLERANCE


TOLERANCE = 1e-11
"""Sums in another order, in float64, through some layers."""


def check_split(layout: ParallelLayout, *, experts: bool = False, seed: int = 0) -> SplitCheck:
    """Compute a small transformer whole and in shards."""
    small = Small.of(layout, experts=experts or layout.ep > 1, seed=seed)
    weights, text = small.weights(), small.text()
    reference = whole(small, weights, text)
    logits = _far(in_shards(small, weights, text, layout), reference)
    words = f"{small.layers} layers, {small.heads} heads, {small.sequences} sequences"
    if layout.dp == 1 or small.experts:
        return SplitCheck(words, logits, None)
    one, many = gradients(small, weights, text, text.size), gradients_in_shards(small, weights, text, layout.dp)
    return SplitCheck(words, logits, max(_far(many[name], one[name]) for name in one))


def _far(found: Array, reference: Array) -> float:
    return float(np.max(np.abs(found - reference)) / np.max(np.abs(reference)))


DIVIDED = f"{NEVER_COMPARED} (steps of a model on several devices)"
"""What a time and an energy of a divided model rest on."""
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
            "compared": DIVIDED, "steps": [{**step.to_dict(), "times": times} for step, times in self.steps],
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


def run_alone(run: SystemRun) -> SystemRun:
    """The same model on one of the devices, whether or not it has room: what several are compared with."""
    one = alone(run.system.machine)
    return run_layout(run.model, one, ParallelLayout(), Network(one))


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
