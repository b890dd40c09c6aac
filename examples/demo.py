"""What `make demo` shows: the commands of hwsim, each printed before it runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np

from hwsim.cli.app import main as hwsim

OUT = Path("out")
N = 256


def run(command: str) -> None:
    """Run one command line as a user would; the first that fails ends the demo."""
    print(f"\n$ hwsim {command}", flush=True)
    code = hwsim(shlex.split(command))
    if code:
        sys.exit(code)


def write_traces() -> None:
    """An N by N matrix of 4-byte values, read along its rows, and read down its columns."""
    OUT.mkdir(exist_ok=True)
    row, column = np.indices((N, N), dtype=np.uint64)
    addresses = (row * N + column) * 4
    read = np.zeros(N * N, dtype=bool)
    np.savez(OUT / "rows.npz", addr=addresses.ravel(), write=read)
    np.savez(OUT / "columns.npz", addr=addresses.T.ravel(), write=read)


def main() -> None:
    run("list")
    run("show course_cpu")
    run("validate cache")
    write_traces()
    print(f"\nA {N} x {N} matrix of 4-byte values, read row by row and then column by column:")
    run(f"replay course_cpu {OUT}/rows.npz --access-bytes 4")
    run(f"replay course_cpu {OUT}/columns.npz --access-bytes 4")
    print("\nThe values are the same and the order is not. Read on: docs/tutorial/first-steps.md")


if __name__ == "__main__":
    main()
