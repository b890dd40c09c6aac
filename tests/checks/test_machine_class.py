"""Nobody asks what class a machine belongs to: only its target, its spec, and `find_target` know.

Outside of hwsim/target.py, hwsim/targets and hwsim/spec no module may test for a unit's spec, compare a kind with the
name of a class, or look into what only one class puts into a result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hwsim.spec.machine import KINDS, unit_spec

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("hwsim/target.py", "hwsim/targets/", "hwsim/spec/")
"""Where classes of machines are known by name."""

SPECS = frozenset(unit_spec(kind).__name__ for kind in KINDS)
USE = frozenset({"array", "gpu", "grid", "pim"})
"""Keys under which a class puts what only it has to tell: `result.work["gpu"]`, `outcome.use["array"]`."""
HOLDERS = frozenset({"work", "use"})
ACCESSORS = frozenset({"core_spec", "array_spec", "find_array"})
"""Functions of a target that say whether a machine is one of its own."""


def complaints(name: str, source: str) -> list[str]:
    """Tests of the machine class in a module, each with its line."""
    return sorted(f"{name}:{line}: {text}" for node in ast.walk(ast.parse(source)) for line, text in _about(node))


def _about(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        for name in sorted(_names(node.args[1]) & SPECS):
            yield node.lineno, f"asks whether a unit is a {name}"
    if isinstance(node, ast.Call) and _names(node.func) & ACCESSORS:
        yield node.lineno, f"asks {ast.unparse(node.func)} for a unit of one class"
    if isinstance(node, ast.Compare):
        yield from _comparison(node)
    got = _got(node)
    if isinstance(node, ast.expr) and got is not None and _holder(got[0]) and _texts(got[1]) & USE:
        yield node.lineno, f"reads {ast.unparse(node)}, which only one class has"
    if isinstance(node, ast.Match) and _kind(node.subject):
        yield node.lineno, f"matches {ast.unparse(node.subject)}"


def _comparison(node: ast.Compare) -> Iterator[tuple[int, str]]:
    """``unit.kind == "cpu"``, ``machine["kind"] in (…)``, ``"gpu" in result.work``."""
    sides = [node.left, *node.comparators]
    words: set[str] = set().union(*(_texts(side) for side in sides))
    if words & set(KINDS) and any(_kind(side) for side in sides):
        yield node.lineno, f"compares a kind: {ast.unparse(node)}"
    inside = isinstance(node.ops[0], ast.In | ast.NotIn)
    if inside and _texts(node.left) & USE and _holder(node.comparators[0]):
        yield node.lineno, f"asks {ast.unparse(node)}"


def _got(node: ast.AST) -> tuple[ast.AST, ast.AST] | None:
    """What is looked into and for what: ``unit["kind"]``, ``unit.get("kind")``."""
    if isinstance(node, ast.Subscript):
        return node.value, node.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return node.func.value, node.args[0]
    return None


def _kind(node: ast.AST) -> bool:
    """``unit.kind``, ``unit["kind"]``, ``unit.get("kind")``."""
    got = _got(node)
    return (got is not None and _texts(got[1]) == {"kind"}) or (isinstance(node, ast.Attribute) and node.attr == "kind")


def _holder(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in HOLDERS


def _texts(node: ast.AST) -> set[str]:
    """The strings of a constant, or of a tuple, list or set of them."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return set().union(*(_texts(each) for each in node.elts))
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _names(node: ast.AST) -> set[str]:
    """Names in an expression, without the modules before a dot."""
    inner = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in ast.walk(node)]
    return set(inner)


def _modules() -> dict[str, Path]:
    paths = sorted((ROOT / "hwsim").rglob("*.py"))
    names = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if not name.startswith(HOMES)}


def test_nobody_asks_for_the_class_of_a_machine() -> None:
    found = [text for name, path in _modules().items() for text in complaints(name, path.read_text(encoding="utf-8"))]
    assert found == []


def test_all_screens_and_results_are_looked_at() -> None:
    assert {"hwsim/api.py", "hwsim/cli/run.py", "hwsim/results/explanation.py", "hwsim/validation/cpu.py"} <= set(
        _modules()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_has_its_own_folder(kind: str) -> None:
    assert f"hwsim/targets/{kind}/".startswith(HOMES)
    assert callable(import_module(f"hwsim.targets.{kind}.why").explain)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("isinstance(unit, GpuSpec)", "asks whether a unit is a GpuSpec"),
        ("all(isinstance(unit, spec.CpuSpec | GridSpec) for unit in units)", "asks whether a unit is a CpuSpec"),
        ('machine.compute[0].kind == "cpu"', "compares a kind"),
        ('machine.kind in ("gpu", "grid")', "compares a kind"),
        ('unit["kind"] != "systolic"', "compares a kind"),
        ('unit.get("kind") == "pim"', "compares a kind"),
        ("match machine.kind:\n    case _: pass", "matches machine.kind"),
        ('"gpu" in result.work', "asks 'gpu' in result.work"),
        ('"array" not in outcome.use', "asks 'array' not in outcome.use"),
        ('result.work["array"]["passes"]', "which only one class has"),
        ('outcome.use.get("gpu")', "which only one class has"),
        ("core = core_spec(machine)", "asks core_spec for a unit of one class"),
    ],
)
def test_a_test_of_the_class_is_named(source: str, says: str) -> None:
    found = complaints("hwsim/x.py", source)
    assert found
    assert says in found[0]
    assert found[0].startswith("hwsim/x.py:1: ")


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(level, CacheSpec | DramSpec)",
        'level.kind == "dram"',
        'bound.kind in ("latency", "bandwidth")',
        'result.work["flops"]',
        'record["gpu"]',
        "find_target(machine).why(result)",
        "str(unit.kind)",
    ],
)
def test_what_is_allowed_is_left_alone(source: str) -> None:
    assert complaints("hwsim/x.py", source) == []
