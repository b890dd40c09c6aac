"""`hwsim run`: simulate a workload on a machine, and tell what it cost and why."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import err, print_plain
from hwsim.cli.show import Settings
from hwsim.errors import CheckFailedError, InputError

if TYPE_CHECKING:
    from hwsim.api import Run
    from hwsim.results.result import RunResult

EXAMPLE = "Example: [cyan]hwsim run course_cpu matmul_tiled n=256 tile=32 --set l1.size='64 KiB'[/cyan]"

_SPINNER_AFTER_S = 1.0


def run_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MACHINE] [WORKLOAD] [KEY=VALUE]...",
            help="A machine and a workload, by name or path, and the workload's parameters, such as n=256; "
            "without any, matmul_tiled on course_cpu.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints it, and nothing else."),
    ] = None,
    no_math: Annotated[
        bool, typer.Option("--no-math", help="Do not compute the answer; for sizes that would take too long.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="For random inputs and random replacement.", show_default=False),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what held which resource when, and power over time, for Perfetto; or draw it (png, svg, pdf).",
        ),
    ] = None,
    energy_csv: Annotated[
        Path | None,
        typer.Option("--energy-csv", metavar="FILE", help="Write counts, prices, joules and sources of all actions."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw where time and energy went: png, svg or pdf.")
    ] = None,
) -> None:
    """Simulate a workload on a machine: what it costs, and why."""
    from hwsim.cli.last_run import remember
    from hwsim.cli.run_screen import print_screen
    from hwsim.results.plot.file import check_plot_file, is_plot_file

    given = parse_words(words or ())
    target = None if json_file in (None, "-") else Path(str(json_file)).expanduser()
    for option, path in (("--json", target), ("--timeline", timeline), ("--energy-csv", energy_csv), ("--plot", plot)):
        check_place(option, path)
    check_plot_file(plot)
    with spinner("simulating"):
        run = _run(given, settings or (), seed, not no_math, timeline is not None)
    result = run.result
    remember(result)
    if json_file == "-":
        print_plain(result.to_json())
    else:
        print_screen(result, given.words(), tuple(settings or ()))
    if target is not None:
        _write(target, result.to_json())
    if timeline is not None and is_plot_file(timeline):
        result.plot.timeline(run.outcome.spans, timeline)
    elif timeline is not None:
        from hwsim.results.power import power_over_time
        from hwsim.results.resolved import machine_of
        from hwsim.results.timeline import timeline_json

        power = power_over_time(machine_of(result), run.outcome)
        _write(timeline, timeline_json(run.outcome.spans, f"{result.workload} on {result.machine}", power))
    if energy_csv is not None:
        _write_energy(energy_csv, result)
    if plot is not None:
        from hwsim.results.plot.split import plot_split

        plot_split(result, plot)
    if result.verified is False:
        raise CheckFailedError(f"{result.workload}: {result.warnings[-1]}")


def _write_energy(path: Path, result: RunResult) -> None:
    from hwsim.results.energy_report import energy_csv

    if result.energy_j is None:
        raise InputError(f"--energy-csv {path}: {result.machine} has no energy prices")
    _write(path, energy_csv(result))


@dataclass(frozen=True)
class Words:
    """A command line, sorted: machine, workload, parameters."""

    machine: str
    workload: str
    parameters: dict[str, str]

    def words(self) -> tuple[str, ...]:
        return (self.machine, self.workload, *(f"{name}={value}" for name, value in self.parameters.items()))


def parse_words(words: Sequence[str]) -> Words:
    """A word with ``=`` is a parameter; of the others the first is the machine, the second the workload."""
    from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD

    names = [word for word in words if "=" not in word]
    parameters: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            continue
        if not name.strip() or not value.strip():
            raise InputError(f"'{word}': write a parameter as key=value, such as n=256")
        if name in parameters:
            raise InputError(f"'{word}': {name} is given twice")
        parameters[name.strip()] = value.strip()
    if len(names) > 2:
        raise InputError(f"'{names[2]}': only a machine and a workload are expected; parameters are key=value")
    if len(names) == 2:
        return Words(names[0], names[1], parameters)
    if not names:
        return Words(DEFAULT_MACHINE, DEFAULT_WORKLOAD, parameters)
    return _one_name(names[0], parameters, DEFAULT_MACHINE, DEFAULT_WORKLOAD)


def _one_name(name: str, parameters: dict[str, str], machine: str, workload: str) -> Words:
    from hwsim.catalog import find_any

    kind, _ = find_any(name)
    return Words(name, workload, parameters) if kind == "machine" else Words(machine, name, parameters)


def _run(given: Words, settings: Sequence[str], seed: int | None, math: bool, timeline: bool) -> Run:
    from hwsim.api import resolve_machine, run_all

    machine = resolve_machine(given.machine, settings)
    parts = {part.name for part in (*machine.compute, *machine.memory)}
    stray = [name for name in given.parameters if name.partition(".")[0] in parts and "." in name]
    if stray:
        word = f"{stray[0]}={given.parameters[stray[0]]}"
        raise InputError(f"{word}: this belongs to the machine; write --set {word!r}")
    if seed is not None and "seed" in given.parameters:
        raise InputError("give the seed once: as --seed or as seed=")
    return run_all(machine, given.workload, seed=seed, math=math, timeline=timeline, parameters=given.parameters)


def check_place(option: str, path: Path | None) -> None:
    """A place that cannot be written is found out before the work, not after it."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{option} {path}: this is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """Something that turns while one waits: on a terminal, and only after a second."""
    console = err()
    if not console.is_terminal:
        yield
        return
    status = console.status(f"{doing} (the first run on a computer also compiles, for some seconds)")
    timer = threading.Timer(_SPINNER_AFTER_S, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
