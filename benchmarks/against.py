"""CPU seconds of every stock run, beside those of another commit, in one go.

    python benchmarks/run.py --against f70afe8                      # all workloads on course_cpu
    python benchmarks/run.py --against HEAD~1 --on a100_40 matmul   # some of them, on another machine

Each run is a process, as a user starts it, at the sizes of its file; the two trees take turns, so that a busy computer
slows both alike, and the time of a run is the least of several. CPU time counts, so that waiting for others does not.
`again` is the same run once more in the process, which loads nothing: what a point of a sweep takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
REPEATS = 3
BAR = 1.05
"""No stock run may take longer than so many times the CPU time before."""
NOISE_S = 0.03
"""Differences below this are noise of a busy computer, and miss no bar."""

WORKER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import hwsim
seconds, error = [], ""
for _ in range(2):
    try:
        hwsim.run(*sys.argv[1:])
    except hwsim.HwsimError as refusal:
        error = str(refusal).splitlines()[0]
    seconds.append(time.process_time())
print(json.dumps([seconds[0], seconds[1] - seconds[0], error]))
"""


@dataclass(frozen=True)
class Pair:
    """One run on both trees: CPU seconds of the process, and of the same run once more in it."""

    workload: str
    before: tuple[float, float] = (0.0, 0.0)
    now: tuple[float, float] = (0.0, 0.0)
    note: str = ""

    @property
    def missed(self) -> bool:
        return not self.note and self.now[0] > max(BAR * self.before[0], self.before[0] + NOISE_S)

    def __str__(self) -> str:
        if self.note:
            return f"{self.workload:<30}{self.note}"
        figures = "".join(
            f"{old:>9.3f}{new:>9.3f}{new / old if old else 1:>7.2f}"
            for old, new in zip(self.before, self.now, strict=True)
        )
        return f"{self.workload:<30}{figures}{'  slower' if self.missed else ''}"


def time_run(folder: Path, machine: str, workload: str) -> tuple[float, float, str]:
    """CPU seconds of a process that runs a workload with the files of a folder, and of the second run in it."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **single, "PYTHONPATH": str(folder)}
    words = [sys.executable, "-c", WORKER, machine, workload]
    done = subprocess.run(words, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    first, again, error = json.loads(done.stdout)
    return first, again, error


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """The files of a commit, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "before"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(target), commit], check=True)
        try:
            yield target
        finally:
            subprocess.run([*git, "remove", "--force", str(target)], check=True)


def compare(before: Path, machine: str, workload: str) -> Pair:
    """The least CPU time of several turns of each; the first turn, which may compile, is not counted."""
    old, new = [], []
    for _ in range(REPEATS + 1):
        for folder, found in ((before, old), (HERE, new)):
            first, again, error = time_run(folder, machine, workload)
            if error:
                return Pair(workload, note=error if folder is HERE else f"before: {error}")
            found.append((first, again))
    least = [(min(first for first, _ in found[1:]), min(again for _, again in found[1:])) for found in (old, new)]
    return Pair(workload, *least)


def compare_all(commit: str, machine: str, workloads: list[str]) -> int:
    """Print the table; gives 1 if a run is slower than the bar allows."""
    stock = sorted(path.stem for path in (HERE / "workloads").glob("*.yaml"))
    found: list[Pair] = []
    print(f"{'CPU seconds on ' + machine:<30}{'before':>9}{'now':>9}{'ratio':>7}{'again':>9}{'now':>9}{'ratio':>7}")
    with tree_of(commit) as before:
        there = {path.stem for path in (before / "workloads").glob("*.yaml")}
        for workload in workloads or [name for name in stock if name in there]:
            found.append(compare(before, machine, workload))
            print(found[-1], flush=True)
    timed = [pair for pair in found if not pair.note]
    ratios = [sum(p.now[i] for p in timed) / (sum(p.before[i] for p in timed) or 1) for i in (0, 1)]
    missed = sum(pair.missed for pair in found)
    print(f"\n{len(timed)} runs: {ratios[0]:.2f} times the CPU time before, {ratios[1]:.2f} when run again; ", end="")
    print(f"slower by over 5 %: {missed}")
    return 1 if missed else 0
