"""How long a run of `hwsim run` takes, where that time goes, and what the fast ways of walking save.

    python benchmarks/run.py           # some minutes: the plain walks of n = 1024 take most of it
    python benchmarks/run.py --quick   # without these
    python benchmarks/run.py --json    # the same as JSON
    python benchmarks/run.py --against f70afe8    # instead: every stock run beside that commit, see against.py

Naive and tiled matrix products (float32) on course_cpu, each in a process of its own:

- math: the real product, and writing down its loops
- walk: replaying its accesses through the caches, with run compression and warping
- SimPy: everything else that the engine does
- result: checking the answer against float64, pricing the energy, putting the result together
- start-up: all other time of the process: Python, imports, loading the compiled code

The plain walk replays the same accesses one by one, without run compression and warping; its counts must be the same.
At last `hwsim run course_cpu matmul_tiled n=512` is timed as a user sees it, in an empty cache folder: once with the
first compile, then several times after it. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from against import compare_all

MACHINE = "course_cpu"
WORKLOADS = ("matmul_naive", "matmul_tiled")
SIZES = (128, 256, 512, 1024)
WARM_UP_SIZE = 128
LONG_SIZE = 1024

BAR_COMMAND = ("run", MACHINE, "matmul_tiled", "n=512")
BAR_S = 3.0
MOST_EVENTS = 100_000
"""A run has tens of thousands of SimPy events, never millions."""


@dataclass(frozen=True)
class Row:
    """One run: seconds by part, and what was counted."""

    workload: str
    n: int
    wall_s: float
    math_s: float
    walk_s: float
    simpy_s: float
    result_s: float
    startup_s: float
    events: int
    accesses: int
    skipped: int
    plain_walk_s: float | None
    same_counts: bool | None


def measure_inside(workload: str, n: int, plain: bool) -> dict[str, object]:
    """What a process measures of itself. A small run first loads the compiled code, so that it counts as start-up."""
    from hwsim.api import prepare, resolve_machine, resolve_workload, simulate
    from hwsim.results.explanation import assemble

    machine = resolve_machine(MACHINE)
    small = resolve_workload(workload, {"n": WARM_UP_SIZE})
    simulate(machine, prepare(machine, small))
    began = time.perf_counter()
    task = resolve_workload(workload, {"n": n})
    kernel = prepare(machine, task)
    ready = time.perf_counter()
    outcome = simulate(machine, kernel)
    played = time.perf_counter()
    assemble(machine, task, kernel, outcome, seed=0)
    ended = time.perf_counter()
    found: dict[str, object] = {
        "math_s": outcome.math_seconds + ready - began,
        "walk_s": outcome.walk_seconds,
        "simpy_s": played - ready - outcome.math_seconds - outcome.walk_seconds,
        "result_s": ended - played,
        "events": outcome.events,
        "accesses": outcome.accesses,
        "skipped": outcome.skipped,
        "plain_walk_s": None,
        "same_counts": None,
        "extra_s": 0.0,
    }
    if plain:
        found |= _walk_plainly(workload, n, outcome.levels)
    return found


def _walk_plainly(workload: str, n: int, expected: object) -> dict[str, object]:
    from hwsim.api import prepare, resolve_machine, resolve_workload
    from hwsim.memory.hierarchy import build_hierarchy

    began = time.perf_counter()
    machine = resolve_machine(MACHINE)
    for size in (WARM_UP_SIZE, n):
        hierarchy = build_hierarchy(machine, cores=1, compress=False, warp=False)
        kernel = prepare(machine, resolve_workload(workload, {"n": size}), math=False)
        nests = [nest for block in kernel.blocks() for step in block.steps() for nest in step.nests]
        started = time.perf_counter()
        for nest in nests:
            hierarchy.replay(nest)
        ended = time.perf_counter()
    return {
        "plain_walk_s": ended - started,
        "same_counts": hierarchy.level_counters() == expected,
        "extra_s": time.perf_counter() - began,
    }


def measure(workload: str, n: int, plain: bool) -> Row:
    """A process of its own, timed from outside; what it cannot see of itself is start-up."""
    words = [sys.executable, __file__, "--inside", workload, str(n), *(["--plain"] if plain else [])]
    began = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    wall = time.perf_counter() - began
    inside = json.loads(done.stdout)
    wall -= inside.pop("extra_s")
    known = sum(inside[part] for part in ("math_s", "walk_s", "simpy_s", "result_s"))
    return Row(workload=workload, n=n, wall_s=wall, startup_s=wall - known, **inside)


def time_command(repeats: int) -> tuple[float, list[float]]:
    """Seconds of `hwsim run` with the first compile, and of each run after it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        seconds = []
        for _ in range(repeats + 1):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "hwsim", *BAR_COMMAND],
                env=environment,
                stdout=subprocess.DEVNULL,
                check=True,
            )
            seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1:]


def missed_bars(rows: list[Row], after: list[float]) -> list[str]:
    missed = []
    for row in rows:
        if row.events > MOST_EVENTS:
            missed.append(f"{row.workload} n={row.n}: {row.events:,} events, the bar is {MOST_EVENTS:,}")
        if row.same_counts is False:
            missed.append(f"{row.workload} n={row.n}: the plain walk counts something else")
    if median(after) >= BAR_S:
        missed.append(f"hwsim {' '.join(BAR_COMMAND)}: {median(after):.2f} s, the bar is {BAR_S:.0f} s")
    return missed


def print_rows(rows: list[Row]) -> None:
    print(
        f"{'seconds of a run':<20}{'wall':>7} ={'math':>7} +{'walk':>7} +{'SimPy':>7} +{'result':>7} +{'start-up':>9}",
        end="",
    )
    print(f"  |{'events':>7}{'accesses':>15}{'skipped':>9}  |{'plain walk':>11}{'ratio':>7}")
    for row in rows:
        print(f"{row.workload:<14}{row.n:>6}{row.wall_s:>7.2f}{row.math_s:>9.3f}{row.walk_s:>9.3f}", end="")
        print(f"{row.simpy_s:>9.4f}{row.result_s:>9.3f}{row.startup_s:>11.2f}", end="  |")
        print(f"{row.events:>7}{row.accesses:>15,}{row.skipped / row.accesses:>9.1%}", end="  |")
        if row.plain_walk_s is None:
            print(f"{'not timed':>11}")
        else:
            print(f"{row.plain_walk_s:>11.3f}{row.plain_walk_s / row.walk_s:>6.1f}x")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"leave out the plain walks of n = {LONG_SIZE}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--against", metavar="COMMIT", help="CPU time of every stock run beside that of a commit")
    parser.add_argument("--on", metavar="MACHINE", default=MACHINE, help="with --against: the machine")
    parser.add_argument("workloads", nargs="*", help="with --against: some workloads instead of all")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against:
        return compare_all(options.against, options.on, options.workloads)
    if options.inside:
        print(json.dumps(measure_inside(options.inside[0], int(options.inside[1]), options.plain)))
        return 0
    measure(WORKLOADS[0], WARM_UP_SIZE, plain=True)  # compiles
    rows = [measure(workload, n, plain=n < LONG_SIZE or not options.quick) for workload in WORKLOADS for n in SIZES]
    first, after = time_command(repeats=3 if options.quick else 5)
    missed = missed_bars(rows, after)
    if options.json:
        command = {"words": ["hwsim", *BAR_COMMAND], "first_s": first, "after_s": after, "bar_s": BAR_S}
        print(json.dumps({"runs": [asdict(row) for row in rows], "command": command, "missed": missed}, indent=2))
    else:
        print_rows(rows)
        shown = ", ".join(f"{each:.2f}" for each in after)
        print(f"\nhwsim {' '.join(BAR_COMMAND)}: {first:.2f} s with the first compile, then {shown} s; ", end="")
        print(f"median {median(after):.2f} s on {os.cpu_count()} cores, bar {BAR_S:.0f} s")
        for bar in missed:
            print(f"missed: {bar}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
