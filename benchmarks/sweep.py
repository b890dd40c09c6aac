"""What a sweep costs beyond its simulations, what an estimate of `tune` costs and is worth, and whether long sweeps
slow down.

    python benchmarks/sweep.py               # some minutes
    python benchmarks/sweep.py --points 200  # a shorter sweep; --long 2000 for a shorter long one, --long 0 for none

- overhead: small points with two workers, time and room for each beside simulating them one after the other;
- estimate: CPU time of an estimate beside that of a simulation of the same schedules, those that `hwsim tune
  course_cpu matmul_tiled n=128` goes through, and how well the estimates rank them (Spearman);
- long: CPU time for each point in the first and in the last tenth of a sweep of 20,000 points into one store.

Exit 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hwsim.api import prepare, simulate
from hwsim.sweep.executor import Processes
from hwsim.sweep.grid import make_request
from hwsim.sweep.point import resolve_points, run_inputs
from hwsim.sweep.runner import Runner, run_request
from hwsim.sweep.search import broken_rule, usual_space
from hwsim.sweep.store import ResultStore
from hwsim.sweep.tune import estimate, specs

WORKERS = 2
BAR_MS, BAR_BYTES = 30, 10_000
BAR_CHEAPER, BAR_RANK = 20, 0.9
BAR_SLOWER = 1.15
SAMPLE = 40
"""Schedules that are both estimated and simulated."""


def overhead(count: int) -> list[str]:
    """Print what each point of a sweep costs; returns the bars that were missed."""
    request = make_request(
        "course_cpu", "matmul_tiled", {"n": f"16..{15 + count // 4}", "m": 8, "k": 8, "tile": "4,8,16,32"}, {}
    )
    points = list(resolve_points(request))
    run_inputs(points[0].inputs)
    started = time.perf_counter()
    for point in points:
        run_inputs(point.inputs)
    alone = time.perf_counter() - started
    print(f"{len(points)} simulations one after the other: {1e3 * alone / len(points):.1f} ms each")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.db"
        with ResultStore(path) as store:
            runner = Runner(store, store.begin(request))
            begun = time.perf_counter()
            news = runner.run(runner.missing(resolve_points(request), []), Processes(WORKERS))
            next(news)
            ready = time.perf_counter()
            rest = sum(1 for _ in news)
            taken = time.perf_counter() - ready
        size = path.stat().st_size / len(points)
        # Two workers share the simulations: what is left of the time of the sweep is overhead.
        over_ms = 1e3 * (taken - alone * rest / len(points) / WORKERS) / rest
        print(f"starting {WORKERS} workers, to the first point: {ready - begun:.1f} s")
        print(f"sweep with {WORKERS} workers: {1e3 * taken / rest:.1f} ms for each point")
        print(f"overhead: {over_ms:.1f} ms for each point (bar: {BAR_MS} ms)")
        print(f"store: {size:,.0f} B for each point (bar: {BAR_BYTES:,} B)")
        with ResultStore(path) as store:
            again = time.perf_counter()
            reused = sum(1 for _ in run_request(request, store))
            each = 1e3 * (time.perf_counter() - again) / reused
            print(f"the same again, all {reused} points reused: {each:.2f} ms each")
    missed = [f"overhead {over_ms:.1f} ms"] if over_ms > BAR_MS else []
    return missed + ([f"store {size:,.0f} B"] if size > BAR_BYTES else [])


def estimates() -> list[str]:
    """Print what estimates cost and how well they rank; returns the bars that were missed."""
    space = usual_space("course_cpu", "matmul_tiled", {"n": "128"}, [])
    request = make_request("course_cpu", "matmul_tiled", space, {}, math=False)
    every = [specs(point.inputs) for point in resolve_points(request) if point.inputs is not None]
    chosen = [each for each in every if broken_rule(*each) is None]
    chosen = random.Random(0).sample(chosen, min(SAMPLE, len(chosen)))
    guessed_s, exact_s, guesses, times = 0.0, 0.0, [], []
    for number, (machine, work) in enumerate([chosen[0], *chosen]):  # the first one loads compiled code
        began = time.process_time()
        guess = estimate(machine, work)
        between = time.process_time()
        outcome = simulate(machine, prepare(machine, work, math=False), work, seed=work.seed)
        if number:
            guessed_s, exact_s = guessed_s + between - began, exact_s + time.process_time() - between
            guesses.append(guess["time_s"])
            times.append(outcome.elapsed_fs)
    ratio, rank = exact_s / guessed_s, _spearman(guesses, times)
    each = [1e3 * total / len(times) for total in (guessed_s, exact_s)]
    print(f"estimate: {each[0]:.1f} ms, simulation {each[1]:.1f} ms, on average over {len(times)} schedules: ", end="")
    print(f"{ratio:.0f} times cheaper (bar: {BAR_CHEAPER}), rank {rank:.3f} (bar: {BAR_RANK})")
    missed = [f"estimates {ratio:.1f} times cheaper"] if ratio < BAR_CHEAPER else []
    return missed + ([f"rank of estimates {rank:.2f}"] if rank < BAR_RANK else [])


def _spearman(first: list[float], second: list[float]) -> float:
    """Correlation of ranks; equal values share the mean of theirs."""

    def ranks(values: list[float]) -> np.ndarray:
        rounded = np.array([float(f"{value:.9g}") for value in values])
        return np.array([(rounded < each).sum() + ((rounded == each).sum() - 1) / 2 for each in rounded])

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def long_sweep(count: int) -> list[str]:
    """Print what points cost at the beginning and at the end of a long sweep; returns the bars that were missed."""
    request = make_request("a100_40", "add", {"n": f"1024..{1023 + count}"}, {}, math=False)
    tenth = count // 10
    with tempfile.TemporaryDirectory() as folder, ResultStore(Path(folder) / "sweep.db") as store:
        marks = [time.process_time()]
        for number, _ in enumerate(run_request(request, store, "inprocess"), start=1):
            if number % tenth == 0:
                marks.append(time.process_time())
    first, last = marks[2] - marks[1], marks[-1] - marks[-2]  # the first tenth of all loads what is needed
    print(f"{count:,} points: {1e3 * first / tenth:.2f} ms for each in the second tenth, ", end="")
    print(f"{1e3 * last / tenth:.2f} ms in the last: {last / first:.2f} times (bar: {BAR_SLOWER})")
    return [f"the end of a long sweep costs {last / first:.2f} times its start"] if last / first > BAR_SLOWER else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1000, help="points of the sweep with workers (1000)")
    parser.add_argument("--long", type=int, default=20_000, help="points of the long sweep (20000)")
    options = parser.parse_args()
    missed = estimates()
    missed += long_sweep(options.long) if options.long else []
    missed += overhead(options.points) if options.points else []
    for bar in missed:
        print(f"missed: {bar}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
