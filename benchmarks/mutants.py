"""Random mutations of hwsim against its fast tests: the share that some test notices.

    python benchmarks/mutants.py --count 200 --json mutants.json           # goes on where it was stopped
    python benchmarks/mutants.py --count 200 --json mutants.json --again   # after new tests: the survivors once more
    python benchmarks/mutants.py --named                                   # ten that once went unnoticed

A mutation changes one place of one module: a comparison, an arithmetic operator, a number, a condition, `and` for
`or`, a value that is returned; never a type, a message of an error or a text. All of them are put into one copy of the
tree, each behind a switch that also notes that it was reached. The fast tests are run once with all switches off, which
tells the tests that reach each mutation. Then every mutation is switched on alone, in a process forked from one that
has imported everything, and the tests that reach it are run, a quick one of each file first. Places that work while
modules are imported, and compiled code, are changed in the text and tried in a process of their own.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib
import io
import itertools
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("cli/app.py", "sweep/executor.py", "machine_code.py", "jit.py", "__main__.py")
"""Files that only a terminal, a cluster or a disk exercises."""
SLOW = ("fuzz", "browser", "safety", "docs/test_notebooks", "docs/test_generated", "checks")
"""Tests that start other processes, or that look at the text of the sources."""
EXAMPLES = 8
"""Most examples of a property: those of `make check` begin with them."""
CASES = 5
"""Most cases of a test with parameters, spread over all of them."""
WHOLE = "tests/golden"
"""Tests whose cases are different things, each looked at by no other: all of them are run."""
QUIETLY = ("-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow")
COMPILED = {"compiled", "inlined", "called", "njit"}
UNSEEN = {
    "description", "examples", "help", "maxsize", "timeout", "stacklevel",
    "fontsize", "linewidth", "linewidths", "zorder", "markersize", "alpha", "framealpha", "pad", "pad_inches",
    "handlelength",
}  # fmt: skip
"""Arguments that change no answer: words of a schema, sizes of caches, and how thick or pale a line of a plot is."""
SECONDS = 20
"""Of CPU: so much is run of a file of tests, and of all that reach a mutation; stopped after three times as long."""
COMPILING = 240
"""Seconds of CPU more for a process that has to compile first."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
SWITCH = """
import os
ACTIVE, LOG, seen = int(os.environ.get("HWSIM_MUTANT", -1)), os.environ.get("HWSIM_MUTANT_LOG"), set()
def reached(number):
    if number not in seen:
        seen.add(number)
        if LOG:
            with open(LOG, "a") as file:
                file.write(f"{number}\\n")
    return number == ACTIVE
"""


STORIES = "tests/mission/test_stories.py::test_"
NAMED: dict[str, tuple[str, str, str, str]] = {
    "mul issues adds": (
        "program/tiling.py", 'Instructions(mul=1)\n    if name == "/"', 'Instructions(add=1)\n    if name == "/"',
        f"{STORIES}a3_a_multiplication_is_issued_as_one",
    ),
    "element-wise traffic of a GPU halved": (
        "targets/gpu/model.py", "moved = elements * (reads + writes) * element_bytes(precision)",
        "moved = elements * (reads + writes) * element_bytes(precision) / 2",
        f"{STORIES}a4_a5_three_kernels_on_a_gpu_move_nine_tensors_and_one_moves_five",
    ),
    "flops of a GPU doubled": (
        "targets/gpu/run.py", "flops=sum(launch.flops for launch in launches)",
        "flops=2 * sum(launch.flops for launch in launches)",
        f"{STORIES}h2_a_gpu_does_as_many_operations_as_the_mathematics_needs",
    ),
    "energy of a GPU's DRAM reads x 10": (
        "targets/gpu/run.py", "bits=8 * read_bytes", "bits=80 * read_bytes",
        f"{STORIES}e16_dram_energy_of_a_gpu_is_bits_times_the_price_of_a_bit",
    ),
    "scratch tensors never kept on an array": (
        "targets/systolic/model.py", "name not in results and chip.keeper is not None", "name not in results and False",
        f"{STORIES}n5_scratch_of_fused_attention_stays_on_an_array",
    ),
    "speed-up of compare inverted": (
        "cli/compare.py", "return baseline.time_s / result.time_s if", "return result.time_s / baseline.time_s if",
        f"{STORIES}a_speed_up_is_against_a_run_that_does_the_same",
    ),
    "percentage of a roofline inverted": (
        "cli/compare.py", "percent(speed, limits[roof])", "percent(limits[roof], speed)",
        f"{STORIES}a8_a_roofline_prints_the_share_of_what_is_attainable",
    ),
    "formula of a convolution with the extents of its input": (
        "ops/conv_schedule.py", "else shape.macs\n", "else shape.macs * shape.image[0] // shape.out[0]\n",
        f"{STORIES}c1_the_formula_of_a_convolution_counts_outputs_not_inputs",
    ),
    "tiles at the edge dropped from the formula of a product": (
        "ops/matmul.py", "return whole * -(-size // unroll) + -(-rest // unroll)", "return whole * -(-size // unroll)",
        f"{STORIES}t20_the_formula_of_a_tiled_product_counts_the_tiles_at_the_edge",
    ),
    "another lowest clock under a power limit": (
        "engine.py", "_SLOWEST = Fraction(1, 20)", "_SLOWEST = Fraction(1, 10)",
        "tests/unit/engine/test_throttle.py::test_the_clock_falls_to_a_twentieth_and_no_further",
    ),
}  # fmt: skip
"""Mutations that all tests let pass once: file, text, other text, and the test that notices each of them now."""


@dataclass
class Mutation:
    """One changed place."""

    file: str
    place: int
    line: int
    change: str
    live: bool
    """Whether it works while tests run; otherwise while the module is imported, or in compiled code."""
    verdict: str = ""
    by: str = ""
    """The test that failed, or what happened instead."""
    seconds: float = 0.0


Tests = dict[str, dict[str, Any]]
"""For each file of tests its digest, and for each test its CPU seconds and the mutations that it reached."""


def is_equal(node: ast.AST) -> bool:
    """Whether a comparison can be changed at its border without a trace: `a if a < b else b`, and tolerances."""
    if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
        sides = {ast.dump(each) for each in (node.test.left, node.test.comparators[0])}
        return sides == {ast.dump(node.body), ast.dump(node.orelse)}
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0.0 < abs(node.value) <= 1e-6
    return False


def places(tree: ast.AST) -> list[tuple[ast.AST, str, bool]]:
    """Nodes that can be changed, how, and whether in a function; types, messages of errors and texts are left alone."""
    found: list[tuple[ast.AST, str, bool]] = []
    spared: set[int] = set()

    def look(node: ast.AST, live: bool) -> None:
        if isinstance(node, ast.Raise | ast.Assert) or id(node) in spared:
            return
        if isinstance(node, ast.IfExp) and is_equal(node):
            spared.add(id(node.test))
        if isinstance(node, ast.Compare):
            spared.update(
                id(each) for side in (node.left, *node.comparators) for each in ast.walk(side) if is_equal(each)
            )
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
            found.append((node, "operator", live))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
            found.append((node, "operator", live))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            found.append((node, "number", live))
        if isinstance(node, ast.If | ast.IfExp) and "TYPE_CHECKING" not in ast.dump(node.test):
            found.append((node, "condition", live))
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            found.append((node, "return", live))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "pattern", "format_spec", "type_params"):
                continue
            if isinstance(node, ast.Call) and name == "keywords":
                value = [each for each in value if each.arg not in UNSEEN]
            inner = live or (isinstance(node, ast.FunctionDef | ast.Lambda) and name == "body")
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    look(child, inner)

    look(tree, False)
    return found


def changed(node: Any, how: str) -> Any:
    """The node after its mutation."""
    node = copy.deepcopy(node)
    if how == "operator" and isinstance(node, ast.Compare):
        node.ops = [SWAPPED[type(node.ops[0])]()]  # type: ignore[list-item]
    elif how == "operator":
        node.op = SWAPPED[type(node.op)]()
    elif how == "number":
        node.value = node.value + 1 if isinstance(node.value, int) else 2.0 * node.value or 1.0
    elif how == "condition":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        node.value = ast.Constant(None)
    return node


def is_compiled(tree: ast.AST) -> bool:
    """Whether a module has functions that Numba translates: they cannot call a switch."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    words = (re.findall(r"\w+", ast.dump(each)) for node in functions for each in node.decorator_list)
    return any(COMPILED & set(each) for each in words)


def choose(count: int, seed: int, again: list[Mutation]) -> list[Mutation]:
    """Files in proportion to their places, each place once; or those of an earlier try, where they are now."""
    everywhere = []
    for file in sorted((ROOT / "hwsim").rglob("*.py")):
        if file.relative_to(ROOT / "hwsim").as_posix() in LEFT_OUT:
            continue
        name = file.relative_to(ROOT).as_posix()
        if again and name not in {old.file for old in again}:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        machine_code = is_compiled(tree)
        for number, (node, how, live) in enumerate(places(tree)):
            everywhere.append((name, number, node, how, live and not machine_code))
    if not again:
        return [_mutation(*each) for each in random.Random(seed).sample(everywhere, min(count, len(everywhere)))]
    found = [_mutation(*each) for each in everywhere]
    for old in again:
        same = [each for each in found if (each.file, each.change) == (old.file, old.change)]
        nearest = min(same, key=lambda each: abs(each.line - old.line), default=None)
        if nearest is None:
            old.verdict, old.by = "gone", "the sources have changed"
        else:
            old.place, old.line, old.live = nearest.place, nearest.line, nearest.live
    return again


def _mutation(file: str, place: int, node: ast.AST, how: str, live: bool) -> Mutation:
    before, after = (ast.unparse(each).splitlines()[0] for each in (node, changed(node, how)))
    return Mutation(file, place, getattr(node, "lineno", 0), f"{before}  →  {after}", live)


def text_with(source: str, place: int) -> str:
    """The source with one place changed for good."""
    tree = ast.parse(source)
    node, how, _ = places(tree)[place]
    new = changed(node, how)
    for name, value in ast.iter_fields(new):
        setattr(node, name, value)
    return ast.unparse(ast.fix_missing_locations(tree))


def with_switches(source: str, mutations: dict[int, int], noted: set[int]) -> str:
    """The source with each place behind its switch (place -> number), and all functions noting `noted`."""
    tree = ast.parse(source)
    chosen = {id(node): (mutations[at], how) for at, (node, how, _) in enumerate(places(tree)) if at in mutations}

    def reached(number: int) -> ast.expr:
        return ast.Call(ast.Name("mutation_is_reached", ast.Load()), [ast.Constant(number)], [])

    class Switches(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node, ast.FunctionDef):
                at = 1 if ast.get_docstring(node) is not None else 0
                node.body[at:at] = [ast.Expr(reached(number)) for number in sorted(noted)]
            if id(node) not in chosen:
                return node
            number, how = chosen[id(node)]
            new = changed(node, how)
            if how == "condition":
                node.test = ast.IfExp(reached(number), new.test, node.test)  # type: ignore[attr-defined]
                return node
            if how == "return":
                node.value = ast.IfExp(reached(number), new.value, node.value)  # type: ignore[attr-defined]
                return node
            return ast.IfExp(reached(number), new, node)  # type: ignore[arg-type]

    Switches().visit(tree)
    after = [n for n, each in enumerate(tree.body) if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    tree.body.insert(
        after[-1] + 1 if after else 0,
        ast.parse("from hwsim.mutant_switch import reached as mutation_is_reached").body[0],
    )
    return ast.unparse(ast.fix_missing_locations(tree))


def _number(text: str) -> int:
    return int(text.partition("=")[2])


def prepare(tree: Path, mutations: list[Mutation]) -> None:
    """The copy of the sources, with a switch for each mutation that works while tests run."""
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.db", ".mypy_cache", ".ruff_cache", "out")
    shutil.copytree(ROOT, tree, ignore=ignored)
    (tree / "hwsim/mutant_switch.py").write_text(SWITCH, encoding="utf-8")
    for path in (tree / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        fewer = re.sub(r"max_examples=\d+", lambda found: min(found[0], f"max_examples={EXAMPLES}", key=_number), text)
        fewer = fewer.replace("derandomize=True", f"derandomize=True, max_examples={EXAMPLES}")
        if fewer != text:
            path.write_text(fewer, encoding="utf-8")
    for name in {each.file for each in mutations if each.verdict != "gone"}:
        here = {number: each for number, each in enumerate(mutations) if each.file == name}
        live = {each.place: number for number, each in here.items() if each.live and each.verdict != "gone"}
        source = (tree / name).read_text(encoding="utf-8")
        if is_compiled(ast.parse(source)):
            continue
        noted = {number for number, each in here.items() if not each.live}
        (tree / name).write_text(with_switches(source, live, noted), encoding="utf-8")


class Recorder:
    """Notes for each test how long it takes, which mutations it reaches, and whether it fails."""

    def __init__(self, log: Path, switch: Any) -> None:
        self.log, self.switch = log, switch
        self.tests: dict[str, tuple[float, list[int]]] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        families: dict[str, list[pytest.Item]] = {}
        for item in items:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
        kept = {
            each
            for name, same in families.items()
            for each in (same if WHOLE in name else same[:: -(-len(same) // CASES)])
        }
        items[:] = [item for item in items if item in kept]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.log.write_text("")
        self.switch.seen.clear()
        started = sum(os.times()[:4])  # with that of processes that it starts
        yield
        hits = sorted({int(line) for line in self.log.read_text().split()})
        self.tests[item.nodeid] = (round(sum(os.times()[:4]) - started, 3), hits)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _stop(*_: Any) -> None:
    """The time is over; once, although the system says so every second."""
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    raise KeyboardInterrupt


def in_a_fork(words: list[str], active: int, tree: Path, seconds: int) -> tuple[Recorder, bool]:
    """Run pytest in a child; what it recorded, and whether it came to an end."""
    answer, log = tree.parent / "answer.json", tree.parent / "reached"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 9))
        signal.signal(signal.SIGXCPU, _stop)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        switch = importlib.import_module("hwsim.mutant_switch")
        switch.ACTIVE, switch.LOG = active, str(log)  # type: ignore[attr-defined]
        os.environ.update(HWSIM_MUTANT=str(active), HWSIM_MUTANT_LOG=str(log))
        recorder = Recorder(log, switch)
        words = [*words, *QUIETLY]
        ended = False
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
            ended = pytest.main(words, [recorder]) != pytest.ExitCode.INTERRUPTED
        answer.write_text(json.dumps([recorder.tests, recorder.failed, ended]))
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except SystemExit:
        os.kill(child, signal.SIGKILL)
        raise
    recorder = Recorder(log, None)
    ended = False
    if answer.exists():
        recorder.tests, recorder.failed, ended = json.loads(answer.read_text())
    return recorder, ended


def reach(tree: Path, known: Tests, seconds: int, save: Any, only: str) -> None:
    """Run each file of tests that is new or changed once, all switches off."""
    for path in sorted((tree / "tests").rglob("test_*.py"), reverse=True):
        name = path.relative_to(tree).as_posix()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if any(f"/{each}" in name for each in SLOW) or known.get(name, {}).get("digest") == digest:
            continue
        if not re.search(only, name):
            continue
        recorded, ended = in_a_fork([name], -1, tree, seconds)
        passed = {test: what for test, what in recorded.tests.items() if test not in recorded.failed}
        known[name] = {"digest": digest, "tests": passed}
        spent = sum(each for each, _ in known[name]["tests"].values())
        print(f"{name}: {len(known[name]['tests'])} tests, {spent:.1f} s{'' if ended else ', stopped'}", flush=True)
        save()


def _quickest(tests: dict[str, tuple[float, list[int]]]) -> list[tuple[float, str]]:
    return [(seconds, test) for test, (seconds, _) in tests.items()]


def witnesses(number: int, mutation: Mutation, known: Tests, within: int) -> list[str]:
    """Tests that reach a mutation, a quick one of each file first; then what else their files hold, within the time.

    Nothing notes that compiled code is reached: for it, tests that name its module or one that imports it.
    """
    near = Path(mutation.file).stem.strip("_")
    module = mutation.file.removesuffix(".py").replace("/", ".")
    users = [path for path in (ROOT / "hwsim").rglob("*.py") if f"from {module} import" in path.read_text("utf-8")]
    named = "|".join([module, *(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in users)])
    ranked: list[tuple[int, float, str]] = []
    others: list[tuple[int, float, str]] = []
    for name, file in known.items():
        hits = sorted((seconds, test) for test, (seconds, reached) in file["tests"].items() if number in reached)
        ranked += [(rank if near not in name else 0, seconds, test) for rank, (seconds, test) in enumerate(hits)]
        if not mutation.live and not hits and re.search(rf"\b({named})\b", (ROOT / name).read_text("utf-8")):
            ranked += [(rank, seconds, test) for rank, (seconds, test) in enumerate(sorted(_quickest(file["tests"])))]
        elif hits or near in name:
            rest = sorted(
                (seconds, test) for test, (seconds, reached) in file["tests"].items() if number not in reached
            )
            others += [(rank, seconds, test) for rank, (seconds, test) in enumerate(rest)]
    chosen: list[str] = []
    spent = 0.0
    for _, seconds, test in [*sorted(ranked), *sorted(others)]:
        if spent + seconds <= within and len(chosen) < 100:
            chosen.append(test)
            spent += seconds
    return chosen


def judge(tree: Path, number: int, mutation: Mutation, known: Tests, at_import: set[int], within: int) -> None:
    """Switch one mutation on, run the tests that reach it, and note the first that fails."""
    tests = witnesses(number, mutation, known, within)
    started = time.monotonic()
    if not tests:
        mutation.verdict, mutation.by = "survived", "no fast test reaches it"
        return
    if mutation.live and number not in at_import:
        recorded, ended = in_a_fork(["-x", *tests], number, tree, 3 * within)
        mutation.by = recorded.failed[0] if recorded.failed else "" if ended else "does not end"
    else:
        text = text_with((ROOT / mutation.file).read_text(encoding="utf-8"), mutation.place)
        mutation.by = in_a_process(tree, mutation.file, text, tests, 3 * within + COMPILING)
    mutation.verdict, mutation.seconds = "killed" if mutation.by else "survived", round(time.monotonic() - started, 1)


def try_named(tree: Path) -> int:
    """Each of the named mutations against its test; the number that survive."""
    prepare(tree, [])
    survived = 0
    for name, (file, before, after, test) in NAMED.items():
        source = (ROOT / "hwsim" / file).read_text(encoding="utf-8")
        assert source.count(before) == 1, f"{file}: {before} is there {source.count(before)} times"
        by = in_a_process(tree, f"hwsim/{file}", source.replace(before, after), [test], COMPILING)
        survived += not by.startswith(test)
        print(f"{'killed' if by.startswith(test) else 'survived':8}  {name}  {by}", flush=True)
    return survived


def in_a_process(tree: Path, file: str, text: str, tests: list[str], seconds: int) -> str:
    """Change the text of the copy, run the tests in a process of their own, and change it back."""
    target = tree / file
    instrumented = target.read_text(encoding="utf-8")
    target.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", *QUIETLY, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    limit = [f'ulimit -t {seconds}; exec "$@"', "sh", *command]
    try:
        done = subprocess.run(
            ["sh", "-c", *limit], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        target.write_text(instrumented, encoding="utf-8")
    failed = re.search(r"^(FAILED|ERROR) (\S+)", done.stdout, re.M)
    return (
        "" if not done.returncode else failed[2] if failed else (done.stdout + done.stderr)[-80:].strip() or "no report"
    )


def imported(tree: Path) -> set[int]:
    """Import all of hwsim from the copy; the mutations that this already reaches."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path.insert(0, str(tree))
    switch = importlib.import_module("hwsim.mutant_switch")
    for heavy in (
        "hypothesis",
        "matplotlib.pyplot",
        "matplotlib.backends.backend_agg",
        "numba",
        "simpy",
        "rich.console",
    ):
        importlib.import_module(heavy)  # once, instead of in every fork
    package = importlib.import_module("hwsim")
    assert Path(str(package.__file__)).is_relative_to(tree)
    for module in pkgutil.walk_packages(package.__path__, "hwsim."):
        if "__main__" not in module.name and "dask" not in module.name:
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    return set(switch.seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="How many mutations are tried.")
    parser.add_argument("--seed", type=int, default=0, help="Another seed chooses other ones.")
    parser.add_argument("--again", action="store_true", help="Try the survivors again, with tests that are new.")
    parser.add_argument(
        "--json", type=Path, default=Path("mutants.json"), help="Where verdicts are kept while it runs."
    )
    parser.add_argument("--known", action="store_true", help="Only tests whose reach is known from an earlier try.")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="CPU time of the tests of a mutation.")
    parser.add_argument("--file-seconds", type=int, default=SECONDS, help="CPU time of a file of tests, once.")
    parser.add_argument(
        "--only", default="", help="A pattern: only files of tests whose names match are run for their reach."
    )
    parser.add_argument(
        "--first", type=int, help="Judge only so many; tests are then written for them, not for the rest."
    )
    parser.add_argument("--named", action="store_true", help="Only those that once went unnoticed, each by its test.")
    asked = parser.parse_args()
    if asked.named:
        with tempfile.TemporaryDirectory() as folder:
            return 1 if try_named(Path(folder) / "tree") else 0
    sys.dont_write_bytecode = False  # the rewritten tests are kept in the copy: each fork reads them again
    kept = asked.json.resolve()
    before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"mutations": [], "tests": {}}
    known: Tests = before["tests"]
    mutations = choose(asked.count, asked.seed, [Mutation(**each) for each in before["mutations"]])
    for each in mutations:
        if asked.again and each.verdict == "survived":
            each.verdict = ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def save() -> None:
        kept.write_text(
            json.dumps({"mutations": [asdict(each) for each in mutations], "tests": known}), encoding="utf-8"
        )

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        prepare(tree, mutations)
        at_import = imported(tree)
        if not asked.known:
            reach(tree, known, asked.file_seconds, save, asked.only)
        for number, each in sorted(enumerate(mutations), key=lambda pair: not pair[1].live):  # compiling comes last
            if not each.verdict and (asked.first is None or number < asked.first):
                judge(tree, number, each, known, at_import, asked.seconds)
                save()
                where = f"{each.file}:{each.line}  {each.change[:90]}"
                print(f"{number:4} {each.verdict:8} {each.seconds:5.0f} s  {where}  {each.by}", flush=True)
    judged = [each for each in mutations if each.verdict in ("killed", "survived")]
    for each in itertools.filterfalse(lambda each: each.verdict == "killed", judged):
        print(f"survived: {each.file}:{each.line}  {each.change[:100]}  {each.by}")
    killed = sum(each.verdict == "killed" for each in judged)
    print(f"{killed} of {len(judged)} killed, {killed / max(1, len(judged)):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
