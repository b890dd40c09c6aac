"""Golden rows and golden screens: how a run is written down, read back and compared.

A row has what a reviewer looks at, and digests of all the rest. Digits that depend on the BLAS library are masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from math import floor, inf, log10
from pathlib import Path
from typing import Any

from observe import Seen

from hwsim.files import write_text
from tests.small import small_on

RUNS = Path(__file__).parent / "runs"
SCREENS = Path(__file__).parent / "screens"
UPDATE = "if that is meant: make golden-update, and look at git diff"
WIDTHS = {
    "workload": 27, "time": 13, "cycles": 11, "energy": 13, "dram bytes": 11, "verified": 9, "error": 8, "json": 13,
    "run": 13, "explain": 13, "bound by": 0,
}  # fmt: skip
DIGITS = 12
"""Of every number in a digest: the last ones may depend on the mathematical library."""
MASKS = {
    r"(max rel err) \S+, rms \S+": r"\1 #, rms #",
    r"rms error \S+ with that of the inputs, \S+ dB": "rms error # with that of the inputs, # dB",
    r"(its error is) \S+,": r"\1 #,",
}
EPSILON = 2.0**-24
"""Of one rounding to fp32."""
NO_ROW = "(no row)"
RAN = re.compile(r"\S+ +\d\.\d{6}e[+-]\d+ ")
"""How the row of a run begins that was not refused: with its time."""


def masked(text: str) -> str:
    """A screen without the digits of numeric errors, and without blanks at the ends of lines."""
    for pattern, replacement in MASKS.items():
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def row(workload: str, seen: Seen) -> str:
    """One run in one line; of one that is refused, the reason."""
    if seen.error:
        return f"{workload:<{WIDTHS['workload']}}{' / '.join(seen.error.splitlines())}"
    result = seen.result
    far = list(result["memory"].values())[-1]
    error = result["error"]
    texts = (
        workload,
        f"{result['time_s']:.6e}",
        str(result["cycles"]),
        "none" if result["energy_j"] is None else f"{result['energy_j']:.6e}",
        str(far["bytes_read"] + far["bytes_written"]),
        {True: "yes", False: "WRONG", None: "no"}[result["verified"]],
        "none" if error is None else "inf" if error["max_rel"] is None else f"{error['max_rel']:.0e}",
        *(_digest(text) for text in (_steady_json(result), masked(seen.run), masked(seen.explain))),
        _bound(seen.run),
    )
    return "".join(f"{text:<{width}}" for text, width in zip(texts, WIDTHS.values(), strict=True)).rstrip()


def screens(machine: str, workload: str, seen: Seen) -> str:
    """Both screens in full, after the commands that show them."""
    words = " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in small_on(machine, workload).items())
    head = f"$ hwsim run {machine} {workload} {words}\n"
    if seen.error:
        return f"{head}{seen.error}\n"
    return f"{head}{masked(seen.run)}\n$ hwsim explain\n{masked(seen.explain)}"


def read_rows(machine: str, folder: Path = RUNS) -> dict[str, str]:
    """The golden rows of a machine by workload; none where there is no file."""
    file = folder / f"{machine}.txt"
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
    return {line.partition(" ")[0]: line for line in lines}


def write_rows(machine: str, rows: Mapping[str, str], folder: Path = RUNS) -> None:
    """Make rows golden; one that says the same as before stays as it was, to the last digit of its error."""
    before = read_rows(machine, folder)
    kept = [before[name] if name in before and same(before[name], line) else line for name, line in rows.items()]
    head = "".join(f"{name:<{width}}" for name, width in WIDTHS.items())
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{machine}.txt", "\n".join((head, *kept)) + "\n")


def same(expected: str, found: str) -> bool:
    """Whether two rows agree; errors may differ by rounding, which is up to the BLAS library."""
    return not differing(expected, found)


def differing(expected: str, found: str) -> list[str]:
    """The columns in which two rows differ."""
    if expected == found:
        return []
    if not (RAN.match(expected) and RAN.match(found)):
        return ["all"]
    pairs = {name: (_cell(expected, name), _cell(found, name)) for name in WIDTHS}
    return [name for name, (old, new) in pairs.items() if old != new and not (name == "error" and _near(old, new))]


def objections(machine: str, golden: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Every row that is not as it was: expected above found. Empty if there is none."""
    texts = []
    for workload, line in found.items():
        expected = golden.get(workload, NO_ROW)
        if columns := differing(expected, line):
            texts.append(f"{workload} on {machine}: {', '.join(columns)}\n  expected  {expected}\n  found     {line}")
    return "\n".join([*texts, UPDATE]) if texts else ""


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def digest_of(value: Any) -> str:
    """Of anything that is written as JSON, numbers rounded."""
    return _digest(json.dumps(_rounded(value), ensure_ascii=False))


def _steady_json(result: dict[str, Any]) -> str:
    """The result without its numeric errors, numbers rounded."""
    texts = json.loads(masked(json.dumps(result["warnings"], ensure_ascii=False)))
    errors = {name: result[name] and sorted(result[name]) for name in ("error", "numeric")}
    return json.dumps(_rounded({**result, **errors, "warnings": texts}), ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if not isinstance(value, float) or value in (0.0, inf, -inf):
        return value
    return round(value, DIGITS - 1 - floor(log10(abs(value))))


def _bound(screen: str) -> str:
    """What the screen says that the run is bound by: the paragraph above the bounds, up to its first stop."""
    above = screen.partition("\nbounds  ")[0].rpartition("\n\n")[2]
    return re.split(r"[:,.;](?:\s|$)", " ".join(above.split()), maxsplit=1)[0].removeprefix("Bound by ")


def start(column: str) -> int:
    """Where in a row a column begins."""
    names = list(WIDTHS)
    return sum(WIDTHS[name] for name in names[: names.index(column)])


def _cell(line: str, column: str) -> str:
    """A column of a row; the last one goes on to the end."""
    rest = line[start(column) :]
    return rest[: WIDTHS[column]].strip() if WIDTHS[column] else rest


def _near(old: str, new: str) -> bool:
    """Whether two errors are within a factor of two, or both a few roundings of fp32.

    In which order a BLAS library adds depends on the processor, and decides how many of them there are.
    """
    try:
        a, b = float(old), float(new)
    except ValueError:
        return False
    few_roundings = all(EPSILON / 2 <= error <= 16 * EPSILON for error in (a, b))
    return few_roundings or (a <= 2 * b and b <= 2 * a)
