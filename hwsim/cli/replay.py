"""`hwsim replay`: a trace from outside through a machine's caches; counts per level and bytes per link."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import err, print_json, write_json
from hwsim.cli.show import Settings
from hwsim.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from hwsim.hardware.hierarchy import Hierarchy
    from hwsim.spec.machine import MachineSpec
    from hwsim.trace.readers.accesses import Accesses, TraceReader

EXAMPLE = "Example: [cyan]hwsim replay course_cpu trace.din.gz --set l1.size='64 KiB' --json counts.json[/cyan]"

_FEED_BYTES = 1 << 22
"""How much is fed at a time, in bytes accessed: keeps the buffers small where accesses span many lines."""
_INTERRUPTED = 130


class Format(Enum):
    DIN = "din"
    LACKEY = "lackey"
    NPZ = "npz"


def replay_command(
    machine: Annotated[str, typer.Argument(help="A machine: its name, or the path of a file.")],
    trace: Annotated[
        str,
        typer.Argument(help="din or Valgrind lackey text, plain or gzip, or .npz; - is standard input."),
    ],
    settings: Settings = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="What the trace is, if not found out from its content.")
    ] = None,
    access_bytes: Annotated[
        int,
        typer.Option(min=1, max=4096, metavar="N", help="Bytes of an access whose size the trace does not tell."),
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
    from hwsim.cli.replay_report import as_data, print_report

    spec = load_machine(machine, settings or ()).spec
    _check_core(spec, core)
    target = _json_target(json_file)
    replay = _replay(spec, trace, form, access_bytes, limit, core, seed)
    data = as_data(replay, spec, trace, tuple(settings or ()), seed)
    if json_file == "-":
        print_json(data)
    else:
        print_report(data)
    if target is not None:
        write_json(target, data)
    if not replay.complete:
        err().print(f"stopped early: these counts are of the first {replay.accesses:,} accesses only")
        raise typer.Exit(_INTERRUPTED)


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
    spec: MachineSpec,
    trace: str,
    form: Format | None,
    access_bytes: int,
    limit: int | None,
    core: int,
    seed: int,
) -> Replay:
    from hwsim.hardware.build import build_hierarchy
    from hwsim.trace.event import address_limit
    from hwsim.trace.reader import open_trace
    from hwsim.trace.readers.accesses import MAX_ACCESS_BYTES, ReadOptions

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
            complete = False
        return Replay(hierarchy, reader.format, accesses, reader.instructions, complete)


def _parts(chunk: Accesses, limit: int | None) -> Iterator[Accesses]:
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

    console = err()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        first = "starting (the first run on a computer also compiles, for some seconds)"
        yield _Bar(bar, bar.add_task(first, total=reader.total_bytes, rate=""), reader)


def _check_core(spec: MachineSpec, core: int) -> None:
    count = sum(unit.count for unit in spec.compute)
    if core >= count:
        raise InputError(f"--core {core}: {spec.name} has cores 0 to {count - 1}")


def _json_target(json_file: str | None) -> Path | None:
    """Where the JSON goes; a place that cannot be written is found out before the work, not after it."""
    if json_file in (None, "-"):
        return None
    target = Path(str(json_file)).expanduser()
    if target.is_dir():
        raise InputError(f"--json {target}: this is a folder")
    if not target.parent.is_dir():
        raise InputError(f"--json {target}: there is no folder {target.parent}")
    return target
