"""A product of matrices as a pass over tiles: of all that fit, those with the least time, energy or traffic.

Tiles of A[m,k], B[k,n] and C[m,n] are walked by three loops. What is in a scratchpad of an operand is one tile, a row
of tiles along its inner loop, or all of it; it is fetched again for each iteration of a loop around that it does not
depend on. All combinations of tile sizes, loop orders and pieces kept are laid out in arrays and compared at once.
Equal times are decided by energy, equal energies by bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import ceil, inf, isqrt, prod
from typing import Any

import numpy as np

from hwsim.errors import CapacityError
from hwsim.numerics.format import find_format
from hwsim.program.contraction import Box, GemmShape, GemmView, footprint, neighbours, slides
from hwsim.program.loops import Operand
from hwsim.spec.workload import MappingSpec
from hwsim.targets.systolic.agent import least_alone, play_alone
from hwsim.targets.systolic.estimate import EQUAL, Goal, TilingEstimates, about
from hwsim.targets.systolic.model import ALONG, ROLES, Allocation, Chip, Role, room
from hwsim.targets.systolic.tiling import (
    NEVER,
    ORDERS,
    PIECES,
    RELEVANT,
    ROW,
    TILE,
    WHOLE,
    ArrayPass,
    ArrayWork,
    Counts,
    Cut,
    Move,
    OperandStorage,
    TileStep,
    Tiling,
    cut_to,
    cuts,
    fetch,
    fold_tile,
    nested,
    patches,
    work_of,
)
from hwsim.trace.nest import Size
from hwsim.units import format_bytes

MOST_BUFFERS, PROMOTED = 16, 8
BATCH_STEPS = 8
"""Products that each fit in one tile are taken together, but at least so many steps are left to overlap."""
MOST_PLAYED, LONGEST, SURE, LONG = 600, 4096, 0.93, 0.85
"""Choices are played as long as they have so few steps together, and of those with so few each the one that promises
most; not those whose estimate is so much longer than what another one took, since estimates are nearer to the truth
than that. One that is too long to be played has to promise more."""
MOST_KNOWN = 1024
PAGE = 4096
"""Bytes whose addresses are translated together."""
TIE = 0.01
"""Of choices whose times differ by no more, when played, the one that takes the least energy is taken."""
OPEN = MappingSpec()
"""All choices left to the search."""
Shape = tuple[int, int, int, int, int, int, int, bool]
"""A tile's extents, those whose time it takes, how many of it, and whether earlier sums are added to."""


class TilingSearch:
    """All ways to cut one product, as arrays over (order, piece, m, n, k)."""

    def __init__(self, chip: Chip, view: GemmView, number: int, places: Allocation) -> None:
        self.chip, self.view, self.number, self.places = chip, view, number, places
        self.room = room(chip, places, number)
        self.sum_bits = find_format(chip.sum_format).bits
        self.extents = view.loop.extents
        self.batches = prod(self.extents[index] for index in view.batch)
        self.batch_steps = BATCH_STEPS
        self.anew = False
        """Whether each tile loads all its inputs and weights."""
        self.operands: dict[Role, Operand] = {"input": view.input, "weight": view.weight, "output": view.output}
        self.skipped = {} if chip.unit.gathers else _skipped(view)
        """By how many positions a window moves on at a time, along each axis: what it skips comes along."""
        self.storage = {
            role: OperandStorage(places.bits[each.tensor], places.level[each.tensor])
            for role, each in self.operands.items()
        }
        self.slides = slides(view.input, self.extents)
        """Whether neighbouring tiles of the input share bytes, as those of a convolution do."""
        self.works: dict[Shape, tuple[tuple[ArrayWork, ArrayWork], Counts]] = {}
        """What tiles of a shape take, in cells that load a stationary tile and in cells that have it, and touch."""
        self._plain = {"input": not self.slides, "weight": not slides(view.weight, self.extents)}

    def choices(self, asked: MappingSpec, goal: Goal = "time") -> list[Tiling]:
        """The best that fit, the very best first; raises CapacityError if nothing fits."""
        self.anew = asked.reuse == "none"
        tried = {name: self._cuts(name, getattr(asked, f"tile_{name}"), asked.box) for name in "mnk"}
        table = TilingEstimates(self, tried, ORDERS if asked.order == "auto" else (asked.order,))
        found: dict[tuple[object, ...], Tiling] = {}
        for choice in table.best(goal, self._buffers(asked.buffers)):
            found.setdefault(choice.alike(), choice)
        if not found:
            raise self._too_large(tried, self._buffers(asked.buffers)[0])
        if goal != "time":
            return list(found.values())
        for buffers in self._buffers(asked.buffers):  # what moves least is often near the best, whatever is estimated
            for choice in table.best("traffic", [buffers], most=1):
                found.setdefault(choice.alike(), replace(choice, sure=True))
        promoted = sorted(found.values(), key=lambda each: (not each.sure, each.estimate))[:PROMOTED]
        for choice in () if self.anew else promoted:
            more = self._keeping_more(choice)
            found.setdefault(more.alike(), more)
        refined = [self._by_size(each) for each in found.values()]
        return sorted(refined, key=lambda each: (about(each.estimate), about(each.energy), each.traffic, each.steps))

    def whole(self, asked: MappingSpec) -> _Walk | None:
        """All of it as one tile, if that fits and takes no longer than the folds alone: nothing can be better then."""
        open_else = asked == OPEN or asked == MappingSpec(dataflow=asked.dataflow, keep=asked.keep)
        if not open_else or self.batches > 1 or self._patches("m"):
            return None
        cuts = {name: Cut(extents, extents) for name in "mnk" for extents in [self._extents_of(name)]}
        choice = Tiling(cuts, ORDERS[0], dict.fromkeys(ROLES, WHOLE), self._buffers(None)[-1], 0, 0.0)
        if not self._fits(choice):
            return None
        walk = _Walk(self, choice)
        (step,) = walk.as_pass.steps
        timed = GemmShape(*(self.streamed(name, cuts[name].box) for name in "mnk"))
        most = self.chip.array.cycles(*self.chip.array.share(timed, 1, self.chip.unit.count)) * (1 + EQUAL)
        least, exact = least_alone(self.chip, step)
        return walk if least <= most and (exact or play_alone(self.chip, walk.as_pass, most) <= most) else None

    def _keeping_more(self, choice: Tiling) -> Tiling:
        """The same tiles with as much of each operand kept as there is room for: what has come need not make room."""
        best = choice
        for kept in product(reversed(PIECES), repeat=len(ROLES)):
            if sum(kept) <= sum(best.pieces.values()):
                continue
            more = replace(choice, pieces=dict(zip(ROLES, kept, strict=True)))
            if self._fits(more):
                best = more
        return best

    def _fits(self, choice: Tiling) -> bool:
        return all(nbytes <= self.room[name] for name, nbytes in self.held(choice).items())

    def moves(self, role: Role) -> bool:
        """Whether an operand lies somewhere else than in its scratchpad."""
        return self.storage[role].level != self.chip.pads[role].name

    def streamed(self, name: str, box: Box) -> int:
        """Iterations of a group whose time a tile takes: more than it has where commands stream few rows each, or where
        a fold takes the channels of one position of a window alone."""
        unit, size = self.chip.unit, prod(box.values())
        if self.chip.array.dataflow != "ws":
            return size
        if name == "k" and not unit.gathers:
            channels = box[self.view.k[-1]] if box else 1
            return size // channels * -(-channels // unit.rows) * unit.rows
        if name != "m" or unit.command is None:
            return size
        run = box[self.view.m[-1]] if box else 1
        whole, rest = divmod(run, unit.rows)
        last = max(rest, min(unit.rows, unit.command.base + unit.command.row * rest)) if rest else 0
        return ceil(size // run * (whole * unit.rows + last))

    def padded(self, role: Role, box: Box, nbytes: int, *, store: bool = False) -> int:
        """Bytes that a DMA engine could have moved in the time that a tile of an operand takes."""
        dma = self.chip.unit.dma
        if dma.request is None or self.storage[role].level != self.chip.dram.name:
            return nbytes
        run, step = neighbours(self.operands[role], box)
        if store and dma.writers is not None:  # a request holds a row of results; those of an image one fold's columns
            columns = self.chip.array.columns * self.storage[role].bits // 8
            run = min(run, dma.request if len(self.view.m) == 1 else columns)
            return ceil(nbytes * dma.request / run)
        taken = -(-run // dma.request) * dma.request + min(step / PAGE, -(-run // PAGE)) * self.chip.page_bytes
        return ceil(nbytes * taken / run)

    def held(self, choice: Tiling, together: int = 1) -> dict[str, int]:
        """What pieces of so many products take in each scratchpad, each as often as it lies there."""
        taken: dict[str, int] = {}
        for role in filter(self.moves, ROLES):
            cuts = choice.kept(role)
            piece = self.bytes_of(role, *cuts) * together
            only = all(cut.tiles == 1 for cut in cuts) and self.batches == together
            pad, copies = self.chip.pads[role].name, 1 if only else self.copies(role, choice.buffers, piece)
            taken[pad] = taken.get(pad, 0) + piece * copies
        return taken

    def _by_size(self, choice: Tiling) -> Tiling:
        """With tiles at the edge looked at apart: transfers that they have no need of help no other tile."""
        array, chip, speed = self.chip.array, self.chip, self.chip.dram_speed
        trips = {name: cut.tiles for name, cut in choice.cuts.items()}
        per_element = self._bytes_per_element(choice)
        streamed = ALONG[array.dataflow][2]
        expected = computing = moving = 0.0
        for boxes in product(*(choice.cuts[name].boxes() for name in "mnk")):
            size = {name: prod(box.values()) for name, (box, _) in zip("mnk", boxes, strict=True)}
            count = prod(times for _, times in boxes)
            timed = [self.streamed(name, box) for name, (box, _) in zip("mnk", boxes, strict=True)]
            folds, stream = array.share(GemmShape(*timed), 1, chip.unit.count)
            stays = folds == 1 and choice.order[-1] == streamed
            anew = 1.0 / trips[streamed] if stays else 1.0  # of these tiles, so many bring a stationary tile
            cycles = folds * array.interval(stream)
            moved = sum(each * size[RELEVANT[r][0]] * size[RELEVANT[r][1]] for r, each in per_element.items()) / speed
            least = moved if choice.buffers > 1 else 0.0
            expected += count * (anew * max(cycles, least) + (1.0 - anew) * max(stream, least))
            computing += count * (anew * cycles + (1.0 - anew) * stream)
            moving += count * moved
        if choice.steps == 1 and self.batches > 1:  # several products come together
            return choice
        edges = 0 if array.folding == "serial" else array.fill_cycles + array.drain_cycles - array.rows
        floor = self.batches * max(computing + edges, moving)
        return replace(choice, estimate=max(choice.estimate, self.batches * expected, floor), floor=floor)

    def _bytes_per_element(self, choice: Tiling) -> dict[Role, float]:
        """Bytes to and from main memory for an element of each operand's tile, every time a tile is worked on."""
        found: dict[Role, float] = {}
        for role in ROLES:
            if self.storage[role].level != self.chip.dram.name:
                continue
            other = choice.cuts[RELEVANT[role][2]].tiles
            if role == "output":
                spills = choice.outside(role) and other > 1
                found[role] = self.storage[role].bits / 8 / other
                found[role] += 2 * self.sum_bits / 8 * (1 - 1 / other) if spills else 0.0
                continue
            first, second = choice.kept(role)
            once = self.bytes_of(role, first, second) / (first.size * second.size)
            found[role] = once if choice.outside(role) else once / other
        return found

    def _buffers(self, asked: int | None) -> list[int]:
        """One, two, or more where a scratchpad holds nothing but one operand."""
        most = max((2 if self.chip.pads[role].buffers == 2 else 1) for role in ROLES)
        if most == 2 and any(self.alone(role) for role in ROLES):
            most = MOST_BUFFERS
        counts = [count for count in (1, 2, 4, 16) if count <= most]
        return [count for count in counts if asked is None or min(count, 2) == asked] or [1]

    def copies(self, role: Role, buffers: int, piece: Any) -> Any:
        """How many pieces of an operand lie in its scratchpad at once; `piece` are the bytes of one, or many of them.

        Beyond two, as many as there is room for where the scratchpad holds nothing else, each for itself.
        """
        pad = self.chip.pads[role]
        few = buffers <= 2 or pad.buffers == 1 or not self.alone(role)
        if isinstance(piece, int):
            most = self.room[pad.name] // max(piece, 1)
            return min(buffers, pad.buffers) if few else min(max(most, 2), buffers)
        if few:
            return np.full(np.shape(piece), min(buffers, pad.buffers))
        return np.clip(self.room[pad.name] // np.maximum(piece, 1), 2, buffers)

    def _cuts(self, name: str, asked: int | None, box: Box) -> list[Cut]:
        extents = self._extents_of(name)
        if extents.keys() & box.keys():
            return [Cut(extents, {index: min(extent, box.get(index, extent)) for index, extent in extents.items()})]
        if asked is not None:
            return [cut_to(extents, asked)]
        return cuts(extents, self._side(name)) + self._patches(name)

    def _extents_of(self, name: str) -> dict[str, int]:
        return {index: self.extents[index] for index in getattr(self.view, name)}

    def _side(self, name: str) -> int:
        """The side of the array that a loop lies along; the longer one for what streams."""
        array = self.chip.array
        along_rows, along_columns, _ = ALONG[array.dataflow]
        return {along_rows: array.rows, along_columns: array.columns}.get(name, max(array.rows, array.columns))

    def _patches(self, name: str) -> list[Cut]:
        return patches(self._extents_of(name), self._side(name)) if name == "m" and self.slides else []

    def bytes_of(self, role: Role, first: Cut, second: Cut) -> int:
        """A piece of an operand in its scratchpad; sums lie there in the accumulator's format."""
        if role == "output":
            return -(-first.size * second.size * self.sum_bits // 8)
        if role == "weight" and self.chip.unit.whole_tiles:
            return self.whole_tiles(first.size, second.size)
        if self._plain[role]:
            return -(-first.size * second.size * self.storage[role].bits // 8)
        return self.footprint(role, {**first.box, **second.box})

    def footprint(self, role: Role, box: Box) -> int:
        """Bytes that a box of indices brings."""
        operand = self.operands[role]
        if role == "input" and self.skipped:
            box = {i: (extent - 1) * self.skipped.get(i, 1) + 1 for i, extent in box.items()}
            steps: dict[str, Size] = {
                i: Fraction(stride) / self.skipped.get(i, 1) for i, stride in operand.strides.items()
            }
            operand = replace(operand, strides=steps)
        return footprint(operand, box, self.storage[role].bits)

    def whole_tiles(self, k: int, n: int) -> int:
        rows, columns = self.chip.array.rows, self.chip.array.columns
        elements = -(-k // rows) * rows * -(-n // columns) * columns
        return -(-elements * self.storage["weight"].bits // 8)

    def alone(self, role: Role) -> bool:
        """Whether a scratchpad holds nothing but this operand: then it is filled with as many pieces as fit."""
        return [each for each in ROLES if self.chip.pads[each] is self.chip.pads[role]] == [role]

    def _too_large(self, tried: Mapping[str, Sequence[Cut]], buffers: int) -> CapacityError:
        smallest = {name: found[0] for name, found in tried.items()}
        for pad in self.chip.scratchpads:
            roles = [role for role in ROLES if self.chip.pads[role] is pad and self.moves(role)]
            copies = min(buffers, pad.buffers)
            pieces = [self.bytes_of(role, *(smallest[i] for i in RELEVANT[role][:2])) for role in roles]
            needed = copies * sum(pieces)
            if needed > self.room[pad.name]:
                break
        else:
            raise AssertionError("something fits after all")
        bits = sum(self.sum_bits if role == "output" else self.storage[role].bits for role in roles)
        side = isqrt(max(0, self.room[pad.name]) * 8 // (bits * copies))
        shape = " x ".join(f"{name} {smallest[name].size}" for name in "mnk")
        taken = self.room[pad.name] != pad.size
        has = f"which has {format_bytes(pad.size)}" + (
            f", {format_bytes(self.room[pad.name])} of it free" if taken else ""
        )
        return CapacityError(
            f"{self.view.loop.name}: a tile of {shape} needs {format_bytes(needed)} in {pad.name} "
            f"({', '.join(roles)}{', two of each' if copies > 1 else ''}), {has}; "
            + (f"the largest square tile that fits is {side}" if side else "not even one element fits")
        )


@dataclass(frozen=True)
class GroupTile:
    """One tile of one group: its number, its iterations, and how many of each index."""

    number: int
    size: int
    box: Mapping[str, int]


def map_product(
    chip: Chip,
    view: GemmView,
    number: int,
    places: Allocation,
    asked: MappingSpec,
    goal: Goal = "time",
) -> ArrayPass:
    """Choose tiles, and write down what each of them loads, computes and stores.

    For the time, the best choices are played, as long as one that was not played might be faster.
    """
    search = TilingSearch(chip, view, number, places)
    key = (goal, "" if asked == OPEN else repr(asked), *_alike(search))
    if key in chip.known:
        return _Walk(search, chip.known[key]).as_pass
    walk = search.whole(asked) if goal == "time" else None
    if walk is None:
        choices = search.choices(asked, goal)
        walk = _Walk(search, choices[0]) if goal != "time" or len(choices) == 1 else _played(search, choices)
    if len(chip.known) >= MOST_KNOWN:
        chip.known.clear()
    chip.known[key] = walk.choice
    return walk.as_pass


def _alike(search: TilingSearch) -> tuple[object, ...]:
    """The same for products that take equally long whatever is chosen: all that a search and a trial look at."""
    view, places = search.view, search.places
    operation = view.loop.operation
    operands = [
        (
            *each.strides.items(),
            *each.far.items(),
            each.gather and repr(each.gather),
            places.level[each.tensor],
            places.bits[each.tensor],
        )
        for each in (view.input, view.weight, view.output, *operation.late)
    ]
    groups = (view.batch, view.m, view.n, view.k, *view.loop.extents.items())
    return groups, *operands, view.loop.late_body, operation.continues, *search.room.items()


def _played(search: TilingSearch, choices: Sequence[Tiling]) -> _Walk:
    """The choice that is over first when it is played alone; of those that are equal, the one of the best rank."""
    played: list[tuple[float, _Walk]] = []
    shortest, left = inf, MOST_PLAYED
    promising = next((each for each in choices if each.steps * search.batches <= LONGEST), None)
    for choice in sorted(choices, key=lambda each: not each.sure):
        first = choice is promising
        least = max(0.0 if choice.sure else SURE * choice.estimate, choice.floor * (1 + EQUAL))
        most = LONGEST if first else MOST_PLAYED if choice.sure else left
        if choice.steps * search.batches > most or (least >= shortest and not first):
            continue
        walk = _Walk(search, choice)
        steps = len(walk.as_pass.steps)
        left -= 0 if choice.sure or steps > MOST_PLAYED else steps
        played.append((play_alone(search.chip, walk.as_pass, shortest * (1 + TIE)), walk))
        shortest = min(shortest, played[-1][0])
    tried = [walk.choice for _, walk in played]
    if choices[0] not in tried and (not played or choices[0].estimate < LONG * shortest):  # too long to be played
        return _Walk(search, choices[0])
    return min((each for each in played if each[0] <= shortest * (1 + TIE)), key=_rank)[1]


def _rank(played: tuple[float, _Walk]) -> tuple[float, ...]:
    """Energy, then bytes; then two buffers rather than one, for they let loads run ahead of the pass before."""
    cycles, choice = played[0], played[1].choice
    return about(choice.energy), choice.traffic, -min(2, choice.buffers), choice.steps, cycles


class _Walk:
    """The tiles of a product in their order."""

    def __init__(self, search: TilingSearch, choice: Tiling) -> None:
        self.chip, self.view, self.search, self.choice = search.chip, search.view, search, choice
        self.number, self.places = search.number, search.places
        self.counts = Counts()
        self.tiles = {name: _tiles(choice.cuts[name]) for name in "mnk"}
        self._streamed = {name: [search.streamed(name, tile.box) for tile in self.tiles[name]] for name in "mnk"}
        batches = {i: search.extents[i] for i in self.view.batch}
        self.batches = cut_to(batches, self._together()) if batches else Cut(batches, batches)
        self.together = self.batches.size
        self._bytes: dict[tuple[object, ...], int] = {}
        self._pieces: Counter[Role] = Counter()
        self._last: dict[Role, tuple[int, ...]] = {}
        self._batch = 0
        self._outside = {role: choice.outside(role) for role in ROLES}
        self._tensor = {role: search.operands[role].tensor for role in ROLES}
        self._after = {
            role: -1 if role == "output" else self.places.producer(self._tensor[role], self.number) for role in ROLES
        }
        self._times: Counter[Shape] = Counter()
        self._works = search.works

    @cached_property
    def as_pass(self) -> ArrayPass:
        choice = self.choice
        return ArrayPass(
            number=self.number,
            name=self.view.loop.name,
            unit="array",
            steps=list(self._steps()),
            ahead=self._ahead(),
            counts=self.counts,
            needs=self._needs(),
            held=self.search.held(choice, self.together),
            tile={name: choice.cuts[name].size for name in "mnk"},
            order=choice.order,
            buffers=min(2, choice.buffers),
        )

    def _needs(self) -> tuple[int, ...]:
        """Passes whose results are read where they lie."""
        still = [self._tensor[role] for role in ROLES if not self.search.moves(role)]
        still += [operand.tensor for operand in self.view.loop.operation.late]
        return self.places.producers(still, self.number)

    def _ahead(self) -> dict[Role, int]:
        """One tile ahead with two buffers, more where more fit, any number where nothing has to make room."""
        found, choice = {}, self.choice
        for role in ROLES:
            piece = self.search.bytes_of(role, *choice.kept(role)) * self.together
            copies = self.search.copies(role, choice.buffers, piece)
            whole = choice.pieces[role] == WHOLE and self.search.batches == self.together
            found[role] = NEVER if whole and copies > 1 else copies
        if choice.buffers > 1 and not self._outside["output"]:  # results leave tile by tile
            _, inner = nested("output", choice.order)
            parts = {TILE: 1, ROW: choice.cuts[inner].tiles, WHOLE: choice.cuts["m"].tiles * choice.cuts["n"].tiles}
            found["output"] *= parts[choice.pieces["output"]]
        return found

    def _together(self) -> int:
        """How many small products make up one tile."""
        count = self.search.batches
        if any(len(tiles) > 1 for tiles in self.tiles.values()) or count == 1:
            return 1
        most = max(1, count // BATCH_STEPS)
        for pad in self.chip.scratchpads:
            roles = [role for role in ROLES if self.chip.pads[role] is pad and self.search.moves(role)]
            needed = sum(
                self.search.bytes_of(role, *(self.choice.cuts[i] for i in RELEVANT[role][:2]))
                * min(self.choice.buffers, pad.buffers)
                for role in roles
            )
            most = min(most, self.search.room[pad.name] // needed) if needed else most
        return max(1, most)

    def _steps(self) -> Iterator[TileStep]:
        order = self.choice.order
        before: tuple[int, ...] | None = None
        for batch in _tiles(self.batches):
            self._batch = batch.number
            for corner in product(*(self.tiles[name] for name in order)):
                here = dict(zip(order, corner, strict=True))
                stationary = (batch.number, *self._stationary(here))
                work = self._work(here, batch.size, before == stationary)
                before = stationary
                yield self._step(here, batch.size, work)
        for key, times in self._times.items():
            self.counts += self._works[key][1].scaled(times)

    def _stationary(self, here: Mapping[str, GroupTile]) -> tuple[int, int]:
        along_rows, along_columns, _ = ALONG[self.chip.array.dataflow]
        return here[along_rows].number, here[along_columns].number

    def _work(self, here: Mapping[str, GroupTile], batch: int, same: bool) -> ArrayWork:
        m, n, k = here["m"], here["n"], here["k"]
        adds_up = k.number > 0 and self.chip.array.dataflow != "os"
        own = self._streamed
        timed = own["m"][m.number], own["n"][n.number], own["k"][k.number]
        key = (m.size, n.size, k.size, *timed, batch, adds_up)
        if key not in self._works:
            bits = (self.search.storage["input"].bits, self.search.storage["weight"].bits, self.search.sum_bits)
            shape = GemmShape(m.size, n.size, k.size)
            work, counts, folds = fold_tile(self.chip, shape, batch, bits, adds_up, GemmShape(*timed))
            on = ArrayWork(work.busy, work.body, work.last, work.fed, folds == 1)
            self._works[key] = (work, on), counts
        self._times[key] += 1
        return self._works[key][0][same]

    def _step(self, here: Mapping[str, GroupTile], batch: int, work: ArrayWork) -> TileStep:
        loads = [self._load(role, here, batch) for role in ("input", "weight") if self._fetches(role, here)]
        stores: list[Move] = []
        spills = self._outside["output"] and len(self.tiles["k"]) > 1
        first, last = here["k"].number == 0, here["k"].number == len(self.tiles["k"]) - 1
        sums = -(-batch * here["m"].size * here["n"].size * self.search.sum_bits // 8)
        vector_cycles = 0
        if (spills and not first) or (first and self.view.loop.operation.continues and self.search.moves("output")):
            loads.append(self._move("output", sums, here))
        if spills and not last:
            stores.append(self._move("output", sums, here, store=True))
        if last:
            loop = self.view.loop
            results = (
                batch * here["n"].size * prod(c for i, c in here["m"].box.items() if i in self.view.output.strides)
            )
            loads += self._late(here)
            if loop.late_body.total:
                vector_cycles = work_of(self.chip, loop.late_body, results, self.counts)
            stored = self.search.storage["output"]
            self.counts.touch(self.chip.pads["output"].name, "read", results, self.search.sum_bits)
            if self.search.moves("output"):
                stores.append(self._move("output", -(-results * stored.bits // 8), here, store=True))
        return TileStep(
            self.view.loop.name,
            tuple(load for load in loads if load.nbytes),
            tuple(stores),
            work,
            vector_cycles,
            opens=first or spills,
        )

    def _fetches(self, role: Role, here: Mapping[str, GroupTile]) -> bool:
        return self.search.moves(role) and (here[RELEVANT[role][2]].number == 0 or self._outside[role])

    def _load(self, role: Role, here: Mapping[str, GroupTile], batch: int) -> Move:
        first, second, _ = RELEVANT[role]
        key: tuple[object, ...] = (role, here[first].size, here[second].size)
        if self._piecewise(role):
            key += (here[first].number, here[second].number)
        if key not in self._bytes:
            self._bytes[key] = self._new_bytes(role, here)
        return self._move(role, batch * self._bytes[key], here, piece=self._piece(role, here))

    def _piece(self, role: Role, here: Mapping[str, GroupTile]) -> int:
        """The number of the piece that a tile belongs to: a new one replaces an old one in the scratchpad."""
        first, second, other = RELEVANT[role]
        outer, _ = nested(role, self.choice.order)
        around = here[other].number if self._outside[role] else 0
        tiles = {TILE: (here[first].number, here[second].number), ROW: (here[outer].number,), WHOLE: ()}
        key = (self._batch, around, *tiles[self.choice.pieces[role]])
        if self._last.get(role) != key:
            self._last[role] = key
            self._pieces[role] += 1
        return self._pieces[role] - 1

    def _piecewise(self, role: Role) -> bool:
        """Whether neighbouring tiles share bytes, and lie in the scratchpad together, so that these come once."""
        return role == "input" and self.choice.pieces[role] != 0 and self.search.slides

    def _new_bytes(self, role: Role, here: Mapping[str, GroupTile]) -> int:
        first, second, _ = RELEVANT[role]
        cuts = self.choice.cuts
        if role == "weight" and self.chip.unit.whole_tiles:
            return self.search.whole_tiles(here[first].size, here[second].size)
        if not self._piecewise(role):
            return self.search.footprint(role, {**here[first].box, **here[second].box})
        outer, inner = nested(role, self.choice.order)
        if self.choice.pieces[role] == ROW:
            whole = self.search.footprint(role, {**here[outer].box, **cuts[inner].extents})
            place, count = here[inner].number, len(self.tiles[inner])
        else:
            whole = self.search.footprint(role, {**cuts[outer].extents, **cuts[inner].extents})
            place = here[outer].number * len(self.tiles[inner]) + here[inner].number
            count = len(self.tiles[inner]) * len(self.tiles[outer])
        return whole * (place + 1) // count - whole * place // count

    def _late(self, here: Mapping[str, GroupTile]) -> list[Move]:
        """Biases and the like, which come when a sum is finished."""
        box = {**here["m"].box, **here["n"].box, **self.batches.box}
        bits = self.places.bits
        return [
            fetch(self.places, self.number, "input", operand.tensor, footprint(operand, box, bits[operand.tensor]))
            for operand in self.view.loop.operation.late
            if not self.chip.holds(self.places.level[operand.tensor])
        ]

    def _move(
        self, role: Role, nbytes: int, here: Mapping[str, GroupTile], *, store: bool = False, piece: int = -1
    ) -> Move:
        level, padded = self.search.storage[role].level, nbytes
        if self.chip.unit.dma.request is not None:
            first, second, _ = RELEVANT[role]
            padded = self.search.padded(role, {**here[first].box, **here[second].box}, nbytes, store=store)
        return Move(role, self._tensor[role], level, nbytes, self._after[role], 1, padded, store, piece)


def _skipped(view: GemmView) -> dict[str, int]:
    """The stride of windows by the index that moves them: as far as the index inside the window next to it, or more."""
    strides, element = view.input.strides, view.input.element_bytes
    inside = [strides[i] for i in view.k if strides[i] > element]
    found = {}
    for index in view.m:
        step = max((each for each in inside if each <= strides[index]), default=strides[index])
        if step and strides[index] > step and strides[index] % step == 0:
            found[index] = int(strides[index] // step)
    return found


def _tiles(cut: Cut) -> list[GroupTile]:
    if cut.box is cut.extents:
        return [GroupTile(0, cut.size, cut.box)]
    found = []
    for number, ranges in enumerate(cut.ranges()):
        box = {index: count for index, (_, count) in ranges.items()}
        found.append(GroupTile(number, prod(box.values()), box))
    return found
