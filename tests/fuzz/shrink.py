"""Makes a failing case small: as long as it fails in the same way, lines, bytes and words are left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from tests.fuzz.case import Case, Failure, run_case

SHRINK_S = 20.0


def shrink(case: Case, failure: Failure, seconds: float = SHRINK_S) -> Case:
    """The smallest case found in some seconds that fails like this one."""
    until = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < until:
        smaller = False
        for candidate in _smaller(case):
            if time.monotonic() > until:
                break
            found = run_case(candidate)
            if found is not None and found.signature == failure.signature:
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with a part left out, the largest parts first."""
    for number in range(len(case.commands) - 1):
        yield replace(case, commands=case.commands[:number] + case.commands[number + 1 :])
    last = case.commands[-1]
    for number in range(len(last) - 1, 0, -1):
        yield replace(case, commands=(*case.commands[:-1], last[:number] + last[number + 1 :]))
    for name, content in case.files.items():
        if len(case.files) > 1:
            yield replace(case, files={key: value for key, value in case.files.items() if key != name})
        lines = content.split(b"\n")
        parts = lines if len(lines) > 3 else [content[number : number + 1] for number in range(len(content))]
        joint = b"\n" if parts is lines else b""
        size = len(parts) // 2
        while size:
            for start in range(0, len(parts), size):
                yield replace(case, files={**case.files, name: joint.join(parts[:start] + parts[start + size :])})
            size //= 2
