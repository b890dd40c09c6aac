"""What `make demo` shows: the commands of hwsim, each printed before it runs, and the ladder with its plot."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from hwsim.cli.app import main as hwsim

PLOT = Path("out") / "ladder.png"


def run(command: str) -> None:
    """Run one command line as a user would; the first that fails ends the demo."""
    print(f"\n$ hwsim {command}", flush=True)
    code = hwsim(shlex.split(command))
    if code:
        sys.exit(code)


def climb() -> None:
    """The same product four times: naive, vectorised, tiled, parallel."""
    script = Path(__file__).with_name("ladder.py")
    print(f"\n$ python examples/{script.name} {PLOT}", flush=True)
    subprocess.run([sys.executable, str(script), str(PLOT)], check=True)


def main() -> None:
    run("list")
    run("validate cache")
    run("run course_cpu matmul_tiled n=256 tile=32")
    climb()
    print(f"\nThe plot is in {PLOT}. Read on: docs/tutorial/first-run.md")


if __name__ == "__main__":
    main()
