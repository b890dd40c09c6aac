"""`hwsim collective`: how long devices of a system take to exchange data, by which algorithm, over which links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, check_output, pairs
from hwsim.cli.console import make_table, screen, styled, wrapped
from hwsim.errors import InputError
from hwsim.text import counted, data, percent, rate, seconds

if TYPE_CHECKING:
    from hwsim.systems.communicate import Communication
    from hwsim.systems.spec import SystemSpec

COLLECTIVE_EXAMPLE = (
    "Example: [cyan]hwsim collective 8xh100 all_reduce bytes=64MB[/cyan]   "
    "[cyan]hwsim collective 4xl40s all_reduce bytes=1KiB..1GiB:x4 --plot[/cyan]"
)
_PARAMETERS = ("bytes", "library", "algorithm", "format", "devices")
_HOW = "write a parameter as name=value, such as bytes=64MB"


def collective_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM [COLLECTIVE] [NAME=VALUE]...",
            help="A system (dgx_h100, 8xh100), a collective, and bytes=, library=, algorithm=, format=, devices=.",
        ),
    ],
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="A lane for each link: JSON for Perfetto, or a plot."),
    ] = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Show how long devices take to exchange data: algorithm, time, formula, links; all-reduce if none is named."""
    from hwsim.systems.communicate import check_library, communicate
    from hwsim.systems.spec import Operation, load_system

    output = check_output(json_file, plot, words, timeline=timeline)
    names = [word for word in words if "=" not in word]
    if not 1 <= len(names) <= 2:
        raise InputError("give a system, then a collective: hwsim collective 8xh100 all_reduce bytes=64MB")
    given = pairs([word for word in words if "=" in word], _HOW)
    _check(given, names[1:], get_args(Operation))
    op = names[1] if len(names) == 2 else "all_reduce"
    system = load_system(names[0])
    library = check_library(system, given.get("library"))
    sizes = _sizes(given.get("bytes", "64MB"))
    devices = _devices(given.get("devices"), system)
    form, algorithm = given.get("format", "bf16"), given.get("algorithm", "")
    if len(sizes) > 1 and timeline is not None:
        raise InputError("--timeline shows one size; give bytes=64MB or the like")

    def ask(nbytes: int, algorithm: str = algorithm) -> Communication:
        return communicate(
            system, op, nbytes, devices=devices, library=library, algorithm=algorithm, form=form,
            timeline=timeline is not None,
        )  # fmt: skip

    found = [ask(nbytes) for nbytes in sizes]
    if timeline is not None:
        _write_timeline(timeline, found[0], f"{op} on {names[0]}")
    if plot is not None:
        from hwsim.results.plot.model import plot_collective

        known = _algorithms(system, op, library, devices, form) if not algorithm else [algorithm]
        lines = {each: _points([ask(nbytes, each) for nbytes in sizes]) for each in known}
        title = f"{op} on {counted(devices, 'device')} of {names[0]}, {library}"
        plot_collective({"fastest": _points(found), **lines} if len(lines) > 1 else lines, plot, title)

    def show() -> None:
        if len(found) == 1:
            _print_one(system, library, found[0], [ask(sizes[0], each) for each in _algorithms(
                system, op, library, devices, form)])  # fmt: skip
        else:
            _print_many(names[0], library, found)

    output.show(lambda: [_data(each) for each in found], show)


def _check(given: dict[str, str], names: list[str], operations: tuple[str, ...]) -> None:
    from hwsim.spec.fields import did_you_mean

    for name in given:
        if name not in _PARAMETERS:
            raise InputError(f"'{name}' is not one of {', '.join(_PARAMETERS)}{did_you_mean(name, _PARAMETERS)}")
    for name in names:
        if name not in operations:
            raise InputError(f"'{name}' is not one of {', '.join(operations)}{did_you_mean(name, operations)}")


def _sizes(text: str) -> list[int]:
    from hwsim.sweep.grid import make_axis
    from hwsim.units import parse_bytes

    try:
        return [parse_bytes(value) for value in make_axis("bytes", text).values]
    except ValueError as error:
        raise InputError(f"bytes={text}: {error}") from None


def _devices(text: str | None, system: SystemSpec) -> int:
    if text is None:
        return system.count
    if not text.isdecimal() or not 2 <= int(text) <= system.count:
        raise InputError(f"devices={text}: from 2 to {system.count}, which {system.name} has")
    return int(text)


def _algorithms(system: SystemSpec, op: str, library: str, devices: int, form: str) -> list[str]:
    from hwsim.systems.communicate import LinkTopology, candidates

    topology = LinkTopology.of(system, range(devices))
    return list(dict.fromkeys(plan.kernel.name for plan in candidates(topology, op, library, form)))


def _print_one(system: SystemSpec, library: str, found: Communication, others: list[Communication]) -> None:
    from hwsim.systems.bars import collective_bar

    console = screen()
    what = f"{found.op} of {data(found.nbytes)} on {found.ranks} x {system.machine}, {library}"
    console.print(styled((what, "bold")))
    if not found.elapsed_fs:
        console.print("one device has nobody to talk to: nothing moves")
        return
    port = system.inside.bandwidth.amount
    console.print(styled(("took ", "dim"), (seconds(found.seconds), "bold"), f" by {found.kernel}"))
    speed = f"{rate(found.bus_bytes_per_s, 'B')}: {found.bus_words} over the time"
    if port is not None:
        speed += f"; {percent(found.bus_bytes_per_s, float(port))} of a port"
    wrapped(console, "bus bandwidth ", speed, "")
    console.print(collective_bar(system, found), style="dim")
    how = "the start, and for each round its step and the bytes of its busiest link over the bandwidth"
    wrapped(console, "formula ", f"{seconds(found.formula_fs / 1e15)}: {how}", "")
    table = make_table("kernel", "time", "against the fastest", "moved")
    for each in sorted(others, key=lambda one: one.elapsed_fs):
        total = sum(amount for link, amount in each.moved.items() if _leaves(link))
        table.add_row(each.kernel, seconds(each.seconds), f"{each.elapsed_fs / found.elapsed_fs:.2f} x", data(total))
    console.print(table)
    busiest = max(found.moved, key=lambda link: found.moved[link])
    console.print(f"busiest link: {busiest}, {data(found.moved[busiest])}", style="dim")


def _points(found: list[Communication]) -> list[tuple[float, float]]:
    return [(float(each.nbytes), each.seconds) for each in found]


def _leaves(link: str) -> bool:
    """Links that bytes leave a device by: each byte is counted once on them."""
    return (link.endswith(" out") and "uplink" not in link) or "→" in link


def _print_many(name: str, library: str, found: list[Communication]) -> None:
    console = screen()
    console.print(styled((f"{found[0].op} on {found[0].ranks} devices of {name}, {library}", "bold")))
    table = make_table("bytes", "time", "formula", "bus bandwidth", "kernel", left=(0, 4))
    for each in found:
        speed = rate(each.bus_bytes_per_s, "B")
        table.add_row(data(each.nbytes), seconds(each.seconds), seconds(each.formula_fs / 1e15), speed, each.kernel)
    console.print(table)


def _data(found: Communication) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **{key: value for key, value in asdict(found).items() if key != "spans"},
        "seconds": found.seconds,
        "bus_bytes_per_s": found.bus_bytes_per_s,
    }


def _write_timeline(path: Path, found: Communication, title: str) -> None:
    from hwsim.files import write_text
    from hwsim.results.plot.style import is_plot_file
    from hwsim.results.plot.timeline import plot_timeline, timeline_json

    if is_plot_file(path):
        plot_timeline(found.spans, path, title)
    else:
        write_text(path, timeline_json(found.spans, title, ()))
