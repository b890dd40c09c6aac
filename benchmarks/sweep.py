"""What a sweep costs beyond its simulations: 1,000 small points with two workers, time and room for each.

python benchmarks/sweep.py [points]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hwsim.sweep.executor import Processes
from hwsim.sweep.grid import make_request
from hwsim.sweep.point import resolve_points, run_inputs
from hwsim.sweep.runner import Runner, run_request
from hwsim.sweep.store import ResultStore

WORKERS = 2
BAR_MS, BAR_BYTES = 30, 10_000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
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
            backend = Processes(WORKERS)
            begun = time.perf_counter()
            news = runner.run(runner.missing(resolve_points(request), []), backend)
            next(news)
            ready = time.perf_counter()
            rest = sum(1 for _ in news)
            taken = time.perf_counter() - ready
        size = path.stat().st_size / len(points)
        # Two workers share the simulations: what is left of the time of the sweep is overhead.
        overhead = taken - alone * rest / len(points) / WORKERS
        print(f"starting {WORKERS} workers, to the first point: {ready - begun:.1f} s")
        print(f"sweep with {WORKERS} workers: {1e3 * taken / rest:.1f} ms for each point")
        print(f"overhead: {1e3 * overhead / rest:.1f} ms for each point (bar: {BAR_MS} ms)")
        print(f"store: {size:,.0f} B for each point (bar: {BAR_BYTES:,} B)")
        with ResultStore(path) as store:
            again = time.perf_counter()
            reused = sum(1 for _ in run_request(request, store))
            each = 1e3 * (time.perf_counter() - again) / reused
            print(f"the same again, all {reused} points reused: {each:.2f} ms each")
    if 1e3 * overhead / rest > BAR_MS or size > BAR_BYTES:
        sys.exit("a bar is missed")


if __name__ == "__main__":
    main()
