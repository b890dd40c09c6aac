"""Random mutations of hwsim against its fast tests: the share that some test notices.

    python benchmarks/mutants.py --count 20
    python benchmarks/mutants.py --count 200 --seed 1 --json mutants.json

A mutation changes one place of one module: a comparison, an arithmetic operator, a number, a condition, `and` for
`or`, a value that is returned. It is made in a copy of the tree, never in the tree itself. The tests that are run are
those that belong to the module: files that import it, then those that import a module which imports it, up to
`--files` of them. What survives is printed with its line, to be killed by a test or called equivalent by a reader.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("cli/app.py", "sweep/dask_backend.py", "compiled_cache.py", "__main__.py")
"""Files that only a terminal, a cluster or a disk exercises."""
SLOW = ("fuzz", "browser", "safety", "docs")
"""Folders of tests that take too long to be run for each mutation."""
SECONDS = 240
"""A mutated program that takes longer than this hangs, which a reader would notice as well."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One changed place."""

    file: str
    line: int
    before: str
    after: str


@dataclass(frozen=True)
class Verdict:
    """Whether some test noticed."""

    mutation: Mutation
    killed: bool
    by: str
    """The test that failed, or what happened instead."""
    seconds: float


def places(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    """Nodes that can be changed, and how; constants of docstrings and annotations are left alone."""
    found: list[tuple[ast.AST, str]] = []
    for node in ast.walk(tree):
        if (isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED) or (
            isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED
        ):
            found.append((node, "operator"))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            found.append((node, "number"))
        if isinstance(node, ast.If | ast.IfExp):
            found.append((node, "condition"))
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            found.append((node, "return"))
    return found


def mutate(source: str, number: int) -> tuple[str, ast.AST, str]:
    """The source with its `number`th place changed, the node as it was, and its new text."""
    tree = ast.parse(source)
    node, how = places(tree)[number]
    original = ast.parse(ast.unparse(node)) if isinstance(node, ast.stmt) else node
    before = ast.unparse(node).splitlines()[0]
    if how == "operator" and isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif how == "operator" and isinstance(node, ast.Compare):
        node.ops = [SWAPPED[type(node.ops[0])]()]  # type: ignore[list-item]
    elif how == "number" and isinstance(node, ast.Constant):
        node.value = node.value + 1 if isinstance(node.value, int) else 2.0 * node.value  # type: ignore[operator]
    elif how == "condition" and isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif how == "return" and isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    del original
    after = ast.unparse(node).splitlines()[0]
    changed = ast.unparse(ast.fix_missing_locations(tree))
    return changed, node, f"{before}  →  {after}"


def choose(count: int, seed: int) -> Iterator[tuple[Path, int]]:
    """Files in proportion to their places, each place once."""
    chance = random.Random(seed)
    everywhere = [
        (file, number)
        for file in sorted((ROOT / "hwsim").rglob("*.py"))
        if file.relative_to(ROOT / "hwsim").as_posix() not in LEFT_OUT
        for number in range(len(places(ast.parse(file.read_text(encoding="utf-8")))))
    ]
    yield from chance.sample(everywhere, min(count, len(everywhere)))


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def importers() -> dict[str, set[str]]:
    """For each module of hwsim, the modules that name it in an import."""
    found: dict[str, set[str]] = {}
    for file in (ROOT / "hwsim").rglob("*.py"):
        for name in re.findall(
            r"^\s*from (hwsim[\w.]*) import|^\s*import (hwsim[\w.]*)", file.read_text("utf-8"), re.M
        ):
            found.setdefault(name[0] or name[1], set()).add(module_of(file))
    return found


def tests_for(module: str, by_module: dict[str, set[str]], most: int) -> list[str]:
    """Test files that import the module, the nearest first; then all missions, which run everything."""
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not set(path.relative_to(ROOT / "tests").parts) & set(SLOW)
    }
    near: list[str] = []
    reached, frontier = {module}, [module]
    for _ in range(3):
        for name in sorted(frontier):
            near += [str(path.relative_to(ROOT)) for path, text in texts.items() if re.search(rf"\b{name}\b", text)]
        frontier = [each for name in frontier for each in by_module.get(name, ()) if each not in reached]
        reached.update(frontier)
    missions = [str(path.relative_to(ROOT)) for path in texts if "mission" in path.parts]
    return list(dict.fromkeys([*near, *missions]))[:most]


def run_tests(copy: Path, tests: list[str], broken: set[str]) -> str:
    """The first test that fails, or what happened instead; nothing where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    command += [f"--deselect={name}" for name in sorted(broken)]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"longer than {SECONDS} s"
    failed = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
    return "" if not done.returncode else failed[2] if failed else done.stdout[-80:].strip() or "no report"


def judge(copy: Path, file: Path, number: int, by_module: dict[str, set[str]], most: int, broken: set[str]) -> Verdict:
    """Change one place in the copy, run the tests, and change it back.

    A test that fails without the mutation as well is no witness: it is noted in `broken`, and the others are asked.
    """
    target = copy / file.relative_to(ROOT)
    source = target.read_text(encoding="utf-8")
    changed, node, words = mutate(source, number)
    before, _, after = words.partition("  →  ")
    mutation = Mutation(file.relative_to(ROOT).as_posix(), getattr(node, "lineno", 0), before, after)
    tests = tests_for(module_of(file), by_module, most)
    started = time.monotonic()
    while True:
        target.write_text(changed, encoding="utf-8")
        try:
            by = run_tests(copy, tests, broken)
        finally:
            target.write_text(source, encoding="utf-8")
        if "::" not in by or not run_tests(copy, [by], set()):
            return Verdict(mutation, bool(by), by, time.monotonic() - started)
        broken.add(by)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="How many mutations are tried.")
    parser.add_argument("--seed", type=int, default=0, help="Another seed chooses other ones.")
    parser.add_argument("--files", type=int, default=8, help="Test files that are run for each, at most.")
    parser.add_argument("--json", type=Path, help="Write all verdicts into a file.")
    asked = parser.parse_args()
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.db", ".mypy_cache", ".ruff_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        by_module, broken = importers(), set[str]()
        for number, (file, place) in enumerate(choose(asked.count, asked.seed), 1):
            verdict = judge(copy, file, place, by_module, asked.files, broken)
            verdicts.append(verdict)
            mark = "killed" if verdict.killed else "SURVIVED"
            where = f"{verdict.mutation.file}:{verdict.mutation.line}"
            change = f"{verdict.mutation.before}  →  {verdict.mutation.after}"
            print(f"{number:4} {mark:8} {verdict.seconds:5.0f} s  {where}  {change[:100]}  {verdict.by}", flush=True)
    killed = sum(verdict.killed for verdict in verdicts)
    for name in sorted(broken):
        print(f"fails without any mutation: {name}")
    if verdicts:
        print(f"{killed} of {len(verdicts)} killed, {killed / len(verdicts):.0%}")
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
