"""`hwsim check`: all that is wrong with files; `hwsim schema`: the rules that they keep, for editors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwsim.cli.arguments import BareJson, check_output
from hwsim.cli.console import err, out, print_error, print_json, wrapped
from hwsim.errors import HwsimError, InputError, Problem, SpecError

if TYPE_CHECKING:
    from hwsim.spec.base import Spec

CHECK_EXAMPLE = (
    "Example: [cyan]hwsim check machines/my.yaml --strict[/cyan]   "
    "A file may say [cyan]extends: zen4[/cyan] and then only what differs."
)


@dataclass(frozen=True)
class Verdict:
    """What was found about one file."""

    name: str
    kind: str | None
    problems: tuple[Problem, ...]
    unsourced: tuple[str, ...]
    defaults: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What the file leaves open about its compute units: what is taken instead, and what it means."""


def check_command(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files or names; everything that comes with hwsim if none is given.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Numbers without a source fail the check, too.")] = False,
    json_file: BareJson = None,
) -> None:
    """Check files of machines, workloads, systems and engines: all problems, with file and line."""
    output = check_output(json_file, None, files or ())
    verdicts = [_check(name) for name in files or _everything()]
    output.show(lambda: [asdict(verdict) for verdict in verdicts], lambda: _print_all(verdicts))
    if any(verdict.problems for verdict in verdicts):
        raise typer.Exit(InputError.exit_code)
    if strict and any(verdict.unsourced for verdict in verdicts):
        raise typer.Exit(HwsimError.exit_code)


def _print_all(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        _print(verdict, told=len(verdicts) == 1)


def _everything() -> list[str]:
    from hwsim.catalog import ENERGY_TABLES, KINDS, Shelf, shipped_folder

    shelves: tuple[Shelf, ...] = (*KINDS, "system", "engine", "lesson")
    files = [str(file) for shelf in shelves for file in sorted(shipped_folder(shelf).glob("*.yaml"))]
    return files + [str(file) for file in sorted((shipped_folder("machine") / ENERGY_TABLES).glob("*.yaml"))]


def _check(name: str) -> Verdict:
    from hwsim.catalog import (
        ENERGY_TABLES,
        find_any,
        is_path,
        load_lesson_file,
        load_machine,
        load_workload,
        shown,
    )
    from hwsim.systems.spec import described_kind, load_described

    shown_name, kind = name, None
    try:
        if is_path(name) and Path(name).parent.name == ENERGY_TABLES:
            return _check_table(Path(name))
        if is_path(name) and _is_lesson(Path(name)):
            kind = "lesson"
            load_lesson_file(Path(name))
            return Verdict(shown(Path(name)), kind, (), ())
        if (kind := described_kind(name)) is not None:
            load_described(kind, name)
            return Verdict(shown_name, kind, (), ())
        kind, path = find_any(name)
        shown_name = shown(path)
        loaded = load_machine(path) if kind == "machine" else load_workload(path)
    except SpecError as error:
        return Verdict(shown_name, kind, error.problems, ())
    except InputError as error:
        return Verdict(shown_name, kind, (Problem(name, 0, "", str(error)),), ())
    return Verdict(shown_name, kind, (), loaded.unsourced, _defaults(loaded.spec))


def _defaults(spec: Spec) -> dict[str, tuple[str, str]]:
    """Fields of compute units that a machine's file does not have; those that everybody leaves out are not told."""
    from hwsim.spec.fields import as_data

    found = {}
    for unit, written in zip(getattr(spec, "compute", ()), as_data(spec).get("compute", ()), strict=True):
        for name, declared in type(unit).model_fields.items():
            if name not in (*unit.model_fields_set, "count", "clock", "source", "formats"):
                value = written[name]
                words = "none" if value in (None, [], False) else value
                if isinstance(value, dict):
                    words = ", ".join(f"{key} {each}" for key, each in value.items() if each is not None)
                found[f"{unit.name}.{name}"] = (str(words), declared.description or "")
    return found


def _is_lesson(path: Path) -> bool:
    """A file that asks a question and makes claims is meant to be a lesson."""
    from hwsim.catalog import is_file, shown
    from hwsim.spec.document import read_document

    return is_file(path) and {"question", "claims"} & set(read_document(path, shown(path))[0].fields) != set()


def _check_table(path: Path) -> Verdict:
    from hwsim.catalog import load_energy_table, load_energy_table_file, shown
    from hwsim.energy import resolve_table

    resolve_table(load_energy_table_file(path), load_energy_table)
    return Verdict(shown(path), "table of energy prices", (), ())


def _print(verdict: Verdict, *, told: bool) -> None:
    if verdict.problems:
        print_error("\n".join(str(problem) for problem in verdict.problems))
        return
    article = "an" if verdict.kind == "engine" else "a"
    out().print(f"{verdict.name}: ok, {article} {verdict.kind}", soft_wrap=True)
    if told and verdict.defaults:
        out().print("what the file does not say is taken to be:")
        for name, (value, meaning) in verdict.defaults.items():
            if value != "none":
                wrapped(out(), f"  {name} {value}  ", meaning.partition(". ")[0].rstrip("."), style="dim")
        if absent := [name for name, (value, _) in verdict.defaults.items() if value == "none"]:
            wrapped(out(), "  none: ", ", ".join(absent), style="dim")
    if verdict.unsourced:
        count = len(verdict.unsourced)
        err().print(
            f"{verdict.name}: {count} {'number has' if count == 1 else 'numbers have'} no source:", soft_wrap=True
        )
        for path in verdict.unsourced:
            err().print(f"  {path}", soft_wrap=True)


SCHEMA_EXAMPLE = "Example: [cyan]hwsim schema machine > machine.schema.json[/cyan]"


class FileKind(Enum):
    MACHINE = "machine"
    WORKLOAD = "workload"
    SYSTEM = "system"
    ENGINE = "engine"


def schema_command(what: Annotated[FileKind, typer.Argument(help="Which kind of file.")]) -> None:
    """Print the JSON Schema of machine or workload files."""
    from hwsim.spec.fields import json_schema
    from hwsim.spec.machine import MachineSpec
    from hwsim.spec.workload import any_workload

    declared = any_workload() if what is FileKind.WORKLOAD else MachineSpec
    if what in (FileKind.SYSTEM, FileKind.ENGINE):
        from hwsim.systems.spec import EngineSpec, SystemSpec

        declared = SystemSpec if what is FileKind.SYSTEM else EngineSpec
    print_json(json_schema(f"hwsim {what.value}", declared))
