"""SMs at work: slots take pieces of a grid, and the L2 and DRAM are shared by all that load from them.

A piece is what a slot takes at a time: all blocks that share an SM, where they begin and end together, or one block.
Portions of equal pieces are handed out in order, piece by piece, to slots that are free.

Slots that do the same at the same time are one agent: those that take pieces of a portion at one moment. A piece
starts, then its work, its latency and its loads run side by side, then it writes. When a slot is free it takes the next
piece.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby

from hwsim.engine import FEMTOSECONDS, Event, Floor, Link, Wait
from hwsim.targets.gpu.device import (
    DRAM,
    L2,
    LATENCY,
    MATH,
    POWER,
    START,
    WRITE,
    Activity,
    BlockCost,
    ClosedForm,
    Device,
    KernelCost,
    SmOccupancy,
    under_cap,
)
from hwsim.targets.gpu.replay import whole_bytes

MOST_PORTIONS = 120
"""Waves of a launch that are played one by one; of more, some neighbours are played as one that is as long."""
LONG_ROUNDS, LAST_ROUNDS = 30, 10
"""A queue of more blocks for each slot than the first is long; so many of the last blocks are handed out one by one."""
BYTES = ("l2_bytes", "dram_bytes", "late_bytes", "write_bytes")


@dataclass(frozen=True)
class Portion:
    """So many equal pieces. Cycles are those of one piece, bytes those of all."""

    count: int
    blocks: int
    before: Mapping[str, float] = field(default_factory=dict)
    """Cycles before its main loop, by what they are spent on; nothing else runs meanwhile."""
    work: float = 0.0
    """Cycles in which a piece holds a unit of its SM."""
    filled: float = 1.0
    """Share of the pieces' room for blocks that is used: some SMs have one block less."""
    wait: float = 0.0
    """Cycles that its main loop takes at least, whatever the units do."""
    l2_bytes: int = 0
    """Read through the L2."""
    dram_bytes: int = 0
    """The part of it that the L2 does not have."""
    late_bytes: int = 0
    """Read from DRAM after the main loop."""
    write_bytes: int = 0
    reach: float = float("inf")
    """Bytes per cycle that one slot can draw in the main loop."""
    write_reach: float = float("inf")
    writes_beside: bool = False
    """Whether results leave while other blocks of the SM multiply; if not, at the end of a piece."""
    kept_results: bool = False
    """Whether results stay in the L2 for now, so that nobody waits for DRAM to take them."""

    @property
    def read_bytes(self) -> int:
        return self.dram_bytes + self.late_bytes

    @property
    def through_bytes(self) -> int:
        """Everything that passes the L2."""
        return self.l2_bytes + self.late_bytes + self.write_bytes


@dataclass(frozen=True)
class BlockGrid:
    """A launch: its portions, and what its slots share."""

    portions: tuple[Portion, ...]
    slots: int
    sms: int
    """SMs that the slots are on."""
    l2_rate: float
    dram_rate: float
    """Bytes per cycle of the whole GPU."""
    unit: str = MATH
    """What holds an SM while it works."""
    wait: str = LATENCY
    """What its main loop waits for where it takes longer than its units and its loads."""
    write_after: bool = True
    """Whether a piece writes its results at its end; if not, beside its loads."""

    @property
    def read_bytes(self) -> int:
        return sum(portion.read_bytes for portion in self.portions)

    @property
    def write_bytes(self) -> int:
        return sum(portion.write_bytes for portion in self.portions)

    @property
    def through_bytes(self) -> int:
        return sum(portion.through_bytes for portion in self.portions)


def wave_grid(
    device: Device,
    block: BlockCost,
    count: int,
    resident: int,
    missed: Sequence[float] | None = None,
    *,
    unit: str = MATH,
    late_bytes: float = 0.0,
) -> BlockGrid:
    """Equal blocks, `resident` on each SM: whole waves, then a tail that is spread thinly.

    `missed` are the bytes that the L2 lacks, wave by wave; without it every block lacks as many. `late_bytes` of what a
    block moves at its end is read.
    """
    slots = device.count * resident
    sizes = [min(slots, count - first) for first in range(0, count, slots)]
    far = whole_bytes(missed if missed is not None else [size * block.dram_bytes for size in sizes])
    near = whole_bytes(size * block.l2_bytes for size in sizes)
    written = whole_bytes(size * (block.write_bytes - late_bytes) for size in sizes)
    late = whole_bytes(size * late_bytes for size in sizes)
    found: list[Portion] = []
    for number, size in enumerate(sizes):
        moved = max(near[number], far[number]), far[number], late[number], written[number]
        last = number == len(sizes) - 1
        found.append(_wave(device, block, size, -(-size // device.count) if last else resident, moved, last))
    return BlockGrid(tuple(folded(found)), device.count, device.count, device.l2_rate, device.tile_rate, unit)


def _wave(
    device: Device, block: BlockCost, blocks: int, resident: int, moved: tuple[int, int, int, int], last: bool
) -> Portion:
    """Blocks that run at once, up to `resident` on an SM, which all end with the fullest.

    Of the start of a whole wave's blocks, those beside them hide all but one, and their results may leave under the
    others' products; of the last ones nothing hides either.
    """
    near, far, late, written = moved
    sms = min(blocks, device.count)
    return Portion(
        count=sms,
        blocks=blocks,
        before={START: block.start_cycles / (1 if last else resident)},
        work=resident * block.math_cycles,
        filled=blocks / (sms * resident),
        wait=block.steps * (block.step_math + block.step_latency),
        l2_bytes=near,
        dram_bytes=far,
        late_bytes=late,
        write_bytes=written,
        reach=min(device.sm_rate, resident * block.flight_bytes / device.flight_latency),
        write_reach=device.stores(block),
        kept_results=block.kept_results,
        writes_beside=block.leaves_beside(resident, last=last),
    )


def folded(portions: Sequence[Portion], most: int = MOST_PORTIONS) -> Iterator[Portion]:
    """At most about so many portions: neighbours that differ in nothing but bytes are joined."""
    together = -(-len(portions) // most)
    for _, alike in groupby(portions, key=lambda each: (each.count, each.blocks, each.work, each.wait, each.reach)):
        group = list(alike)
        for first in range(0, len(group), together):
            yield _joined(group[first : first + together])


def _joined(group: Sequence[Portion]) -> Portion:
    """Portions one after the other as one."""
    names = dict.fromkeys(name for each in group for name in each.before)
    return replace(
        group[0],
        blocks=sum(each.blocks for each in group),
        before={name: sum(each.before.get(name, 0.0) for each in group) for name in names},
        work=sum(each.work for each in group),
        wait=sum(each.wait for each in group),
        l2_bytes=sum(each.l2_bytes for each in group),
        dram_bytes=sum(each.dram_bytes for each in group),
        late_bytes=sum(each.late_bytes for each in group),
        write_bytes=sum(each.write_bytes for each in group),
    )


def pass_grid(device: Device, portions: Sequence[Portion], unit: str) -> BlockGrid:
    """A kernel that passes over memory: its pieces are shares of the SMs, and results leave as operands come."""
    found = tuple(folded(portions))
    return BlockGrid(found, device.count, device.count, device.l2_stream, device.stream_rate, unit, write_after=False)


def queue_grid(
    device: Device, portions: Sequence[Portion], resident: int, dram_rate: float | None = None, unit: str = MATH
) -> BlockGrid:
    """Blocks of different length: each slot takes the next when it is free, and its start runs beside its loads.

    Rows of a head are whole lines one after the other, which DRAM delivers like any long stream if nothing else is
    said.
    """
    slots = device.count * resident
    found = tuple(_long_queue(portions, slots))
    rate = device.stream_rate if dram_rate is None else dram_rate
    return BlockGrid(found, slots, device.count, device.l2_rate, rate, unit, wait=START, write_after=False)


def _long_queue(portions: Sequence[Portion], slots: int) -> Iterator[Portion]:
    """Of a long queue all but the end in equal shares to all slots; the last blocks go to whoever is free."""
    left = sum(portion.count for portion in portions)
    spare = left - LAST_ROUNDS * slots if left > LONG_ROUNDS * slots else 0
    for portion in portions:
        evenly = max(0, min(portion.count, spare))
        if len(portions) == 1:
            evenly -= evenly % slots
        spare -= evenly
        first = {name: getattr(portion, name) * evenly // portion.count for name in BYTES}
        if evenly:
            times = evenly / slots
            work, wait = portion.work * times, portion.wait * times
            yield replace(portion, count=slots, blocks=evenly, work=work, wait=wait, **first)
        if evenly < portion.count:
            rest = {name: getattr(portion, name) - first[name] for name in BYTES}
            yield replace(portion, count=portion.count - evenly, blocks=portion.count - evenly, **rest)


def reduce_grid(device: Device, start: float, l2_bytes: float, dram_bytes: float, written: float) -> BlockGrid:
    """A small second kernel that adds up parts, all SMs together."""
    piece = Portion(
        device.count, device.count, {START: start}, l2_bytes=round(l2_bytes), dram_bytes=round(dram_bytes),
        write_bytes=round(written),
    )  # fmt: skip
    return BlockGrid((piece,), device.count, device.count, device.l2_rate, device.tile_rate, write_after=False)


# What slots do --------------------------------------------------------------------------------------------------------

TAIL = "tail"
"""What an SM waits for that found no block any more."""


@dataclass(frozen=True)
class Share:
    """Pieces that slots took at one moment, and their bytes."""

    portion: Portion
    pieces: int
    l2_bytes: int
    dram_bytes: int
    late_bytes: int
    write_bytes: int


@dataclass
class GridTime:
    """How the slots of a grid spent their time."""

    slots: int
    elapsed_fs: int = 0
    spent: Counter[str] = field(default_factory=Counter)
    """Femtoseconds of all slots together, by what they did or waited for; `slots` times the elapsed time in all."""
    path: dict[str, int] = field(default_factory=dict)
    """What each part took on the way to the piece that ended last, waits beyond work alone; parts may overlap."""


Note = Callable[[Share, int, int], None]
"""Called with what slots did, and from when to when."""


class GridPlay:
    """One launch on a floor; `slower` stretches all times, where power lowers the clock."""

    def __init__(
        self, floor: Floor, device: Device, grid: BlockGrid, slower: float = 1.0, note: Note | None = None
    ) -> None:
        self._floor = floor
        self._device = device
        self._grid = grid
        self._note = note
        self._fs = FEMTOSECONDS * slower / device.clock_hz
        self._l2 = _BusyLink(floor, device.l2.name, self._link(device.l2.name, grid.l2_rate))
        self._dram = _BusyLink(floor, device.dram.name, self._link(device.dram.name, grid.dram_rate))
        self._free = grid.slots
        self._working = 0
        self._freed: Event | None = None
        self._path: dict[str, int] = {}
        self.time = GridTime(grid.slots)

    def play(self) -> Wait:
        """Hand out all pieces in order, as slots become free; over when the last piece is done."""
        begin = self._floor.now
        waiting = deque(_Rest(portion) for portion in self._grid.portions)
        while waiting or self._working:
            while waiting and self._free:
                share = waiting[0].take(self._free)
                self._free -= share.pieces
                self._working += 1
                self._floor.start(self._piece(share, dict(self._path)))
                if not waiting[0].left:
                    waiting.popleft()
            self._freed = self._floor.event()
            yield self._freed
            yield self._floor.delay(0)  # whoever ends at this moment as well
        self.time.elapsed_fs = self._floor.now - begin
        self.time.path = self._path
        idle = self.time.slots * self.time.elapsed_fs - self.time.spent.total()
        self.time.spent[TAIL] += idle

    def _piece(self, share: Share, path: dict[str, int]) -> Wait:
        """One piece of each of these slots, from start to end."""
        begin = self._floor.now
        for name, cycles in share.portion.before.items():
            if cycles:
                began = self._floor.now
                yield self._floor.delay(self._cycles(cycles))
                self._charge(name, share, self._floor.now - began, path)
        yield from self._loop(share, path)
        if not self._beside(share) and share.late_bytes + share.write_bytes:
            began = self._floor.now
            moved = share.late_bytes + share.write_bytes
            alone = self._floor.delay(self._cycles(moved / (share.pieces * share.portion.write_reach)))
            link = self._l2 if share.portion.kept_results else self._dram
            yield self._floor.every([alone, link.transfer(moved, share.pieces)])
            self._charge(WRITE, share, self._floor.now - began, path)
        if self._note is not None:
            self._note(share, begin, self._floor.now)
        self._end(share, path)

    def _beside(self, share: Share) -> bool:
        """Whether its results leave while it loads."""
        return share.portion.writes_beside or not self._grid.write_after

    def _end(self, share: Share, path: dict[str, int]) -> None:
        self._free += share.pieces
        self._working -= 1
        self._path = path
        if self._freed is not None and not self._freed.triggered:
            self._freed.succeed()

    def _loop(self, share: Share, path: dict[str, int]) -> Wait:
        """Work, latency and loads side by side; each waits for none of the others."""
        portion, floor = share.portion, self._floor
        near, far = share.l2_bytes, share.dram_bytes
        if self._beside(share):
            near += share.late_bytes + share.write_bytes
            far += share.late_bytes + (0 if portion.kept_results else share.write_bytes)
        reach = share.pieces * portion.reach
        took = {
            self._grid.unit: self._cycles(portion.work),
            self._grid.wait: self._cycles(portion.wait),
            L2: self._cycles(near / reach),
            DRAM: self._cycles(far / reach),
        }
        if portion.writes_beside:
            took[WRITE] = self._cycles(share.write_bytes / (share.pieces * portion.write_reach))
        began = floor.now
        waits = [floor.delay(max(took.values()))]
        for name, link, moved in ((L2, self._l2, near), (DRAM, self._dram, far)):
            if moved:
                waits.append(link.transfer(moved, share.pieces, _noting(took, name, floor, began)))
        yield floor.every(waits)
        covered = 0
        for name, taken in sorted(took.items(), key=lambda part: (part[0] != self._grid.unit, part[1])):
            self._spend(name, share, max(0, taken - covered))
            alone = max(0, taken - took[self._grid.unit]) if name == self._grid.wait else taken
            path[name] = path.get(name, 0) + alone
            covered = max(covered, taken)

    def _charge(self, name: str, share: Share, taken_fs: int, path: dict[str, int]) -> None:
        self._spend(name, share, taken_fs)
        path[name] = path.get(name, 0) + taken_fs

    def _spend(self, name: str, share: Share, taken_fs: int) -> None:
        """Time of these slots; of work, the part of those that have fewer blocks is a wait for the others."""
        whole = share.pieces * taken_fs
        own = round(whole * share.portion.filled) if name == self._grid.unit else whole
        self.time.spent[name] += own
        self.time.spent[TAIL] += whole - own

    def _cycles(self, cycles: float) -> int:
        return round(cycles * self._fs)

    def _link(self, name: str, bytes_per_cycle: float) -> Link:
        return self._floor.link(name, Fraction(max(1, round(bytes_per_cycle * FEMTOSECONDS / self._fs))))


def _noting(took: dict[str, int], name: str, floor: Floor, began: int) -> Callable[[], None]:
    """Put down how long something took, once it is done."""

    def note() -> None:
        took[name] = max(took[name], floor.now - began)

    return note


class _Rest:
    """What is left of a portion."""

    def __init__(self, portion: Portion) -> None:
        self.portion = portion
        self.left = portion.count

    def take(self, most: int) -> Share:
        """As many pieces as there are slots, with their bytes: in all no byte more or less than the portion has."""
        portion = self.portion
        pieces = min(most, self.left)
        begin = portion.count - self.left
        end = begin + pieces
        self.left -= pieces
        whole = portion.l2_bytes, portion.dram_bytes, portion.late_bytes, portion.write_bytes
        return Share(portion, pieces, *(each * end // portion.count - each * begin // portion.count for each in whole))


class _BusyLink:
    """A link that is put down in the timeline from when somebody uses it to when nobody does."""

    def __init__(self, floor: Floor, name: str, link: Link) -> None:
        self._floor = floor
        self._name = name
        self._link = link
        self._since = 0
        self._users = 0
        self._moved = 0

    def transfer(self, nbytes: int, weight: int, note: Callable[[], None] | None = None) -> Event:
        if not self._users:
            self._since, self._moved = self._floor.now, 0
        self._users += 1
        self._moved += nbytes
        done = self._link.transfer(nbytes, weight)
        assert done.callbacks is not None
        done.callbacks.append(lambda _: self._done(note))
        return done

    def _done(self, note: Callable[[], None] | None) -> None:
        self._users -= 1
        if note is not None:
            note()
        if not self._users:
            self._floor.record(self._name, f"{self._moved:,} B", self._since, self._floor.now)


# A kernel alone -------------------------------------------------------------------------------------------------------


def play_grid(device: Device, grid: BlockGrid) -> GridTime:
    """A launch alone, at full clock."""
    floor = Floor()
    game = GridPlay(floor, device, grid)
    floor.start(game.play())
    floor.run()
    return game.time


def play_kernel(
    device: Device,
    name: str,
    grids: tuple[BlockGrid, ...],
    activity: Activity,
    closed: ClosedForm,
    blocks: int,
    resident: int,
    walked: float = 1.0,
    block: BlockCost | None = None,
    tile: tuple[int, ...] = (),
    split_k: int = 1,
    occupancy: SmOccupancy | None = None,
) -> KernelCost:
    """Play a kernel alone at full clock; where that would draw too much power, all of it takes longer."""
    played = [play_grid(device, grid) for grid in grids]
    seconds = sum(each.elapsed_fs for each in played) / FEMTOSECONDS
    capped, power = under_cap(device, seconds, activity)
    parts: defaultdict[str, float] = defaultdict(float)
    for each in played:
        for part, taken in each.path.items():
            parts[part] += taken * device.clock_hz / FEMTOSECONDS
    return KernelCost(
        name=name,
        seconds=capped,
        full_clock_seconds=seconds,
        blocks=blocks,
        resident=resident,
        waves=blocks / (device.count * resident),
        bound=POWER if power.limited else max(parts, key=lambda part: parts[part]),
        parts=dict(parts),
        activity=activity,
        power=power,
        grids=grids,
        closed=closed,
        walked=walked,
        block=block,
        tile=tile,
        split_k=split_k,
        occupancy=occupancy,
    )
