"""Machines, workloads, models, systems, engines and lessons by name, from any folder.

A name is looked up in ``./machines`` (or ``./workloads``, ``./models`` and so on) first, then among those that come
with hwsim. A model is a workload, too: wherever one is asked for, the other will do. Anything with a path separator, or
ending in ``.yaml`` or ``.yml``, is a path. ``my_kernels.py:name`` is an operation that a Python file declares.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from hwsim.errors import CatalogError

if TYPE_CHECKING:
    from hwsim.energy import EnergyTableSpec
    from hwsim.spec.lesson import LessonSpec
    from hwsim.spec.load import LoadedMachine, LoadedWorkload
    from hwsim.spec.machine import MachineSpec
    from hwsim.spec.variant import Finder

Kind = Literal["machine", "workload", "model", "system", "engine"]

KINDS: tuple[Kind, ...] = ("machine", "workload", "model")
"""What a name alone may mean; systems and engines are asked for as such."""

Shelf = Kind | Literal["lesson"]
"""What has a folder of its own."""

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


def model_names() -> tuple[str, ...]:
    """The names of all models that can be found from this folder, in alphabetical order."""
    return names("model")


def lesson_names() -> tuple[str, ...]:
    """The names of all lessons that can be found from this folder, in alphabetical order."""
    return names("lesson")


def find_lesson(name: str | Path) -> Path:
    """The file of a lesson, by name or path; raises CatalogError with suggestions."""
    return find("lesson", name)


def load_lesson_file(file: Path) -> LessonSpec:
    """A lesson by the path of its file."""
    from hwsim.spec.lesson import LessonSpec
    from hwsim.spec.load import load_spec_file

    return load_spec_file(LessonSpec, file, shown(file))


def find_machine(name: str) -> Path:
    """The file of a machine, by name or path; raises CatalogError with suggestions."""
    return find("machine", name)


def find_workload(name: str) -> Path:
    """The file of a workload, by name or path; raises CatalogError with suggestions."""
    return find("workload", name)


def load_machine(name_or_path: str | Path, overrides: Sequence[str] = ()) -> LoadedMachine:
    """A machine, checked and filled in; ``overrides`` are ``path=value`` texts, as for ``--set``."""
    from dataclasses import replace

    from hwsim.energy import with_table_prices
    from hwsim.spec.load import load_machine_file

    loaded = load_machine_file(find("machine", name_or_path), _finder("machine"), overrides)
    known = _PRICED.get(id(loaded.spec))
    if known is None or any(load_energy_table(name) is not table for name, table in known.tables.items()):
        tables: dict[str, EnergyTableSpec] = {}

        def look_up(name: str) -> EnergyTableSpec:
            tables[name] = load_energy_table(name)
            return tables[name]

        known = _Priced(loaded.spec, tables, with_table_prices(loaded.spec, look_up))
        if len(_PRICED) >= _MOST_PRICED:
            _PRICED.clear()
        _PRICED[id(loaded.spec)] = known
    return replace(loaded, spec=known.priced)


class _Priced(NamedTuple):
    """A machine with the prices of its tables, and which tables these were."""

    bare: MachineSpec
    tables: dict[str, EnergyTableSpec]
    priced: MachineSpec


_PRICED: dict[int, _Priced] = {}
"""By the identity of the machine without them, which its entry keeps alive."""
_MOST_PRICED = 256


def load_energy_table(name: str) -> EnergyTableSpec:
    """An energy table by name, from ``./machines/energy`` or from those that come with hwsim."""
    from hwsim.spec.fields import did_you_mean

    for folder in folders("machine"):
        file = folder / ENERGY_TABLES / f"{name}{_SUFFIX}"
        if is_file(file):
            return load_energy_table_file(file)
    known = energy_table_names()
    listed = ", ".join(known) if known else "none"
    raise CatalogError(f"there is no energy table '{name}'{did_you_mean(name, known)}; known: {listed}")


def load_energy_table_file(file: Path) -> EnergyTableSpec:
    """An energy table by the path of its file."""
    from hwsim.energy import EnergyTableSpec
    from hwsim.spec.load import load_spec_file

    return load_spec_file(EnergyTableSpec, file, shown(file))


def energy_table_names() -> tuple[str, ...]:
    """The names of all energy tables that can be found from this folder, in alphabetical order."""
    files = [file for folder in folders("machine") for file in _files_in(folder / ENERGY_TABLES)]
    return tuple(sorted({file.stem for file in files}))


def load_workload(name_or_path: str | Path, overrides: Sequence[str] = ()) -> LoadedWorkload:
    """A workload, checked and filled in; ``overrides`` are ``path=value`` texts, as for ``--set``."""
    from hwsim.spec.load import load_workload_file

    if (declared := declared_in(name_or_path)) is not None:
        return load_declared(*declared, overrides)
    return load_workload_file(find("workload", name_or_path), _finder("workload"), overrides)


def declared_in(name: str | Path) -> tuple[Path, str] | None:
    """The Python file and the operation that ``my_kernels.py:name`` means; None for anything else."""
    file, mark, operation = str(name).rpartition(":")
    return (expand(file), operation) if mark and file.endswith(".py") else None


def load_declared(file: Path, operation: str, overrides: Sequence[str] = ()) -> LoadedWorkload:
    """An operation that a Python file declares, with its default sizes; the file is run for it, once."""
    from hwsim.ops.formula import import_operations_of
    from hwsim.spec.load import Loaded

    if overrides:
        raise CatalogError(f"{file}:{operation}: give its sizes and parameters as key=value")
    found = import_operations_of(file, shown(file))
    if operation not in found:
        from hwsim.spec.fields import did_you_mean

        listed = ", ".join(found) or "none"
        raise CatalogError(
            f"{shown(file)} declares no operation '{operation}'{did_you_mean(operation, found)}; it has: {listed}"
        )
    made = found[operation]
    data = {"format": 1, "name": operation, "description": made.summary.split("\n")[0], "op": operation}
    return Loaded(spec=made.workload.model_validate(data), files=(file,), places={}, sources={})


def names(kind: Shelf) -> tuple[str, ...]:
    return tuple(sorted({file.stem for folder in folders(kind) for file in _files_in(folder)}))


def _files_in(folder: Path) -> Iterator[Path]:
    """What is meant to be found by name: not what editors put beside a file that is open (`.#x.yaml`), nor folders."""
    for file in folder.glob(f"*{_SUFFIX}"):
        if not file.name.startswith((".", "#", "~")) and file.is_file():
            yield file


def folders(kind: Shelf) -> tuple[Path, ...]:
    """Where names of a kind are looked up: the user's folder, then the one that comes with hwsim."""
    own = Path(f"{kind}s")
    shipped = shipped_folder(kind)
    found = [folder for folder in (own, shipped) if folder.is_dir()]
    if len(found) == 2 and own.resolve() == shipped:
        return (shipped,)
    return tuple(found)


def shipped_folder(kind: Shelf) -> Path:
    """Inside an installed package the files are part of it; in a source checkout they lie beside it."""
    installed = _PACKAGE / "data" / f"{kind}s"
    return installed if installed.is_dir() else _PACKAGE.parent / f"{kind}s"


def is_path(name: str | Path) -> bool:
    separators = [separator for separator in (os.sep, os.altsep, "/") if separator]
    text = str(name)
    return isinstance(name, Path) or text.endswith((".yaml", ".yml")) or any(mark in text for mark in separators)


def expand(name: str | Path) -> Path:
    """A path with the home of a user for its ``~``; raises CatalogError where there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise CatalogError(f"'{name}': there is no user whose home this could be in") from error


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that no file can have (too long, with a zero byte) is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


SO_MANY = re.compile(r"(?P<count>\d{1,6})[x×](?P<machine>[a-z][a-z0-9_]*)")
"""So many devices of a machine: `8xh100`."""

FOREIGN = (".onnx", ".pt2", ".csv")
"""Endings of models that other programs wrote, and that are no YAML."""


def find(kind: Shelf, name: str | Path, relative_to: Path = Path()) -> Path:
    """The file that a name or a path means. That a path exists is checked when it is read."""
    if (declared := declared_in(name)) is not None:
        return relative_to / declared[0]
    if kind == "workload" and str(name).lower().endswith(FOREIGN if is_path(name) else (*FOREIGN, ".json")):
        quoted = shlex.quote(str(name))
        raise CatalogError(
            f"{name}: a file of another program; hwsim import {quoted} -o model.yaml makes a model file of it, which "
            f"all commands take; hwsim model {quoted} MACHINE reads it as it is"
        )
    if is_path(name):
        return relative_to / expand(name)
    for folder in folders(kind):
        file = folder / f"{name}{_SUFFIX}"
        if is_file(file):
            return file
    if kind in ("workload", "model") and (model := _plain_name(name)) in names("model"):
        return find("model", model)
    raise CatalogError(_unknown(kind, str(name)))


def _plain_name(name: str | Path) -> str:
    """``Opt-1.3B`` as files are called."""
    return str(name).lower().replace("-", "_").replace(".", "_")


def find_any(name: str) -> tuple[Kind, Path]:
    """A machine or a workload, whichever has the name; a file by path is what its content says."""
    if declared_in(name) is not None:
        return "workload", Path(name)
    if is_path(name):
        path = find("machine", name)
        return kind_of_file(path), path
    for kind in KINDS:
        if name in names(kind):
            return ("machine" if kind == "machine" else "workload"), find(kind, name)
    if _plain_name(name) in names("model"):
        return "workload", find("model", _plain_name(name))
    from hwsim.spec.fields import did_you_mean

    known = [each for kind in KINDS for each in names(kind)]
    raise CatalogError(f"there is no machine or workload '{name}'{did_you_mean(name, known)}; {_listed(known)}")


_MOST_LISTED = 12


def _listed(known: Sequence[str], kind: str = "") -> str:
    """What there is: by name where these are few, otherwise where they are listed."""
    if len(known) > _MOST_LISTED:
        return f"hwsim list{f' {kind}s' if kind else ''} shows them"
    return f"known: {', '.join(known) if known else 'none'}"


def kind_of_file(path: Path) -> Kind:
    """What a file describes, from the fields that it has; raises SpecError where that cannot be told."""
    from hwsim.errors import Problem, SpecError
    from hwsim.spec.document import read_document
    from hwsim.spec.fields import did_you_mean
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
        if as_machine:
            message += "; it has fields of both"
        else:
            message += "; to begin with one that works: hwsim show course_cpu --resolved, hwsim show matmul --resolved"
        problems = [Problem(shown(path), node.place.line, "", message)]
        for name, value in node.fields.items():
            if name in _PARENTS and isinstance(value.value, str):
                problems.append(Problem(shown(path), value.place.line, name, _how_to_extend(value.value)))
            elif name not in machine_fields | workload_fields:
                near = did_you_mean(name, sorted({*machine_fields, *workload_fields, "sizes", "schedule"}))
                problems.append(Problem(shown(path), value.place.line, name, f"a field of neither{near}"))
        raise SpecError(tuple(problems))
    return "machine" if as_machine > as_workload else "workload"


_PARENTS = ("base", "like", "parent", "inherits", "inherit", "from", "based_on", "include")
"""What others call the field that names the file which is changed."""


def _how_to_extend(parent: str) -> str:
    """A variant in four lines."""
    start = f"format: 1\nname: mine\nextends: {parent}\n"
    if parent not in names("machine") and parent in names("workload"):
        return f"a variant says which workload it changes, and then what differs:\n{start}sizes: {{n: 512}}"
    return (
        f"a variant says which machine it changes, and then what differs:\n{start}memory: [{{name: l1, size: 64 KiB}}]"
    )


def shown(path: Path) -> str:
    """How messages call a file: relative to this folder if it lies in it."""
    full = path.parent.resolve() / path.name
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(path)


def _finder(kind: Kind) -> Finder:
    from hwsim.spec.variant import Finder

    def find_parent(name: str, folder: Path) -> Path:
        file = find(kind, name, folder)
        if not is_file(file):
            raise CatalogError(f"there is no file '{name}' in {shown(folder)}")
        return file

    return Finder(find_parent, shown)


def _unknown(kind: Shelf, name: str) -> str:
    from hwsim.spec.fields import did_you_mean

    known = [*names(kind), *(names("model") if kind == "workload" else ())]
    other: Kind = "workload" if kind == "machine" else "machine"
    if name in names(other) and other != kind:
        how = "hwsim lesson" if kind == "lesson" else f"hwsim list {kind}s"
        return f"'{name}' is a {other}, and a {kind} is needed here; {how} shows them"
    if kind == "machine" and (SO_MANY.fullmatch(name) or name in names("system")):
        return (
            f"'{name}' is a system of several devices, and one machine is needed here; systems are for hwsim model "
            f"MODEL {name}, hwsim tune {name} MODEL (its layouts), hwsim serve and hwsim collective"
        )
    listed = f"known: {', '.join(known)}" if kind == "lesson" else _listed(known, kind)
    return f"there is no {kind} '{name}'{did_you_mean(name, known)}; {listed}"
