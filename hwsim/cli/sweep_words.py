"""What the commands that run many points share: sorting words, following a sweep, and its options."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import err
from hwsim.errors import InputError

if TYPE_CHECKING:
    from hwsim.sweep.request import Request
    from hwsim.sweep.runner import Finished, Tally

AxisSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUES", help="Fields of the machine, such as l2.size=256KiB,1MiB; repeatable."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", help="Worker processes; as many as there are cores if not given."),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="NAME",
        help="inprocess, processes, dask; auto starts processes where that pays.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="A Dask scheduler that runs already, such as tcp://10.0.0.1:8786."
    ),
]
PlotFile = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: png, svg or pdf.")]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - prints it, and nothing else.")
]


@dataclass(frozen=True)
class Names:
    """A command line, sorted: machines, workloads, and axes as they were typed."""

    machines: tuple[str, ...]
    workloads: tuple[str, ...]
    parameters: dict[str, str]


def sort_words(words: Sequence[str]) -> Names:
    """Words with ``=`` are axes; of the others the first names machines, the second workloads, with commas between."""
    from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD

    names = [word for word in words if "=" not in word]
    parameters = pairs([word for word in words if "=" in word], "write an axis as name=values, such as tile=8..256:x2")
    if len(names) > 2:
        raise InputError(
            f"'{names[2]}': machines, then workloads are expected, each with commas between; axes are name=values"
        )
    groups = [tuple(part.strip() for part in name.split(",") if part.strip()) for name in names]
    if any(not group for group in groups):
        raise InputError("a name is missing between commas")
    if len(groups) == 2:
        return Names(groups[0], groups[1], parameters)
    if not groups:
        return Names((DEFAULT_MACHINE,), (DEFAULT_WORKLOAD,), parameters)
    from hwsim.catalog import find_any

    kind, _ = find_any(groups[0][0])
    if kind == "machine":
        return Names(groups[0], (DEFAULT_WORKLOAD,), parameters)
    return Names((DEFAULT_MACHINE,), groups[0], parameters)


def make_request(words: Sequence[str], settings: Iterable[str] | None, seed: int | None, math: bool) -> Request:
    """The sweep that a command line asks for: by words, or by the path of a sweep file."""
    from hwsim.sweep import request as requests
    from hwsim.sweep.file import is_sweep_file, load_sweep

    files = [word for word in words if is_sweep_file(Path(word))]
    if files:
        if len(words) > 1 or settings:
            raise InputError(f"{files[0]} says all about its sweep; give nothing else, or change the file")
        return load_sweep(Path(files[0]))
    given = sort_words(words)
    fields = pairs(list(settings or ()), "write a field as path=values, such as l2.size=256KiB,1MiB")
    return requests.make_request(given.machines, given.workloads, given.parameters, fields, seed, math)


@contextmanager
def heeding_ctrl_c() -> Iterator[list[bool]]:
    """Remembers Ctrl-C: one that arrives inside foreign code, such as the compiler's, would be lost otherwise."""
    asked: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def follow(news: Iterable[Finished], total: int, doing: str) -> Tally:
    """Watch points arrive, with a bar on a terminal. Raises KeyboardInterrupt where Ctrl-C was pressed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hwsim.sweep.runner import Tally

    tally = Tally()
    columns = (
        TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"), TimeRemainingColumn()
    )  # fmt: skip
    shown = Progress(*columns, console=err(), transient=True, disable=not err().is_terminal)
    with heeding_ctrl_c() as asked, shown as bar:
        task = bar.add_task("points", total=total, failed="")
        for each in news:
            tally.add(each)
            if asked:
                raise KeyboardInterrupt
            bar.update(task, advance=1, failed=f"{tally.failed} failed" if tally.failed else "")
    return tally


def pairs(words: Sequence[str], how: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"'{word}': {how}")
        if name.strip() in pairs:
            raise InputError(f"'{word}': {name.strip()} is given twice; write its values with commas between")
        pairs[name.strip()] = value.strip()
    return pairs
