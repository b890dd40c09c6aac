"""Machines and workloads by name, from any folder.

A name is looked up in ``./machines`` (or ``./workloads``) first, then among those that come with hwsim.
Anything with a path separator, or ending in ``.yaml`` or ``.yml``, is a path.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hwsim.errors import CatalogError

if TYPE_CHECKING:
    from hwsim.spec.energy_table import EnergyTableSpec
    from hwsim.spec.extends import Finder
    from hwsim.spec.load import LoadedMachine, LoadedWorkload

Kind = Literal["machine", "workload"]

KINDS: tuple[Kind, ...] = ("machine", "workload")

_PACKAGE = Path(__file__).resolve().parent
_SUFFIX = ".yaml"

ENERGY_TABLES = "energy"
"""The folder inside that of the machines which holds energy tables."""


def machine_names() -> tuple[str, ...]:
    """The names of all machines that can be found from this folder, in alphabetical order."""
    return names("machine")


def workload_names() -> tuple[str, ...]:
    """The names of all workloads that can be found from this folder, in alphabetical order."""
    return names("workload")


def find_machine(name: str) -> Path:
    """The file of a machine, by name or path; raises CatalogError with suggestions."""
    return find("machine", name)


def find_workload(name: str) -> Path:
    """The file of a workload, by name or path; raises CatalogError with suggestions."""
    return find("workload", name)


def load_machine(name_or_path: str | Path, overrides: Sequence[str] = ()) -> LoadedMachine:
    """A machine, checked and filled in; ``overrides`` are ``path=value`` texts, as for ``--set``."""
    from dataclasses import replace

    from hwsim.spec.load import load_machine_file
    from hwsim.spec.prices import with_table_prices

    loaded = load_machine_file(find("machine", name_or_path), _finder("machine"), overrides)
    return replace(loaded, spec=with_table_prices(loaded.spec, load_energy_table))


def load_energy_table(name: str) -> EnergyTableSpec:
    """An energy table by name, from ``./machines/energy`` or from those that come with hwsim."""
    from hwsim.spec.fields import did_you_mean

    for folder in folders("machine"):
        file = folder / ENERGY_TABLES / f"{name}{_SUFFIX}"
        if file.is_file():
            return load_energy_table_file(file)
    known = energy_table_names()
    listed = ", ".join(known) if known else "none"
    raise CatalogError(f"there is no energy table '{name}'{did_you_mean(name, known)}; known: {listed}")


def load_energy_table_file(file: Path) -> EnergyTableSpec:
    """An energy table by the path of its file."""
    from hwsim.spec.energy_table import EnergyTableSpec
    from hwsim.spec.load import load_spec_file

    return load_spec_file(EnergyTableSpec, file, shown(file))


def energy_table_names() -> tuple[str, ...]:
    """The names of all energy tables that can be found from this folder, in alphabetical order."""
    files = [file for folder in folders("machine") for file in (folder / ENERGY_TABLES).glob(f"*{_SUFFIX}")]
    return tuple(sorted({file.stem for file in files}))


def load_workload(name_or_path: str | Path, overrides: Sequence[str] = ()) -> LoadedWorkload:
    """A workload, checked and filled in; ``overrides`` are ``path=value`` texts, as for ``--set``."""
    from hwsim.spec.load import load_workload_file

    return load_workload_file(find("workload", name_or_path), _finder("workload"), overrides)


def names(kind: Kind) -> tuple[str, ...]:
    return tuple(sorted({file.stem for folder in folders(kind) for file in folder.glob(f"*{_SUFFIX}")}))


def folders(kind: Kind) -> tuple[Path, ...]:
    """Where names of a kind are looked up: the user's folder, then the one that comes with hwsim."""
    own = Path(f"{kind}s")
    shipped = shipped_folder(kind)
    found = [folder for folder in (own, shipped) if folder.is_dir()]
    if len(found) == 2 and own.resolve() == shipped:
        return (shipped,)
    return tuple(found)


def shipped_folder(kind: Kind) -> Path:
    """Inside an installed package the files are part of it; in a source checkout they lie beside it."""
    installed = _PACKAGE / "data" / f"{kind}s"
    return installed if installed.is_dir() else _PACKAGE.parent / f"{kind}s"


def is_path(name: str | Path) -> bool:
    separators = [separator for separator in (os.sep, os.altsep, "/") if separator]
    text = str(name)
    return isinstance(name, Path) or text.endswith((".yaml", ".yml")) or any(mark in text for mark in separators)


def find(kind: Kind, name: str | Path, relative_to: Path = Path()) -> Path:
    """The file that a name or a path means. That a path exists is checked when it is read."""
    if is_path(name):
        return relative_to / Path(name).expanduser()
    for folder in folders(kind):
        file = folder / f"{name}{_SUFFIX}"
        if file.is_file():
            return file
    raise CatalogError(_unknown(kind, str(name)))


def find_any(name: str) -> tuple[Kind, Path]:
    """A machine or a workload, whichever has the name; a file by path is what its content says."""
    if is_path(name):
        path = find("machine", name)
        return kind_of_file(path), path
    for kind in KINDS:
        if name in names(kind):
            return kind, find(kind, name)
    from hwsim.spec.fields import did_you_mean

    known = [*names("machine"), *names("workload")]
    listed = ", ".join(known) if known else "none"
    raise CatalogError(f"there is no machine or workload '{name}'; known: {listed}{did_you_mean(name, known)}")


def kind_of_file(path: Path) -> Kind:
    """What a file describes, from the fields that it has; raises SpecError where that cannot be told."""
    from hwsim.errors import Problem, SpecError
    from hwsim.spec.document import read_document
    from hwsim.spec.machine import MachineSpec
    from hwsim.spec.workload import WorkloadSpec

    node, _ = read_document(path, shown(path))
    machine_fields, workload_fields = set(MachineSpec.model_fields), set(WorkloadSpec.model_fields)
    as_machine = len((machine_fields - workload_fields) & set(node.fields))
    as_workload = len((workload_fields - machine_fields) & set(node.fields))
    if as_machine == as_workload == 0 and "extends" in node.fields:
        name = node.text("extends") or ""
        return "workload" if name in names("workload") and name not in names("machine") else "machine"
    if as_machine == as_workload:
        message = "neither a machine (which has clocks, compute, memory) nor a workload (which has op, sizes)"
        raise SpecError((Problem(shown(path), node.place.line, "", message),))
    return "machine" if as_machine > as_workload else "workload"


def shown(path: Path) -> str:
    """How messages call a file: relative to this folder if it lies in it."""
    full = path.parent.resolve() / path.name
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(path)


def _finder(kind: Kind) -> Finder:
    from hwsim.spec.extends import Finder

    def find_parent(name: str, folder: Path) -> Path:
        file = find(kind, name, folder)
        if not file.is_file():
            raise CatalogError(f"there is no file '{name}' in {shown(folder)}")
        return file

    return Finder(find_parent, shown)


def _unknown(kind: Kind, name: str) -> str:
    from hwsim.spec.fields import did_you_mean

    known = names(kind)
    other: Kind = "workload" if kind == "machine" else "machine"
    if name in names(other):
        return f"'{name}' is a {other}, and a {kind} is needed here; hwsim list {kind}s shows them"
    listed = ", ".join(known) if known else "none"
    return f"there is no {kind} '{name}'{did_you_mean(name, known)}; known: {listed}"
