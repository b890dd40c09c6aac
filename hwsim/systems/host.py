"""The host and its links: copies to devices, and copies that run beside the work on what came before.

A device that is fed piece by piece takes the longer of copying and computing for each piece, not their sum, as soon as
it has room for two pieces: one is worked on while the next one comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hwsim.engine.floor import Event, Floor, Wait
from hwsim.engine.link import Link
from hwsim.engine.outcome import FEMTOSECONDS, Span
from hwsim.errors import InputError
from hwsim.systems.closed_form import wire_fs
from hwsim.systems.spec import HostSpec, SystemSpec, as_femtoseconds

MOST_PIECES = 100_000


@dataclass(frozen=True)
class Feed:
    """What it took to feed devices from the host."""

    elapsed_fs: int
    formula_fs: int
    """start + copy + (n-1) · max(copy, compute) + compute with two buffers; n · (copy + compute) with one."""
    spans: tuple[Span, ...] = ()

    @property
    def seconds(self) -> float:
        return self.elapsed_fs / FEMTOSECONDS


def feed(
    system: SystemSpec, nbytes: int, *, pieces: int = 1, compute_fs: int = 0, buffers: int = 2,
    devices: int | None = None, timeline: bool = False,
) -> Feed:  # fmt: skip
    """Every device gets its own `nbytes` from the host in so many pieces, and works on each for so long.

    Devices behind one link share its bandwidth. With one buffer a piece is copied when the one before is done with.
    """
    host = host_of(system)
    count = system.count if devices is None else devices
    if not 1 <= count <= system.count:
        raise InputError(f"devices={count}: from 1 to {system.count}, which {system.name} has")
    if not 1 <= pieces <= min(MOST_PIECES, max(1, nbytes)):
        raise InputError(f"pieces={pieces}: from 1 to {min(MOST_PIECES, max(1, nbytes)):,}")
    if buffers < 1:
        raise InputError(f"buffers={buffers}: a device needs at least one to copy into")
    floor = Floor(timeline=timeline)
    links = [floor.link(f"host link[{n}]", host.bandwidth.amount) for n in range(-(-count // host.shared_by))]
    for device in range(count):
        link = links[device // host.shared_by]
        _start(floor, host, link, f"{system.machine}[{device}]", nbytes, pieces, compute_fs, buffers)
    floor.run()
    sharing = min(count, host.shared_by)
    return Feed(floor.now, formula_fs(host, nbytes, pieces, compute_fs, buffers, sharing), tuple(floor.spans))


def _start(
    floor: Floor, host: HostSpec, link: Link, name: str, nbytes: int, pieces: int, compute_fs: int, buffers: int
) -> None:
    """One device: somebody who copies, and somebody who works on what has come."""
    come: list[Event] = [floor.event() for _ in range(pieces)]
    done: list[Event] = [floor.event() for _ in range(pieces)]
    least, more = divmod(nbytes, pieces)

    def copies() -> Wait:
        for number in range(pieces):
            if number >= buffers:
                yield done[number - buffers]
            begin = floor.now
            yield floor.delay(as_femtoseconds(host.start))
            yield link.transfer(least + (number < more))
            floor.record(f"{link.name} to {name}", "copy", begin, floor.now)
            come[number].succeed()

    def works() -> Wait:
        for number in range(pieces):
            yield come[number]
            begin = floor.now
            yield floor.delay(compute_fs)
            floor.record(name, "compute", begin, floor.now)
            done[number].succeed()

    floor.start(copies())
    floor.start(works())


def formula_fs(host: HostSpec, nbytes: int, pieces: int, compute_fs: int, buffers: int, sharing: int = 1) -> int:
    """The textbook: a pipeline of two steps where there are two buffers, one after the other where there is one."""
    rate = host.bandwidth.amount
    wire = 0 if rate is None else wire_fs(-(-nbytes // pieces), rate / Fraction(sharing))
    copy = as_femtoseconds(host.start) + wire
    if buffers == 1:
        return pieces * (copy + compute_fs)
    return copy + (pieces - 1) * max(copy, compute_fs) + compute_fs


def host_of(system: SystemSpec) -> HostSpec:
    if system.host is None:
        raise InputError(f"{system.name} says nothing of its host; add `host` with bandwidth and start to its file")
    return system.host
