"""`hwsim replay`: a trace from outside through a machine's caches; counts per level and bytes per link."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import CTRL_C, INTERRUPTED, Settings, check_output
from hwsim.cli.console import bars, err, out, styled, titled_table
from hwsim.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from hwsim.memory.counters import CacheCounters
    from hwsim.memory.hierarchy import Hierarchy
    from hwsim.spec.machine import MachineSpec
    from hwsim.trace.text_trace import AccessBlock, TraceReader


REPLAY_EXAMPLE = "Example: [cyan]hwsim replay course_cpu trace.din.gz --set l1.size='64 KiB' --json counts.json[/cyan]"

_FEED_BYTES = 1 << 22
"""How much is fed at a time, in bytes accessed: keeps the buffers small where accesses span many lines."""


class TraceFormat(Enum):
    DIN = "din"
    LACKEY = "lackey"
    NPZ = "npz"


def replay_command(
    machine: Annotated[str, typer.Argument(help="A machine: its name, or the path of a file.")],
    trace: Annotated[
        str, typer.Argument(help="din or Valgrind lackey text, plain or gzip, or .npz; - is standard input.")
    ],
    settings: Settings = None,
    form: Annotated[
        TraceFormat | None, typer.Option("--format", help="What the trace is, if not found out from its content.")
    ] = None,
    access_bytes: Annotated[
        int, typer.Option(min=1, max=4096, metavar="N", help="Bytes of an access whose size the trace does not tell.")
    ] = 4,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N accesses.", show_default=False)
    ] = None,
    core: Annotated[int, typer.Option(min=0, metavar="N", help="Which core replays; the others are idle.")] = 0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="For random replacement.")] = 0,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the counts as JSON; - prints them, and nothing else."),
    ] = None,
) -> None:
    """Replay an access trace through a machine's caches.

    A din line has a label (0 read, 1 write, 2 instruction fetch), a hexadecimal address, and perhaps a
    hexadecimal size. Instruction fetches are counted and left out. An access that crosses a line is split.
    """
    from hwsim.catalog import load_machine

    spec = load_machine(machine, settings or ()).spec
    _check_core(spec, core)
    output = check_output(json_file, None, (machine, trace))
    replay = _replay(spec, trace, form, access_bytes, limit, core, seed)
    data = as_data(replay, spec, trace, tuple(settings or ()), seed)
    output.show(lambda: data, lambda: print_report(data))
    if not replay.complete:
        err().print(f"stopped early: these counts are of the first {replay.accesses:,} accesses only")
        raise typer.Exit(INTERRUPTED)


@dataclass(frozen=True)
class Replay:
    """What was replayed, and the hierarchy that counted it."""

    hierarchy: Hierarchy
    format: str
    accesses: int
    instructions: int
    complete: bool
    """False where the user stopped it."""


def _replay(
    spec: MachineSpec, trace: str, form: TraceFormat | None, access_bytes: int, limit: int | None, core: int, seed: int
) -> Replay:
    from hwsim.memory.hierarchy import build_hierarchy
    from hwsim.trace.nest import address_limit
    from hwsim.trace.reader import open_trace
    from hwsim.trace.text_trace import MAX_ACCESS_BYTES, ReadOptions

    hierarchy = build_hierarchy(spec, cores=None if core else 1, seed=seed)
    options = ReadOptions(access_bytes, address_limit(hierarchy.topology.grain) - MAX_ACCESS_BYTES)
    accesses = 0
    complete = True
    with open_trace(trace, form.value if form else None, options) as reader, _progress(reader) as progress:
        try:
            for chunk in reader:
                for part in _parts(chunk, None if limit is None else limit - accesses):
                    with _uninterrupted():
                        hierarchy.feed(*part, core=core)
                        accesses += len(part.addresses)
                progress.show(accesses)
                if accesses == limit:
                    break
        except KeyboardInterrupt:
            complete, CTRL_C.finishing = False, True
        return Replay(hierarchy, reader.format, accesses, reader.instructions, complete)


def _parts(chunk: AccessBlock, limit: int | None) -> Iterator[AccessBlock]:
    """The first `limit` accesses of a chunk, in parts that touch a bounded number of lines."""
    length = len(chunk.addresses) if limit is None else min(limit, len(chunk.addresses))
    step = max(1, _FEED_BYTES // max(16, int(chunk.sizes.max())))
    for start in range(0, length, step):
        yield chunk.part(start, min(start + step, length))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block, so that accesses are counted whole or not at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        waiting.append(number)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


class _Bar:
    """A progress bar; it shows itself only where stderr is a terminal."""

    def __init__(self, bar: Progress, task: TaskID, reader: TraceReader) -> None:
        self._bar = bar
        self._task = task
        self._reader = reader

    def show(self, accesses: int) -> None:
        elapsed = self._bar.tasks[0].elapsed or 0.0
        rate = f"{accesses / elapsed / 1e6:.1f} M accesses/s" if elapsed else ""
        self._bar.update(self._task, completed=self._reader.position, description="replaying", rate=rate)


@contextmanager
def _progress(reader: TraceReader) -> Iterator[_Bar]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=bars(), transient=True) as bar:
        first = "starting (the first run on a computer also compiles, for some seconds)"
        yield _Bar(bar, bar.add_task(first, total=reader.total_bytes, rate=""), reader)


def _check_core(spec: MachineSpec, core: int) -> None:
    count = sum(unit.count for unit in spec.compute)
    if core >= count:
        raise InputError(f"--core {core}: {spec.name} has cores 0 to {count - 1}")


def as_data(replay: Replay, spec: MachineSpec, trace: str, settings: Sequence[str], seed: int) -> dict[str, Any]:
    """All counts, for JSON: the same inputs give the same bytes."""
    levels = replay.hierarchy.level_counters()
    return {
        "machine": spec.name,
        "settings": list(settings),
        "trace": trace,
        "format": replay.format,
        "seed": seed,
        "complete": replay.complete,
        "accesses": replay.accesses,
        "instructions": replay.instructions,
        "levels": {name: _level(counters) for name, counters in levels.items()},
        "dram": replay.hierarchy.dram.counters.to_dict(),
        "links": _links(spec, levels, replay),
    }


def _level(counters: CacheCounters) -> dict[str, int | float]:
    rate = counters.misses / counters.accesses if counters.accesses else 0.0
    return {**counters.to_dict(), "miss_rate": rate}


def _links(spec: MachineSpec, levels: dict[str, CacheCounters], replay: Replay) -> dict[str, int]:
    """Bytes over each link, in both directions, from the compute unit outwards."""
    from hwsim.spec.machine import DramSpec, RegistersSpec

    inner = next((level.name for level in spec.memory if isinstance(level, RegistersSpec)), spec.compute[0].name)
    memory = next((level.name for level in spec.memory if isinstance(level, DramSpec)), "memory")
    links: dict[str, int] = {}
    for name, counters in levels.items():
        links |= {f"{name}→{inner}": counters.bytes_read, f"{inner}→{name}": counters.bytes_written}
        inner = name
    dram = replay.hierarchy.dram.counters
    return links | {f"{memory}→{inner}": dram.bytes_read, f"{inner}→{memory}": dram.bytes_written}


def print_report(data: dict[str, Any]) -> None:
    """Tables for people."""
    console = out()
    fetches = data["instructions"]
    noun = "fetch" if fetches == 1 else "fetches"
    left_out = f", {fetches:,} instruction {noun} left out" if fetches else ""
    console.print(
        styled(
            (data["machine"], "bold"),
            f" replayed {data['trace']} ({data['format']}): {data['accesses']:,} accesses{left_out}",
        ),
        soft_wrap=True,
    )
    if data["levels"]:
        columns = ("reads", "read_misses", "writes", "write_misses", "writebacks")
        console.print(_count_table("caches", data["levels"], columns, "miss rate"))
    if any(level["prefetches"] or level["prefetch_reads"] for level in data["levels"].values()):
        console.print(_count_table("prefetches", data["levels"], ("prefetches", "prefetch_hits", "prefetch_reads")))
    rows = ("reads", "writes", "row_hits", "row_misses", "row_conflicts")
    console.print(_count_table("main memory", {"dram": data["dram"]}, rows))
    console.print(_link_table(data["links"]))


def _count_table(title: str, rows: dict[str, dict[str, Any]], columns: Sequence[str], rate: str | None = None) -> Table:
    table = titled_table(title, "level")
    for column in columns:
        table.add_column(column.replace("writebacks", "write-backs").replace("_", " "), justify="right")
    if rate:
        table.add_column(rate, justify="right")
    for name, counts in rows.items():
        last = [f"{counts['miss_rate']:.2%}"] if rate else []
        table.add_row(name, *(f"{counts[column]:,}" for column in columns), *last)
    return table


def _link_table(links: dict[str, int]) -> Table:
    table = titled_table("links", "from → to")
    table.add_column("bytes", justify="right")
    for name, moved in links.items():
        table.add_row(name.replace("→", " → "), f"{moved:,}")
    return table
