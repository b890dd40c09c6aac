"""`hwsim show`: one machine or workload, at a glance or with every default filled in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import Settings, check_output, machine_completion
from hwsim.cli.console import make_table, out, print_json, print_plain, styled, titled_table
from hwsim.errors import InputError
from hwsim.text import digits, rate

if TYPE_CHECKING:
    from hwsim.spec.load import LoadedMachine, LoadedWorkload
    from hwsim.spec.machine import MachineSpec
    from hwsim.spec.workload import WorkloadSpec

SHOW_EXAMPLE = "Example: [cyan]hwsim show course_cpu --set l1.size='64 KiB' --resolved[/cyan]"


def show_command(
    name: Annotated[
        str, typer.Argument(help="A machine, workload, system or engine: its name, or the path of a file.")
    ],
    resolved: Annotated[bool, typer.Option("--resolved", help="Print full YAML with every default.")] = False,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the resolved description as JSON.")] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="MACHINE",
            help="List the choices of a workload's schedule that mean something on a machine.",
            autocompletion=machine_completion,
        ),
    ] = None,
    diagram: Annotated[bool, typer.Option("--diagram", help="Draw a machine: units, levels, links.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the machine into a file: png, svg or pdf.")
    ] = None,
) -> None:
    """Show a machine, workload, system or engine."""
    from hwsim.spec.fields import as_data, as_yaml
    from hwsim.spec.machine import MachineSpec
    from hwsim.systems.spec import described_kind, load_described

    if on is not None:
        print_knobs(name, on, settings or (), as_json)
        return
    if (kind := described_kind(name)) is not None:
        if settings or diagram or plot is not None:
            raise InputError(f"{name} is a {kind}: --set, --diagram and --plot are for machines and workloads")
        spec = load_described(kind, name)
        print_json(as_data(spec)) if as_json else print_plain(as_yaml(spec))
        return
    loaded = load_any(name, settings or ())
    if diagram or plot is not None:
        _draw(loaded.spec, diagram, plot)
    elif as_json:
        print_json(as_data(loaded.spec))
    elif resolved:
        print_plain(as_yaml(loaded.spec))
    else:
        _print_machine(loaded) if isinstance(loaded.spec, MachineSpec) else _print_workload(loaded)


def print_knobs(workload: str, machine: str, settings: Sequence[str], as_json: bool) -> None:
    """What a machine reads of the schedule of a workload: names, defaults, allowed values."""
    from dataclasses import asdict

    from hwsim.api import resolve_machine, resolve_workload
    from hwsim.target import find_target

    target, work = find_target(resolve_machine(machine, settings)), resolve_workload(workload, {})
    knobs = target.reads(work)
    if as_json:
        print_json([{key: value for key, value in asdict(knob).items() if key != "group"} for knob in knobs.values()])
        return
    if not knobs:
        out().print(f"{target.machine.name} reads nothing of the schedule of {work.name}")
        return
    table = titled_table(f"choices of {work.name} on {target.machine.name}", "choice")
    for column in ("also", "default", "allowed", "meaning"):
        table.add_column(column, no_wrap=column == "default")
    for knob in knobs.values():
        table.add_row(knob.name, ", ".join(knob.also), knob.default, knob.allowed.replace(",", ", "), knob.meaning)
    out().print(table)
    tried = {name: knob.tries for name, knob in knobs.items() if knob.tries}
    if tried:
        words = " ".join(f"{name}={values}" for name, values in tried.items())
        out().print(f"hwsim tune {target.machine.name} {work.name} tries {words}", style="dim", soft_wrap=True)


def _draw(spec: MachineSpec | WorkloadSpec, diagram: bool, plot: Path | None) -> None:
    """A machine in boxes: on the screen, and into a file."""
    from hwsim.results.plot.diagram import as_text, draw_machine, plot_diagram
    from hwsim.spec.machine import MachineSpec

    if not isinstance(spec, MachineSpec):
        raise InputError(f"{spec.name} is a workload; only a machine can be drawn")
    check_output(None, plot)
    if diagram:
        print_plain(as_text(spec))
    if plot is not None:
        plot_diagram(draw_machine(spec), plot, spec.name)


def load_any(name: str, settings: Sequence[str]) -> LoadedMachine | LoadedWorkload:
    """A machine or a workload, whichever the name or the file means."""
    from hwsim.catalog import find_any, load_machine, load_workload

    kind, path = find_any(name)
    return load_machine(path, settings) if kind == "machine" else load_workload(path, settings)


def _print_machine(loaded: LoadedMachine) -> None:
    """How fast a machine is, behind which memory, and what it draws; `--resolved` has every field."""
    from hwsim.spec.fields import as_data

    console = out()
    machine = as_data(loaded.spec)
    _print_head(loaded.spec.name, loaded.spec.description, loaded.files)
    clocks = {clock["name"]: clock["frequency"] for clock in machine["clocks"]}
    first = next(iter(clocks))
    units = make_table("compute", "kind", "count", "clock", "more", left=(0, 1, 4))
    for unit in machine["compute"]:
        hidden = ("name", "kind", "count", "source", "clock")
        rest = {key: value for key, value in unit.items() if key not in hidden and _is_short(value)}
        units.add_row(
            unit["name"],
            unit["kind"],
            str(unit.get("count", 1)),
            clocks[unit.get("clock") or first],
            _in_one_line(rest),
        )
    console.print(units)
    console.print()
    levels = make_table("level", "kind", "size", "latency", "bandwidth", "shared by", "more", left=(0, 1, 6))
    for level in machine["memory"]:
        cells = (_cell(level.get(name)) for name in ("name", "kind", "size", "latency", "bandwidth", "shared_by"))
        levels.add_row(*cells, _in_one_line({name: level[name] for name in _OF_A_LEVEL if level.get(name) is not None}))
    console.print(levels)
    _print_peaks(loaded.spec)
    console.print()
    _print_power(machine["energy"])
    missing = len(loaded.unsourced)
    if missing:
        console.print(f"{missing} numbers have no source; hwsim check lists them")
    console.print(f"every field: hwsim show {loaded.spec.name} --resolved", style="dim", soft_wrap=True)


_OF_A_LEVEL = ("count", "bits", "line", "ways", "holds", "buffers", "channels", "banks")
"""What else the first screen says of a level."""


def _is_short(value: Any) -> bool:
    """Plain values, and groups of plain values: a list of a library's kernels is for --resolved."""
    if isinstance(value, dict):
        return all(not isinstance(each, dict | list) for each in value.values())
    return value is not None and not isinstance(value, list)


def _print_peaks(machine: MachineSpec) -> None:
    """The peak of each format with all units, and the arithmetic intensity from which on main memory keeps up."""
    from hwsim.cli.roofline import probes
    from hwsim.results.plot.roofline import make_roofline

    found = make_roofline(machine, {}, probes(machine))
    if not found.ceilings:
        return
    console = out()
    console.print()
    far = list(found.roofs)[-1] if found.roofs else ""
    heads = ("number format", "peak", f"ridge at {far}") if far else ("number format", "peak")
    table = make_table(*heads)
    together: dict[float, list[str]] = {}
    for name, peak in found.ceilings.items():
        together.setdefault(peak, []).append(name)
    for peak, names in together.items():
        ridge = (f"{digits(peak / found.roofs[far])} flop/byte",) if far else ()
        table.add_row(", ".join(names), rate(peak, "FLOP"), *ridge)
    console.print(table)


def _print_power(prices: dict[str, Any] | None) -> None:
    console = out()
    if not prices:
        console.print("energy: no prices given")
        return
    static = ", ".join(f"{name} {part['power']}" for name, part in (prices.get("static") or {}).items())
    limit = f"; limit {prices['tdp']['power']}" if prices.get("tdp") else ""
    words = f"energy: {len(prices['actions'])} prices at {prices['node']}; static power: {static or 'none'}{limit}"
    console.print(words)


def _in_one_line(fields: dict[str, Any]) -> str:
    shown = []
    for key, value in fields.items():
        if isinstance(value, dict):
            shown.append(f"{key} ({_in_one_line(value)})")
        elif value is not None:
            shown.append(f"{key} {_cell(value)}")
    return ", ".join(shown)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(str(item) for item in value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _print_workload(loaded: LoadedWorkload) -> None:
    from hwsim.spec.fields import as_data

    _print_head(loaded.spec.name, loaded.spec.description, loaded.files)
    for key, value in as_data(loaded.spec).items():
        if key in ("format", "name", "description", "shows") or value in (None, "", {}, []):
            continue
        if key == "blocks":
            _print_blocks(value)
            continue
        out().print(f"  {key}: {_in_one_line(value) if isinstance(value, dict) else value}")


def _print_blocks(blocks: Sequence[dict[str, Any]]) -> None:
    """The blocks of a model, each in a line or two."""
    out().print("  blocks:")
    for block in blocks:
        often = f" x {block['repeat']}" if block["repeat"] != 1 else ""
        listed = ", ".join(f"{each['name']} ({each['op']})" for each in block["operations"])
        out().print(styled("    ", (f"{block['name']}{often}", "cyan"), f": {listed}"), soft_wrap=True)


def _print_head(name: str, description: str, files: Sequence[Path]) -> None:
    from hwsim.catalog import shown

    console = out()
    console.print(styled((name, "bold"), f": {' '.join(description.split())}"))
    console.print(f"from {' ← '.join(shown(file) for file in files)}", style="dim", soft_wrap=True)
