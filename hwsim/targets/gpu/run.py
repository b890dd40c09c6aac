"""The run of a kernel on a GPU: choose a launch for each of its loops, play them one after the other, collect.

Time is that of the average SM: where some SMs have no blocks left, their share of the time is a wait for the others.

A kernel says how many bytes it moved in all. Its reads are shared out among the tensors that it reads, by their bytes
and by how often each of them passes the L2; its writes among those that it writes. No more reaches DRAM than passed the
L2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import ceil
from time import perf_counter

from hwsim.energy import ARITHMETIC, Ledger
from hwsim.engine import FEMTOSECONDS, AgentTime, Floor, Held, Outcome, StageOutcome, TensorTraffic, Wait
from hwsim.memory.counters import CacheCounters, DramCounters
from hwsim.program.kernel import Kernel
from hwsim.program.loop_kernel import LoopKernel
from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.agent import BlockGrid, GridPlay, GridTime, Share
from hwsim.targets.gpu.device import FUSED, ISSUE, LAUNCH, MATH, MEMORY_UNIT, POWER, SPECIAL, Activity, Device
from hwsim.targets.gpu.lower import Conditions, Launch, compute, map_launches
from hwsim.targets.gpu.model import GpuModel


def post_work(ledger: Ledger, device: Device, done: Activity, share: tuple[int, int, int]) -> None:
    """Put down multiply-adds, special functions and other instructions of the lanes."""
    name = device.sm.name
    fma, special, others = share
    unit = "tensor" if done.unit == "tensor" else "fma"
    ledger.post(name, f"{unit}.{done.precision}", fma, cause=ARITHMETIC)
    ledger.post(name, "special", special, cause=ARITHMETIC)
    ledger.post(name, "fma.fp32", others, cause=ARITHMETIC)


def post_memory(ledger: Ledger, device: Device, read_bytes: int, write_bytes: int) -> None:
    """Put down bytes of DRAM, in bursts."""
    name, burst = device.dram.name, device.dram.burst
    ledger.post(name, "read", -(-read_bytes // burst), bits=8 * read_bytes)
    ledger.post(name, "write", -(-write_bytes // burst), bits=8 * write_bytes)


class Meter:
    """Writes down what slots did, piece by piece; arithmetic follows the cycles of work."""

    def __init__(self, floor: Floor, device: Device, launch: Launch, grid: BlockGrid, computes: bool) -> None:
        self._floor = floor
        self._device = device
        self._launch = launch
        self._grid = grid
        self._computes = computes
        self._by_work = any(portion.work for portion in grid.portions)
        self._whole = sum(portion.count * self._weight(portion.work, portion.count) for portion in grid.portions)
        self._done = 0.0
        self._posted = 0, 0, 0

    def note(self, share: Share, begin_fs: int, end_fs: int) -> None:
        slots, sms = self._grid.slots, -(-share.pieces * self._grid.sms // self._grid.slots)
        blocks = share.portion.blocks * share.pieces // share.portion.count
        name = f"{self._launch.name}: {blocks:,} blocks on {sms} {self._device.sm.name}"
        held = Held(self._launch.name, blocks, share.pieces, slots, self._grid.sms)
        self._floor.record(self._device.sm.name, name, begin_fs, end_fs, held)
        ledger = Ledger()
        post_work(ledger, self._device, self._launch.cost.activity, self._arithmetic(share))
        post_memory(ledger, self._device, share.dram_bytes + share.late_bytes, share.write_bytes)
        self._floor.pulse(begin_fs, end_fs, ledger)

    def _weight(self, work: float, count: int) -> float:
        return work if self._by_work else 1 / count

    def _arithmetic(self, share: Share) -> tuple[int, int, int]:
        """What these pieces compute; all together, what the launch does."""
        if not self._computes or not self._whole:
            return 0, 0, 0
        self._done += share.pieces * self._weight(share.portion.work, share.portion.count)
        activity = self._launch.cost.activity
        part = min(1.0, self._done / self._whole)
        now = round(activity.fma * part), round(activity.special * part), round(activity.lanes * part)
        found = now[0] - self._posted[0], now[1] - self._posted[1], now[2] - self._posted[2]
        self._posted = now
        return found


# Where the time goes --------------------------------------------------------------------------------------------------

WORK = (MATH, FUSED, SPECIAL, MEMORY_UNIT, ISSUE)


class GpuWatch:
    """Femtoseconds of the average SM, put down kernel by kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()
        """What each part took on the way to the end of the last block, at full clock."""

    def launch(self, duration_fs: int) -> None:
        """A kernel was started."""
        self.waiting[LAUNCH] += duration_fs
        self.parts[LAUNCH] += duration_fs

    def grid(self, time: GridTime, slower: float) -> None:
        """A kernel's blocks are done; `slower` is how much longer the power limit made all they did."""
        lost = time.elapsed_fs - round(time.elapsed_fs / slower)
        left = time.elapsed_fs - lost
        whole = time.slots * time.elapsed_fs
        names = [name for name, spent in time.spent.items() if spent]
        edges = [spent * left // whole for spent in accumulate(time.spent[name] for name in names)]
        for name, begin, end in zip(names, [0, *edges], edges, strict=False):
            group = self.busy if name in WORK else self.waiting
            group[name] += end - begin
        self.waiting[POWER] += lost
        for name, taken in time.path.items():
            self.parts[name] += round(taken / slower)
        self.parts[POWER] += lost

    def result(self) -> AgentTime:
        busy, waiting = dict(+self.busy), dict(+self.waiting)
        return AgentTime(self.name, sum(busy.values()) + sum(waiting.values()), busy, waiting)


# Which tensor moved what ----------------------------------------------------------------------------------------------

Shares = dict[str, int]
"""Sectors of each tensor."""


@dataclass(frozen=True)
class Moved:
    """Sectors of the L2 that each tensor took: through the L2, and of these from and to DRAM."""

    read: Shares
    written: Shares
    fetched: Shares
    stored: Shares

    def __add__(self, more: Moved) -> Moved:
        pairs = zip(self._parts, more._parts, strict=True)
        return Moved(*(dict(Counter(own) + Counter(other)) for own, other in pairs))

    @property
    def _parts(self) -> tuple[Shares, Shares, Shares, Shares]:
        return self.read, self.written, self.fetched, self.stored

    def through(self) -> Shares:
        """Sectors that passed the L2."""
        return dict(Counter(self.read) + Counter(self.written))

    def far(self) -> Shares:
        """Sectors that DRAM delivered or took."""
        return dict(Counter(self.fetched) + Counter(self.stored))


NOTHING = Moved({}, {}, {}, {})


def moved_by(device: Device, kernel: LoopKernel, launch: Launch) -> Moved:
    """The traffic of one launch, tensor by tensor."""
    sizes = {name: float(kernel.tensors[name].element_bits / 8) for name in launch.tensors}
    reads = {name: read * sizes[name] for name, (read, _) in launch.tensors.items() if read}
    writes = {name: written * sizes[name] for name, (_, written) in launch.tensors.items() if written}
    sector = device.l2.sector_bytes
    stored, fetched = ceil(launch.cost.write_bytes / sector), ceil(launch.cost.read_bytes / sector)
    read = max(fetched, ceil((launch.cost.l2_bytes - launch.cost.write_bytes) / sector))
    often = {name: size * launch.passes.get(name, 1.0) for name, size in reads.items()}
    near = apportion(fetched, reads or writes)
    extra = apportion(read - fetched, often or writes)
    kept = apportion(stored, writes or reads)
    return Moved(dict(Counter(near) + Counter(extra)), kept, near, kept)


def apportion(total: int, weights: Mapping[str, float]) -> Shares:
    """Whole numbers in proportion to weights that add up to the total: what is left goes to the largest remainders."""
    whole = sum(weights.values())
    if not whole or not total:
        return {}
    exact = {name: total * weight / whole for name, weight in weights.items()}
    shares = {name: int(value) for name, value in exact.items()}
    left = total - sum(shares.values())
    for name in sorted(exact, key=lambda name: shares[name] - exact[name])[:left]:
        shares[name] += 1
    return shares


def l2_counters(device: Device, moved: Moved) -> CacheCounters:
    sector = device.l2.sector_bytes
    read, written = sum(moved.read.values()), sum(moved.written.values())
    fetched, stored = sum(moved.fetched.values()), sum(moved.stored.values())
    return CacheCounters(
        reads=read,
        writes=written,
        read_misses=fetched,
        writebacks=stored,
        bytes_read=read * sector,
        bytes_written=written * sector,
        bytes_fetched=fetched * sector,
        bytes_evicted=stored * sector,
    )


def dram_counters(device: Device, moved: Moved) -> DramCounters:
    """In bursts of the DRAM."""
    sector, burst = device.l2.sector_bytes, device.dram.burst
    read, written = sector * sum(moved.fetched.values()), sector * sum(moved.stored.values())
    return DramCounters(ceil(read / burst), ceil(written / burst), read, written)


def tensor_traffic(device: Device, launches: Sequence[Launch], moved: Sequence[Moved]) -> dict[str, TensorTraffic]:
    """Elements of each tensor that the launches read and write at least, and its sectors that the L2 did not have."""
    found: dict[str, TensorTraffic] = {}
    for launch, own in zip(launches, moved, strict=True):
        for name, (read, written) in launch.tensors.items():
            misses = {device.l2.name: own.fetched.get(name, 0)}
            found[name] = found.get(name, TensorTraffic()) + TensorTraffic(read, written, misses)
    return dict(sorted(found.items()))


# The run --------------------------------------------------------------------------------------------------------------

GPU = "gpu"


class GpuCrew:
    """A GPU and the kernels that are launched on it, one after the other."""

    def __init__(
        self,
        device: Device,
        kernel: Kernel,
        threads: ThreadSchedule | None = None,
        choices: Mapping[str, int] | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.kernel = kernel
        self.device = device
        started = perf_counter()
        self.launches = map_launches(GpuModel(device), kernel, threads, choices, conditions)
        self.map_seconds = perf_counter() - started
        self.math_seconds = 0.0
        self.watch = GpuWatch(self.device.sm.name)
        self.ends: list[int] = []
        self.taken: list[int] = []

    def work(self, floor: Floor) -> None:
        started = perf_counter()
        assert isinstance(self.kernel, LoopKernel)
        if self.kernel.setting.math:
            self.kernel.stages()  # refuses given tensors that the kernel does not have
            compute(self.kernel)
        self.math_seconds = perf_counter() - started
        floor.start(self._play(floor))
        floor.run()
        self.elapsed_fs = floor.now

    def _play(self, floor: Floor) -> Wait:
        """Each launch waits for its start, then has the whole GPU."""
        for number, launch in enumerate(self.launches):
            cost = launch.cost
            taken = 0
            for index, grid in enumerate(cost.grids):
                yield from self._start(floor, launch, first=number == index == 0)
                meter = Meter(floor, self.device, launch, grid, index == 0)
                game = GridPlay(floor, self.device, grid, cost.slower, meter.note if floor.timeline else None)
                yield from game.play()
                self.watch.grid(game.time, cost.slower)
                taken += game.time.elapsed_fs
            self.taken.append(taken)
            self.ends.append(floor.now)

    def _start(self, floor: Floor, launch: Launch, *, first: bool) -> Wait:
        """A kernel is started."""
        begin = floor.now
        yield floor.delay(round(self.device.launch_seconds("stream" if first else "following") * FEMTOSECONDS))
        self.watch.launch(floor.now - begin)
        floor.record(LAUNCH, launch.name, begin, floor.now)

    def _mean_clock(self) -> int:
        """Over the run: power lowers the clock of some launches, and none while the next one is started."""
        lost = sum(taken * (1 - 1 / each.cost.slower) for taken, each in zip(self.taken, self.launches, strict=True))
        return round(self.device.clock_hz * (1 - lost / max(1, self.elapsed_fs)))

    def outcome(self) -> Outcome:
        device, launches = self.device, self.launches
        assert isinstance(self.kernel, LoopKernel)
        each = [moved_by(device, self.kernel, launch) for launch in launches]
        moved = sum(each, NOTHING)
        tensors = tensor_traffic(device, launches, each)
        dram = dram_counters(device, moved)
        unit = device.unit_for(self.kernel.fmt.name)
        macs_per_cycle = device.count * device.fma_rate(self.kernel.fmt.name, unit)
        return Outcome(
            elapsed_fs=self.elapsed_fs,
            clock_hz=self._mean_clock(),
            core_energy=_core_energy(device, launches),
            agents=(self.watch.result(),),
            parts=dict(+self.watch.parts),
            levels={device.l2.name: l2_counters(device, moved)},
            dram=dram,
            tensors=tensors,
            stages=_stages(device, launches, each, self.ends),
            flops=sum(launch.flops for launch in launches),
            macs=sum(launch.macs for launch in launches),
            loads=sum(each.loads for each in tensors.values()),
            stores=sum(each.stores for each in tensors.values()),
            ledger=_ledger(device, launches, dram),
            reached={device.l2.name: moved.through(), device.dram.name: moved.far()},
            peak_flops_per_s=2 * macs_per_cycle * device.clock_hz,
            model=GPU,
            warnings=tuple(dict.fromkeys(launch.note for launch in launches if launch.note)),
            workspace_bytes=max((launch.workspace_bytes for launch in launches), default=0),
            use={"gpu": _gpu(device, self.kernel, launches, moved, self.taken)},
            walk_seconds=self.map_seconds,
            math_seconds=self.math_seconds,
        )


def _stages(
    device: Device, launches: Sequence[Launch], moved: Sequence[Moved], ends: Sequence[int]
) -> tuple[StageOutcome, ...]:
    found = []
    begin = 0
    for name, group in groupby(zip(launches, moved, ends, strict=True), key=lambda each: each[0].stage):
        own, traffic, times = zip(*group, strict=True)
        tensors = tensor_traffic(device, own, traffic)
        found.append(StageOutcome(name, times[-1] - begin, sum(each.flops for each in own), tensors))
        begin = times[-1]
    return tuple(found)


def _core_energy(device: Device, launches: Sequence[Launch]) -> float:
    """What actions of the SMs cost, all launches together, as a share of their price."""
    full = [launch.cost.activity.core_joules(device) for launch in launches]
    spent = sum(joules * launch.cost.power.core_energy for joules, launch in zip(full, launches, strict=True))
    return spent / sum(full) if sum(full) else 1.0


def _ledger(device: Device, launches: Sequence[Launch], dram: DramCounters) -> Ledger:
    """Everything that costs energy: multiply-adds by unit and format, special functions, bytes of DRAM."""
    ledger = Ledger()
    for launch in launches:
        done = launch.cost.activity
        post_work(ledger, device, done, (round(done.fma), round(done.special), round(done.lanes)))
    post_memory(ledger, device, dram.bytes_read, dram.bytes_written)
    return ledger


def _gpu(
    device: Device, kernel: Kernel, launches: Sequence[Launch], moved: Moved, taken: Sequence[int]
) -> dict[str, object]:
    unit = device.unit_for(kernel.fmt.name)
    return {
        "count": device.count,
        "unit": unit,
        "peak_macs_per_cycle": device.count * device.fma_rate(kernel.fmt.name, unit),
        "launches": [_launch(launch, took / FEMTOSECONDS) for launch, took in zip(launches, taken, strict=True)],
        "power_limited": any(launch.cost.power.limited for launch in launches),
        "tensors": _tensor_bytes(device, moved),
    }


def _tensor_bytes(device: Device, moved: Moved) -> dict[str, dict[str, int]]:
    """Bytes of each tensor that DRAM delivered and took; all together what its counters say."""
    sector = device.l2.sector_bytes
    names = sorted({*moved.fetched, *moved.stored})
    return {
        name: {"bytes_read": sector * moved.fetched.get(name, 0), "bytes_written": sector * moved.stored.get(name, 0)}
        for name in names
    }


def _launch(launch: Launch, seconds: float) -> dict[str, object]:
    """One launch, for people and for JSON."""
    cost = launch.cost
    found: dict[str, object] = {
        "stage": launch.stage,
        "name": cost.name,
        "family": launch.family,
        "seconds": seconds,
        "blocks": cost.blocks,
        "resident": cost.resident,
        "waves": cost.waves,
        "bound": cost.bound,
        "bound_in_words": cost.bound_in_words,
        "watts": cost.power.watts,
        "clock_hz": cost.power.clock_hz,
        "power_limited": cost.power.limited,
        "core_energy": cost.power.core_energy,
        "l2_bytes": cost.l2_bytes,
        "dram_bytes": cost.read_bytes + cost.write_bytes,
        "walked": cost.walked,
        "closed": {"seconds": cost.closed.seconds, "dram_bytes": round(cost.closed.dram_bytes)},
    }
    if cost.occupancy is not None:
        found |= {"warps": cost.occupancy.warps, "most_warps": cost.occupancy.most_warps, "limit": cost.occupancy.limit}
    if launch.program is not None:
        program = launch.program
        found |= {
            "sectors_per_request": program.sectors_per_request,
            "bank_conflicts": program.bank_conflicts,
            "l1_hit_rate": program.traffic.l1_hit_rate,
            "l2_hit_rate": program.traffic.l2_hit_rate,
        }
    return found
