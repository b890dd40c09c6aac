"""`hwsim show`: one machine or workload, at a glance or with every default filled in.

`hwsim list`: which machines, workloads, models, systems and engines can be found by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import BareJson, Output, Settings, check_output, machine_completion
from hwsim.cli.console import make_table, out, print_plain, styled, titled_table, wrapped
from hwsim.errors import InputError
from hwsim.units import digits, rate

if TYPE_CHECKING:
    from hwsim.catalog import Kind
    from hwsim.spec.load import LoadedMachine, LoadedWorkload
    from hwsim.spec.machine import MachineSpec
    from hwsim.spec.workload import WorkloadSpec
    from hwsim.systems.spec import EngineSpec, SystemSpec
    from hwsim.target import Knob

NO_DEFAULT = "–"
SHOW_EXAMPLE = (
    "Example: [cyan]hwsim show course_cpu --set l1.size='64 KiB' --resolved[/cyan]   "
    "To keep a variant, write a file: format: 1, name: mine, extends: course_cpu, and the fields that differ."
)


def show_command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A machine, workload, system or engine: its name, or the path of a file.", show_default=False
        ),
    ] = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Print full YAML with every default.")] = False,
    settings: Settings = None,
    json_file: BareJson = None,
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
    from hwsim.spec.fields import as_data
    from hwsim.systems.spec import described_kind, load_described

    if name is None:
        raise InputError(
            "show what? hwsim list names machines, workloads, models, systems and engines; then: hwsim show course_cpu"
        )
    output = check_output(json_file, plot, (name,))
    if on is not None:
        print_knobs(name, on, settings or (), output)
        return
    if (kind := described_kind(name)) is not None:
        if settings or diagram or plot is not None:
            raise InputError(f"{name} is a {kind}: --set, --diagram and --plot are for machines and workloads")
        spec = load_described(kind, name)
        output.show(lambda: as_data(spec), lambda: _print_described(spec, resolved))
        return
    loaded = load_any(name, settings or ())
    if diagram or plot is not None:
        _draw(loaded.spec, diagram, plot)
    else:
        output.show(lambda: as_data(loaded.spec), lambda: _print_loaded(loaded, resolved, settings or ()))


def _print_described(spec: SystemSpec | EngineSpec, resolved: bool) -> None:
    from hwsim.spec.fields import as_data, as_yaml
    from hwsim.systems.spec import SystemSpec

    if resolved:
        print_plain(as_yaml(spec))
    else:
        _print_system(spec) if isinstance(spec, SystemSpec) else _print_engine(as_data(spec))


def _print_loaded(loaded: LoadedMachine | LoadedWorkload, resolved: bool, settings: Sequence[str]) -> None:
    from hwsim.spec.fields import as_yaml
    from hwsim.spec.machine import MachineSpec

    if resolved:
        print_plain(as_yaml(loaded.spec))
    else:
        _print_machine(loaded, settings) if isinstance(loaded.spec, MachineSpec) else _print_workload(loaded, settings)


def print_knobs(workload: str, machine: str, settings: Sequence[str], output: Output) -> None:
    """What a machine reads of the schedule of a workload: names, defaults, allowed values."""
    from dataclasses import asdict

    from hwsim.api import resolve_machine, resolve_workload
    from hwsim.target import find_target

    target, work = find_target(resolve_machine(machine, settings)), resolve_workload(workload, {})
    knobs = target.reads(work)
    data = [{key: value for key, value in asdict(knob).items() if key != "group"} for knob in knobs.values()]
    output.show(lambda: data, lambda: _print_knobs(target.machine.name, work.name, knobs))


def _print_knobs(machine: str, workload: str, knobs: Mapping[str, Knob]) -> None:
    if not knobs:
        out().print(f"{machine} reads nothing of the schedule of {workload}")
        return
    table = titled_table(f"choices of {workload} on {machine}", "choice")
    for column in ("default", "allowed, and what it means"):
        table.add_column(column, no_wrap=column == "default")
    for (_, allowed, meaning), alike in groupby(knobs.values(), _family):
        same = [*alike]
        table.add_row(
            *_names(same), " ".join(filter(None, (_values(allowed), f"{meaning.rstrip('.')}.", _other_names(same))))
        )
    out().print(table)
    tried = {name: knob.tries for name, knob in knobs.items() if knob.tries}
    if tried:
        words = " ".join(f"{name}={values}" for name, values in tried.items())
        out().print(f"hwsim tune {machine} {workload} tries {words}", style="dim", soft_wrap=True)


def _family(knob: Knob) -> tuple[str, str, str]:
    """What choices share that differ in their last word alone: tiles of each loop."""
    head, dot, _ = knob.name.rpartition(".")
    return head if dot else knob.name, knob.allowed, knob.meaning


def _values(allowed: str) -> str:
    """The values that a choice may have, as the beginning of a sentence."""
    if allowed.endswith(".."):
        return f"{allowed.removesuffix('..')} or more –"
    return f"{allowed.replace(',', ', ')} –" if allowed else ""


def _names(same: Sequence[Knob]) -> tuple[str, str]:
    """The name of a choice, or what several begin with, and what is taken where nobody chooses."""
    if len(same) == 1:
        return same[0].name, same[0].default
    chosen = [f"{knob.name.rpartition('.')[2]} {knob.default}" for knob in same if knob.default != NO_DEFAULT]
    return f"{same[0].name.rpartition('.')[0]}.LOOP", ", ".join(chosen) or NO_DEFAULT


def _other_names(same: Sequence[Knob]) -> str:
    """The loops that several choices are for, and what else they can be called."""
    loops = [knob.name.rpartition(".")[2] for knob in same]
    also = same[0].also
    if len(same) > 1:
        also = tuple(f"{each.rpartition('.')[0]}.LOOP" for each in also)
    words = [f"LOOP is one of {', '.join(loops)}."] if len(same) > 1 else []
    return " ".join([*words, f"Also: {', '.join(also)}."] if also else words)


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


def _print_machine(loaded: LoadedMachine, settings: Sequence[str]) -> None:
    """How fast a machine is, behind which memory, and what it draws; `--resolved` has every field."""
    from hwsim.spec.fields import as_data

    console = out()
    machine = as_data(loaded.spec)
    _print_head(loaded.spec.name, loaded.spec.description, loaded.files, settings)
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


def _print_system(system: SystemSpec) -> None:
    """Devices, the links between them, what libraries make of those, and what it was compared with."""
    from hwsim.spec.fields import as_data
    from hwsim.systems.bars import compared_words

    console, fields = out(), as_data(system)
    console.print(styled((system.name, "bold"), f": {' '.join(system.description.split())}"))
    nodes = system.count // system.node_size
    where = f"{nodes} nodes of {system.node_size}" if nodes > 1 else "one node" if system.count > 1 else "alone"
    others = [name for name in system.like if name != system.machine]
    like = f"; {', '.join(others)} may stand in their places" if others else ""
    console.print(f"devices: {system.count} x {system.machine}, {where}{like}", soft_wrap=True)
    _print_together(system)
    console.print()
    links = make_table("link", "kind", "bandwidth", "more", left=(0, 1, 3))
    for name, link in ((name, fields[name]) for name in ("inside", "between", "host")):
        if link is not None and (name == "host" or system.count > 1):
            shared = [f"{each['bandwidth']} for {each['devices']} together" for each in link.pop("shared", ())]
            users = link.pop("shared_by", 1)
            kind = link.pop("topology", "of each device" if users == 1 else f"shared by {users}")
            rest = {key: value for key, value in link.items() if key not in ("bandwidth", "source")}
            links.add_row(name, kind, link["bandwidth"], "; ".join(filter(None, (_in_one_line(rest), *shared))))
    console.print(links)
    if system.count > 1:
        console.print("bandwidth of one device's port, each way", style="dim")
        console.print()
        kernels = make_table("library", "kernel", "of a port", "start", "each step", "for", left=(0, 1, 5))
        for name, library in fields["libraries"].items():
            for number, kernel in enumerate(library["kernels"]):
                kind = kernel["algorithm"] + (f", {kernel['protocol']}" if kernel["protocol"] else "")
                share = f"{100 * kernel['share']:.0f} %"
                cells = kind.replace("_", " "), share, kernel["start"], kernel["step"], ", ".join(kernel["ops"])
                kernels.add_row(name if not number else "", *cells)
            if library["beside"]:
                kernels.add_row("" if library["kernels"] else name, f"and those of {library['beside']}", "", "", "", "")
        console.print(kernels)
        console.print(f"compared with: {compared_words(system)}", soft_wrap=True)
        console.print(f"try: hwsim collective {system.name} all_reduce bytes=64MB", style="dim", soft_wrap=True)
    console.print(f"every field, with sources: hwsim show {system.name} --resolved", style="dim", soft_wrap=True)


def _print_together(system: SystemSpec) -> None:
    """Memory and peaks of all devices, where their machine is described."""
    from hwsim.catalog import machine_names
    from hwsim.cli.compare import probes
    from hwsim.results.plot.run import make_roofline
    from hwsim.systems.spec import device_of
    from hwsim.units import data

    if system.machine not in machine_names():
        out().print(f"there is no machine {system.machine} yet: collectives can be asked for, models cannot")
        return
    device = device_of(system)
    peaks = make_roofline(device, {}, probes(device)).ceilings
    size = getattr(device.memory[-1], "size", None)
    memory = f"{data(int(size) * system.count)} of memory, " if size else ""
    best = ", ".join(
        f"{rate(peaks[name] * system.count, 'FLOP')} in {name}" for name in ("bf16", "fp32") if name in peaks
    )
    out().print(f"all devices: {memory}{best}; one of them: hwsim show {system.machine}", soft_wrap=True)


def _print_engine(fields: dict[str, Any]) -> None:
    """How an engine batches, and what its host costs."""
    console, host = out(), fields["host"]
    console.print(styled((fields["name"], "bold"), f": {' '.join(fields['description'].split())}"))
    prompts = "in pieces" if fields["chunked"] else "whole"
    beside = "share a step with decoding" if fields["mixed"] else "go first, decoding waits"
    console.print(f"  a step      at most {fields['tokens']:,} tokens of {fields['requests']:,} requests")
    console.print(f"  prompts     are read {prompts}, and {beside}")
    console.print(
        f"  cache       blocks of {fields['block']} tokens; {100 * fields['memory']:.0f} % of memory with the weights"
    )
    costs = {key: value for key, value in host.items() if key not in ("source", "overlap")}
    side = "while the devices work" if host["overlap"] else "on top of the devices' time"
    console.print(f"  host        {_in_one_line(costs)}; {side}")
    console.print(f"  all-reduce  by {fields['library']}")
    console.print(f"every field, with sources: hwsim show {fields['name']} --resolved", style="dim", soft_wrap=True)


_OF_A_LEVEL = ("count", "bits", "line", "ways", "holds", "buffers", "channels", "banks")
"""What else the first screen says of a level."""


def _is_short(value: Any) -> bool:
    """Plain values, and groups of plain values: a list of a library's kernels is for --resolved."""
    if isinstance(value, dict):
        return all(not isinstance(each, dict | list) for each in value.values())
    return value is not None and not isinstance(value, list)


def _print_peaks(machine: MachineSpec) -> None:
    """The peak of each format with all units, and the arithmetic intensity from which on main memory keeps up."""
    from hwsim.cli.compare import probes
    from hwsim.numerics.format import operation_unit
    from hwsim.results.plot.run import make_roofline
    from hwsim.spec.fields import as_data

    found = make_roofline(machine, {}, probes(machine))
    if not found.ceilings:
        return
    console = out()
    console.print()
    far = list(found.roofs)[-1] if found.roofs else ""
    heads = ("number format", "peak", f"ridge at {far}") if far else ("number format", "peak")
    table = make_table(*heads)
    together: dict[tuple[float, str], list[str]] = {}
    for name, peak in found.ceilings.items():
        together.setdefault((peak, operation_unit(name)), []).append(name)
    stands = {name: form["stands_for"] for unit in as_data(machine)["compute"]
              for name, form in (unit.get("formats") or {}).items()
              if isinstance(form, dict) and form.get("stands_for")}  # fmt: skip
    for (peak, unit), names in together.items():
        names = [f"{name} (for {stands[name]})" if name in stands else name for name in names]
        ridge = (f"{digits(peak / found.roofs[far])} {unit.lower()}/byte",) if far else ()
        table.add_row(", ".join(names), rate(peak, unit), *ridge)
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


def _print_workload(loaded: LoadedWorkload, settings: Sequence[str]) -> None:
    from hwsim.spec.fields import as_data
    from hwsim.spec.variant import describe_keys, parameter_keys

    _print_head(loaded.spec.name, loaded.spec.description, loaded.files, settings)
    for key, value in as_data(loaded.spec).items():
        if key in ("format", "name", "description", "shows") or value in (None, "", {}, []):
            continue
        if key == "blocks":
            _print_blocks(value)
            continue
        out().print(f"  {key}: {_in_one_line(value) if isinstance(value, dict) else value}")
    wrapped(out(), "  name=value: ", describe_keys(parameter_keys(loaded.spec)), style="none")
    more = f"what a machine reads of its schedule: hwsim show {loaded.spec.name} --on MACHINE"
    out().print(more, style="dim", soft_wrap=True)


def _print_blocks(blocks: Sequence[dict[str, Any]]) -> None:
    """The blocks of a model, each in a line or two."""
    out().print("  blocks:")
    for block in blocks:
        often = f" x {block['repeat']}" if block["repeat"] != 1 else ""
        listed = ", ".join(f"{each['name']} ({each['op']})" for each in block["operations"])
        out().print(styled("    ", (f"{block['name']}{often}", "cyan"), f": {listed}"), soft_wrap=True)


def _print_head(name: str, description: str, files: Sequence[Path], settings: Sequence[str]) -> None:
    from hwsim.catalog import shown

    console = out()
    console.print(styled((name, "bold"), f": {' '.join(description.split())}"))
    console.print(f"from {' ← '.join(shown(file) for file in files)}", style="dim", soft_wrap=True)
    if settings:
        changed = ", ".join(" ".join(part.strip() for part in setting.split("=", 1)) for setting in settings)
        console.print(
            styled(("changed: ", "bold"), f"{changed}; the words above are those of the file"), soft_wrap=True
        )


LIST_EXAMPLE = "Example: [cyan]hwsim list machines[/cyan]"


class Listed(Enum):
    MACHINES = "machines"
    WORKLOADS = "workloads"
    MODELS = "models"
    SYSTEMS = "systems"
    ENGINES = "engines"


def list_command(
    what: Annotated[Listed | None, typer.Argument(help="Only these.", show_default=False)] = None,
    json_file: BareJson = None,
) -> None:
    """List machines, workloads, models, systems and engines, with one line on each."""
    output = check_output(json_file)
    every: tuple[Kind, ...] = ("machine", "workload", "model", "system", "engine")
    kinds = [kind for kind in every if what is None or what.value == f"{kind}s"]
    found = {f"{kind}s": _entries(kind) for kind in kinds}
    output.show(lambda: found, lambda: _print_lists(found))


def _print_lists(found: Mapping[str, list[dict[str, str]]]) -> None:
    for title, entries in found.items():
        _print_table(title, entries)


def _entries(kind: Kind) -> list[dict[str, str]]:
    from hwsim.catalog import find, names, shipped_folder, shown

    entries = []
    for name in names(kind):
        path = find(kind, name)
        origin = "hwsim" if path.parent == shipped_folder(kind) else shown(path)
        entries.append({"name": name, "description": _description(kind, name), "from": origin, "path": str(path)})
    return entries


def _description(kind: Kind, name: str) -> str:
    """The first sentence of a file; a broken file is listed too, with what to do about it."""
    from hwsim.catalog import load_machine, load_workload
    from hwsim.errors import InputError

    try:
        if kind in ("system", "engine"):
            from hwsim.systems.spec import load_described

            description = load_described(kind, name).description
        else:
            description = (load_machine(name) if kind == "machine" else load_workload(name)).spec.description
    except InputError:
        return f"(has errors; see: hwsim check {name})"
    return " ".join(description.split())


def _print_table(title: str, entries: list[dict[str, str]]) -> None:
    if not entries:
        out().print(f"{title}: none here; they are looked up in ./{title}")
        return
    table = titled_table(title, "name")
    table.add_column("description")
    table.add_column("from", no_wrap=True)
    for entry in entries:
        table.add_row(entry["name"], entry["description"], entry["from"])
    out().print(table)
