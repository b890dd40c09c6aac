"""Imports point one way, and each outside library has one home: see docs/explanation/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hwsim.spec.machine import KINDS

ROOT = Path(__file__).resolve().parents[2]

ORDER = (
    "errors", "units", "glossary", "files", "machine_code", "jit", "record",
    "spec", "energy", "catalog", "numerics", "trace", "program", "ops", "memory", "engine",
    "result", "target", "targets", "results", "api", "models", "systems", "sweep", "measure", "validation",
    "lessons", "cli", "__main__",
)  # fmt: skip
"""The parts of hwsim; each may import those before it; the pairs below do not know each other."""

STRANGERS = (("program", "memory"), ("ops", "memory"))

BACKWARDS = (("result", "results"), ("catalog", "ops"))
"""Pairs in which the first may ask the second after all, inside its functions or for its types alone: a result draws
itself when told to, the catalog runs a Python file with operations."""

KNOW_CLASSES = ("validation",)
"""Parts that may ask a class of machines by name: each comparison with the outside is about one."""

HOMES = {
    "simpy": ("hwsim.engine",),
    "matplotlib": ("hwsim.results.plot",),
    "typer": ("hwsim.cli",),
    "rich": ("hwsim.cli",),
}
"""Outside libraries that only these modules, or those whose names begin so, may import."""

PRINTS = "hwsim.cli"


@dataclass(frozen=True)
class Import:
    """One imported module, with the line that asks for it, and whether that happens as soon as the file is read."""

    module: str
    line: int
    at_once: bool = False


def complaints(module: str, source: str, parts: frozenset[str]) -> list[str]:
    """What a module does against the rules; `parts` are the modules and packages directly inside hwsim."""
    tree = ast.parse(source)
    found = []
    for item in imports(module, tree):
        found += [f"{module}:{item.line}: {text}" for text in _about(module, item, parts)]
    if not _inside(module, PRINTS):
        found += [f"{module}:{line}: only {PRINTS} prints" for line in _prints(tree)]
    return found


def imports(module: str, tree: ast.AST) -> Iterator[Import]:
    """All imports, also those inside functions and those that only type checkers see."""
    top = set(getattr(tree, "body", ()))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, base] if base else package)
            if base == "hwsim":
                yield from (Import(f"hwsim.{alias.name}", node.lineno, node in top) for alias in node.names)
            else:
                yield Import(base, node.lineno, node in top)


def _about(module: str, item: Import, parts: frozenset[str]) -> Iterator[str]:
    imported = item.module
    library = imported.partition(".")[0]
    if library in HOMES and not any(_inside(module, home) for home in HOMES[library]):
        yield f"only {' and '.join(HOMES[library])} may import {library}"
    if library != "hwsim" or module == "hwsim":
        return
    inner, outer = _part(imported), _part(module)
    if imported == "hwsim.__version__":
        return
    if _class_of(imported) and _class_of(module) != _class_of(imported) and outer not in KNOW_CLASSES:
        yield f"{imported} belongs to a class of machines; ask hwsim.target"
    if inner not in parts:
        yield f"{imported} is the outer face of hwsim; import the module that holds it"
    elif inner in ORDER and outer in ORDER:
        if ORDER.index(inner) > ORDER.index(outer) and (item.at_once or (outer, inner) not in BACKWARDS):
            yield f"{outer} may not import {inner}, which comes after it"
        elif (inner, outer) in STRANGERS or (outer, inner) in STRANGERS:
            yield f"{outer} and {inner} do not know each other"


def _class_of(module: str) -> str:
    """The class of machines whose folder a module lies in; nothing for what classes share."""
    names = module.split(".")
    return names[2] if len(names) > 2 and names[1] == "targets" and names[2] in KINDS else ""


def _part(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else ""


def _inside(module: str, home: str) -> bool:
    """`hwsim.results.plot` is home to plot.py, to plot_energy.py and to a folder plot/."""
    return module == home or module.startswith((f"{home}.", f"{home}_"))


def _prints(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        shown = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        if isinstance(node, ast.Call | ast.Attribute) and shown in ("print", "sys.stdout", "sys.stderr"):
            yield node.lineno


def module_name(path: Path) -> str:
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def _modules() -> dict[str, Path]:
    files = sorted((ROOT / "hwsim").rglob("*.py"))
    return {module_name(path): path for path in files if "data" not in path.relative_to(ROOT).parts[:-1]}


MODULES = _modules()
PARTS = frozenset(_part(module) for module in MODULES if module != "hwsim")


def test_every_part_has_a_place_in_the_order() -> None:
    assert sorted(PARTS - set(ORDER)) == []


def test_all_modules_are_looked_at() -> None:
    assert {"hwsim", "hwsim.errors", "hwsim.spec.machine", "hwsim.cli.app"} <= set(MODULES)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_imports_point_one_way(part: str) -> None:
    found = []
    for module, path in MODULES.items():
        if _part(module) == part:
            found += complaints(module, path.read_text(encoding="utf-8"), PARTS)
    assert found == []


ALL_PARTS = frozenset(ORDER)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("hwsim.spec.machine", "from hwsim.memory.dram import Dram", "spec may not import memory"),
        ("hwsim.spec.machine", "import hwsim.catalog", "spec may not import catalog"),
        ("hwsim.trace.nest", "def f():\n    from hwsim.cli import app", "trace may not import cli"),
        ("hwsim.trace.nest", "from ..memory import dram", "trace may not import memory"),
        ("hwsim.trace.nest", "from hwsim import engine", "trace may not import engine"),
        ("hwsim.memory.dram", "from hwsim.program import steps", "memory and program do not know"),
        ("hwsim.program.kernel", "import hwsim.memory.dram", "program may not import memory"),
        ("hwsim.ops.norm", "import hwsim.memory.dram", "ops may not import memory"),
        ("hwsim.program.emit", "from hwsim.ops.norm import rmsnorm", "program may not import ops"),
        ("hwsim.engine.run", "from hwsim import run", "outer face"),
        ("hwsim.results.report", "import simpy", "only hwsim.engine may import simpy"),
        ("hwsim.targets.gpu.run", "from hwsim.targets.cpu.model import CpuCore", "belongs to a class of machines"),
        ("hwsim.cli.run", "import hwsim.targets.gpu.device", "belongs to a class of machines"),
        ("hwsim.memory.dram", "from simpy.events import Event", "only hwsim.engine may import simpy"),
        ("hwsim.results.report", "import matplotlib.pyplot", "only hwsim.results.plot may import"),
        ("hwsim.results.report", "from rich.table import Table", "only hwsim.cli may import rich"),
        ("hwsim", "import typer", "only hwsim.cli may import typer"),
        ("hwsim.engine.run", "print(1)", "only hwsim.cli prints"),
        ("hwsim.engine.run", "import sys\nsys.stderr.write('x')", "only hwsim.cli prints"),
        (
            "hwsim.units",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hwsim.spec.base import Spec",
            "units may not import spec",
        ),
    ],
)
def test_an_offending_module_is_named(module: str, source: str, complaint: str) -> None:
    found = complaints(module, source, ALL_PARTS)
    assert len(found) == 1
    assert found[0].startswith(f"{module}:{len(source.splitlines())}: ")
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hwsim.memory.dram", "from hwsim.trace.nest import Nest\nfrom hwsim.spec.machine import DramSpec"),
        ("hwsim.memory.dram", "from .cache import Cache\nfrom hwsim.memory import filter"),
        ("hwsim.engine.run", "import simpy\nfrom hwsim import __version__"),
        ("hwsim.targets.gpu.run", "from hwsim.targets.gpu.device import Device\nfrom hwsim.target import data"),
        ("hwsim.validation.gpu", "from hwsim.targets.gpu.model import GpuModel"),
        ("hwsim.results.plot_energy", "import matplotlib.pyplot"),
        ("hwsim.results.plot.energy", "from matplotlib import pyplot"),
        ("hwsim.cli.run", "import rich\nfrom hwsim.sweep.grid import Grid\nprint(1)"),
        ("hwsim.catalog", "def load():\n    from hwsim.ops.formula import import_operations_of"),
        ("hwsim", "def run():\n    from hwsim.engine.run import run"),
    ],
)
def test_what_is_allowed_is_left_alone(module: str, source: str) -> None:
    assert complaints(module, source, ALL_PARTS) == []
