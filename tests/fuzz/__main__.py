"""``python -m tests.fuzz``: many cases in a few processes; what failed is shown once for each cause, small."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.case import Failure
from tests.fuzz.kinds import KINDS, cases
from tests.fuzz.runner import fuzz
from tests.fuzz.shrink import shrink

SHRUNK_AT_MOST = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="how many in all")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--kind", choices=sorted(KINDS), help="only these")
    parser.add_argument("--case", type=int, help="only this one of a kind")
    given = parser.parse_args()
    todo = [each for each in cases(given.cases) if given.kind in (None, each[0])]
    if given.case is not None:
        todo = [(given.kind or "machine", given.case)]
    started = time.monotonic()
    failures = fuzz(todo, given.jobs, lambda text: print(text, file=sys.stderr, flush=True))
    counts = Counter(kind for kind, _ in todo)
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
    print(f"{len(todo):,} cases in {time.monotonic() - started:.0f} s, {len(failures)} failed")
    _show(failures)
    return 1 if failures else 0


def _show(failures: list[tuple[str, int, Failure]]) -> None:
    """Each cause once, made small."""
    causes: dict[str, list[tuple[str, int, Failure]]] = {}
    for each in failures:
        causes.setdefault(each[2].signature, []).append(each)
    for number, found in enumerate(sorted(causes.values(), key=len, reverse=True)):
        kind, case_number, failure = found[0]
        print(f"\n=== {len(found)} x {failure.what}   (--kind {kind} --case {case_number})\n{failure.detail}")
        case = KINDS[kind][0](case_number)
        print((shrink(case, failure) if number < SHRUNK_AT_MOST else case).as_shell()[:3000], flush=True)


if __name__ == "__main__":
    sys.exit(main())
