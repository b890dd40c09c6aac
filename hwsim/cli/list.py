"""`hwsim list`: which machines, workloads, models, systems and engines can be found by name."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.console import out, print_json, titled_table

if TYPE_CHECKING:
    from hwsim.catalog import Kind

LIST_EXAMPLE = "Example: [cyan]hwsim list machines[/cyan]"


class Listed(Enum):
    MACHINES = "machines"
    WORKLOADS = "workloads"
    MODELS = "models"
    SYSTEMS = "systems"
    ENGINES = "engines"


def list_command(
    what: Annotated[Listed | None, typer.Argument(help="Only these.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List machines, workloads, models, systems and engines, with one line on each."""
    every: tuple[Kind, ...] = ("machine", "workload", "model", "system", "engine")
    kinds = [kind for kind in every if what is None or what.value == f"{kind}s"]
    found = {f"{kind}s": _entries(kind) for kind in kinds}
    if as_json:
        print_json(found)
        return
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
