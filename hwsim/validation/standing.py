"""Where each family of measurements stands: rows, error, aim, coverage of its error bars; by machine, and in all.

`hwsim validate` prints it, `hwsim validate --write` keeps it in `data/standing.csv`, and the page
docs/explanation/validation.md is made from that file.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from pathlib import Path
from statistics import mean, median

from hwsim.results.bar_table import BarTable
from hwsim.units import seconds
from hwsim.validation.report import ComparisonRow, Report
from hwsim.validation.residual import FIT, Coverage, Residual, coverage_of, judges
from hwsim.validation.table import shipped

LOWEST, HIGHEST = 0.75, 0.85
"""What the coverage of bars for 80 % has to lie between."""
ENOUGH = 50
"""From so many judged rows on it has to."""


@dataclass(frozen=True)
class Aim:
    """The error that a family is to stay below, on average over its machines or on one of them."""

    limit: float
    machine: str = ""
    statistic: str = "mean"


AIMS: Mapping[tuple[str, str], tuple[Aim, ...]] = {
    ("time", "cpu_matmul"): (Aim(0.15),),
    ("time", "gemm_tensor"): (Aim(0.085), Aim(0.075, "a100_80")),
    ("time", "gemm_8bit"): (Aim(0.11),),
    ("time", "gemm_fp32"): (Aim(0.08),),
    ("time", "conv_implicit"): (Aim(0.15),),
    ("time", "conv_winograd_fft"): (Aim(0.25),),
    ("time", "bmm"): (Aim(0.12),),
    ("time", "gemm_weight_only"): (Aim(0.10),),
    ("time", "attention_fused"): (Aim(0.07),),
    ("time", "attention_unfused"): (Aim(0.15),),
    ("time", "attention_backward"): (Aim(0.12),),
    ("time", "attention_decode"): (Aim(0.08),),
    ("power", "gpu_power"): (Aim(0.07, "h200"),),
    ("energy", "grid_layers"): (Aim(0.08),),
    ("time", "array_products"): (Aim(0.15, "gemmini16"), Aim(0.15, "tpu_v6e", "median")),
    ("time", "array_attentions"): (Aim(0.25, "tpu_v6e", "median"),),
    ("time", "collective"): (Aim(0.15),),
}
"""By quantity and family."""


@dataclass(frozen=True)
class Standing:
    """One family on one machine."""

    check: str
    """The comparison that it belongs to: `hwsim validate CHECK`."""
    quantity: str
    family: str
    machine: str
    for_fits: int
    """Rows that models may be fitted on."""
    rows: int
    """Rows that were compared and not fitted."""
    mean_error: float
    median_error: float
    judged: int
    inside: int
    """Rows that judged the bars, and those of them that lie within."""
    width: float
    """Half of their bars, relative, on average."""
    unseen_judged: int
    unseen_inside: int
    """The same with the machine left out of the table."""
    worst: str
    """The decade of simulated times that is furthest off, and by how much."""


def standings(check: str, report: Report, table: BarTable) -> list[Standing]:
    """Of all families that a report has residuals of; bars are those of a table."""
    groups: defaultdict[tuple[str, str, str], list[ComparisonRow]] = defaultdict(list)
    fitted: Counter[tuple[str, str, str]] = Counter()
    for row in report.results:
        found = row.residual
        if found is None or not found.is_usable:
            continue
        key = found.quantity, found.family, found.machine
        if found.purpose == FIT:
            fitted[key] += 1
        else:
            groups[key].append(row)
    for (family, machine), count in report.for_fits.items():
        fitted["time", family, machine] += count
    judged: defaultdict[tuple[str, str, str], list[Residual]] = defaultdict(list)
    for each in judges(row.residual for row in report.results if row.residual is not None):
        judged[each.quantity, each.family, each.machine].append(each)
    standing = []
    for key, rows in sorted(groups.items()):
        seen, unseen = (coverage_of(judged[key], table, unseen=each) for each in (False, True))
        standing.append(_standing(check, key, rows, fitted[key], seen, unseen))
    return standing


def _standing(
    check: str, key: tuple[str, str, str], rows: Sequence[ComparisonRow], fitted: int, seen: Coverage, unseen: Coverage
) -> Standing:
    errors = [row.error for row in rows]
    decades: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.residual is not None:
            decades[row.residual.decade].append(row.error)
    decade, off = max(decades.items(), key=lambda item: (mean(item[1]), item[0]))
    words = f"{seconds(10.0**decade)} to {seconds(10.0 ** (decade + 1))}: {mean(off):.1%}, {len(off)} rows"
    return Standing(
        check, *key, fitted, len(rows), mean(errors), median(errors), seen.rows, seen.inside, seen.width, unseen.rows,
        unseen.inside, words,
    )  # fmt: skip


@dataclass(frozen=True)
class FamilyStanding:
    """One family on all its machines."""

    quantity: str
    family: str
    machines: tuple[Standing, ...]

    @property
    def checks(self) -> tuple[str, ...]:
        """The comparisons that have rows of it."""
        return tuple(dict.fromkeys(each.check for each in self.machines))

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.machines)

    @property
    def mean_error(self) -> float:
        """Every machine counting alike."""
        return mean(each.mean_error for each in self.machines)

    @property
    def judged(self) -> int:
        return sum(each.judged for each in self.machines)

    @property
    def coverage(self) -> float | None:
        """Of the rows that judge."""
        return _share(sum(each.inside for each in self.machines), self.judged)

    @property
    def unseen_coverage(self) -> float | None:
        """Each machine left out in turn, and judged by the others."""
        rows = sum(each.unseen_judged for each in self.machines)
        return _share(sum(each.unseen_inside for each in self.machines), rows)

    @property
    def width(self) -> float | None:
        """Half a bar, on average over the rows that judge."""
        return sum(each.width * each.judged for each in self.machines) / self.judged if self.judged else None

    @property
    def aims(self) -> tuple[Aim, ...]:
        return AIMS.get((self.quantity, self.family), ())

    def reached(self, aim: Aim) -> float | None:
        """The error that an aim is about; None where its machine has no rows."""
        chosen = [each for each in self.machines if aim.machine in ("", each.machine)]
        errors = [each.median_error if aim.statistic == "median" else each.mean_error for each in chosen]
        return mean(errors) if errors else None

    @property
    def is_calibrated(self) -> bool | None:
        """Whether the bars hold as often as they say; None with too few rows to tell."""
        if self.judged < ENOUGH or self.coverage is None:
            return None
        return LOWEST <= self.coverage <= HIGHEST


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def by_family(rows: Iterable[Standing]) -> list[FamilyStanding]:
    """In the order of families."""
    groups: dict[tuple[str, str], list[Standing]] = {}
    for each in rows:
        groups.setdefault((each.quantity, each.family), []).append(each)
    return [FamilyStanding(*key, tuple(found)) for key, found in groups.items()]


def standing_file() -> Path:
    return shipped("standing.csv")


def read_standings(path: Path) -> list[Standing]:
    kinds = {each.name: {"str": str, "int": int, "float": float}[str(each.type)] for each in fields(Standing)}
    with path.open(encoding="utf-8", newline="") as file:
        return [Standing(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def standing_text(rows: Iterable[Standing]) -> str:
    names = [each.name for each in fields(Standing)]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = [getattr(row, name) for name in names]
        writer.writerow([f"{value:.4f}" if isinstance(value, float) else value for value in values])
    return text.getvalue()
