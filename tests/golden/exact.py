"""Digests of every machine with every workload, to the last digit: two commits that agree print the same bytes.

python tests/golden/exact.py before.txt        # on one commit
python tests/golden/exact.py after.txt         # on the other; then: diff before.txt after.txt

Unlike the golden files, this keeps the digits of numeric errors, which depend on the BLAS library: compare what one
computer wrote. Names of machines after the file choose some.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from multiprocessing import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from hwsim.files import write_text

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the hwsim beside this file, whatever is installed

PROCESSES = 2


def line(pair: tuple[str, str]) -> str:
    """One run in one line: digests of its JSON, of its screen and of its explanation."""
    from observe import observe

    with TemporaryDirectory() as folder:
        seen = observe(*pair, Path(folder))
    if seen.error:
        return f"{' '.join(pair)} {' / '.join(seen.error.splitlines())}"
    texts = (seen.json, seen.run, seen.explain)
    return " ".join((*pair, *(sha256(text.encode()).hexdigest() for text in texts)))


def write(target: Path, machines: list[str]) -> int:
    """Write one line for each machine and workload, in order; gives how many."""
    from observe import MACHINES, WORKLOADS

    pairs = [(machine, workload) for machine in machines or MACHINES for workload in WORKLOADS]
    with Pool(PROCESSES) as pool:
        lines = pool.map(line, pairs, chunksize=10)
    write_text(target, "\n".join(lines) + "\n")
    return len(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python tests/golden/exact.py OUT.txt [MACHINE]...")
    started = perf_counter()
    count = write(Path(sys.argv[1]), sys.argv[2:])
    sys.stderr.write(f"{count} runs in {perf_counter() - started:.0f} s\n")
