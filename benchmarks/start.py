"""CPU seconds (user and system) of commands from start to end, with the bar of each, beside those of another commit.

    python benchmarks/start.py                        # short commands, least of five turns
    python benchmarks/start.py --against f70afe8      # the same beside that commit, with the ratio
    python benchmarks/start.py --long                 # also long runs, searches, and the first run ever

The first run ever is measured twice: from a wheel that is built for it, as users install hwsim, whose compiled code the
run finds; and from this tree, as developers have it, where Numba compiles. The bar is for the wheel; building one needs
Hatchling.

Commands take turns, so that a busy computer disturbs all of them alike; where it is busy, the least is too large as
well: compare with the lines of the libraries. The first turn, which may compile, does not count. Exit 1 if a bar is
missed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

from against import HERE, tree_of

LIBRARIES = ("pass", "import numpy, pydantic", "import numpy, pydantic, typer, rich.console, yaml", "import numba")


@dataclass
class Row:
    """A command, the most CPU seconds that it may take, and what it took here and at the other commit."""

    words: str
    bar_s: float = float("inf")
    first: bool = False
    """Whether it begins with no compiled code in the cache folder."""
    installed: Path | None = None
    """Where the files of a wheel are, if it runs from these."""
    seconds: dict[Path, float] = field(default_factory=dict)

    @property
    def missed(self) -> bool:
        return self.seconds[HERE] > self.bar_s

    def show(self, before: Path | None) -> str:
        here, bar = self.seconds[HERE], f"{self.bar_s:6.1f}" if self.bar_s < float("inf") else "      "
        told = f"{here:8.3f} {bar}"
        if before is not None:
            then = self.seconds.get(before)
            told += f" {then:8.3f} {here / then:6.2f}" if then is not None else "        –      –"
        where = f"first, from {'a wheel' if self.installed else 'the tree'}: " if self.first else ""
        return f"{told}  {where}{self.words}{'   MISSED' if self.missed else ''}"


SHORT = (
    ("hwsim --help", 0.2),
    ("hwsim run course_cpu matmul_tiled n=256", 0.6),
    ("hwsim run a100_40 matmul n=512 precision=fp16", 0.5),
    ("hwsim run tpu_v4 matmul n=512 precision=bf16", 0.5),
)
LONG = (
    ("hwsim run course_cpu matmul_naive n=1024 --no-math", 1.0),
    ("hwsim run zen3 matmul_naive n=1024 --no-math", 8.0),
    ("hwsim run zen3 matmul n=4096 --no-math", 10.0),
    ("hwsim tune course_cpu matmul_tiled n=128", 4.0),
    ("hwsim sweep course_cpu matmul_tiled n=256 tile=4,8,16,32,64,128,256 precision=fp32,bf16,int8 --out SWEEP", 5.0),
)
FIRST = "hwsim run course_cpu matmul_tiled n=256"
FIRST_BAR_S = 4.0


def cpu_seconds(row: Row, folder: Path) -> float | None:
    """User and system time of one run with the files of a folder, children too; None where it cannot be run there."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | single
    environment["PYTHONPATH"] = str(row.installed or folder)
    with tempfile.TemporaryDirectory() as room:
        if row.first:
            environment["XDG_CACHE_HOME"] = room
        given = row.words.replace("SWEEP", f"{room}/sweep.db")
        words = ["-m", *given.split()] if given.startswith("hwsim") else ["-c", given]
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd=room
        )
        seconds = 0.0
        with suppress(ChildProcessError):
            while True:  # until no descendant is left: workers of a sweep outlive their parent for a moment
                ended, status, usage = os.wait4(-1, 0)
                seconds += usage.ru_utime + usage.ru_stime
                if ended == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
        return None if process.returncode else seconds


def adopt_orphans() -> None:
    """On Linux, descendants whose parents have ended become children of this process, which then knows their time."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def unpack_wheel(room: Path) -> Path:
    """Build a wheel of this tree and put its files, compiled as an installer does, into a folder."""
    build = "import sys, build_wheel; build_wheel.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(room)], cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = room.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(room / "files")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(room / "files")], check=True)
    return room / "files"


def measure(row: Row, folders: list[Path], turns: int) -> None:
    """The least of some turns; of a first run, which is the same every time, one turn is enough."""
    for turn in range(1 if row.first else turns + 1):
        for folder in folders:
            found = cpu_seconds(row, folder)
            if found is None and folder is HERE:
                raise SystemExit(f"{row.words}: it failed")
            if found is not None and (turn or row.first):
                row.seconds[folder] = min(found, row.seconds.get(folder, float("inf")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="also time that commit, and print the ratio")
    parser.add_argument("--long", action="store_true", help="also long runs, and the first run ever")
    parser.add_argument("--turns", type=int, default=5, help="how often each is timed; the least counts (5)")
    options = parser.parse_args()
    adopt_orphans()
    if shutil.which("git") is None and options.against:
        raise SystemExit("--against needs git")
    rows = [Row(f"{text}") for text in LIBRARIES] + [Row(*each) for each in SHORT]
    if options.long:
        rows += [*(Row(*each) for each in LONG), Row(FIRST, first=True)]
    with ExitStack() as stack:
        if options.long:
            room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rows.append(Row(FIRST, FIRST_BAR_S, first=True, installed=unpack_wheel(room)))
        before = stack.enter_context(tree_of(options.against)) if options.against else None
        print(f"CPU seconds   bar {'  before  ratio' if before else ''}")
        for row in rows:
            long = row.words in dict(LONG)
            alone = before is None or not row.words.startswith("hwsim") or row.installed is not None
            measure(row, [HERE] if alone or before is None else [before, HERE], 1 if long else options.turns)
            print(row.show(before), flush=True)
    return 1 if any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
