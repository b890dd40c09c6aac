"""Fits the constants of collective libraries to measured times, and says how far off they are on the other half.

    python benchmarks/collectives_fit.py measured.csv [MACHINE ...]

Rows are taken apart by a hash of their shape (hwsim/validation/residual.py): half are fitted on, half only reported.
What is printed goes into the `libraries` of a system file. Needs SciPy, which hwsim itself does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from hwsim.validation.collectives import FORMAT_BYTES, LIBRARIES, OPERATIONS, whole
from hwsim.validation.residual import is_held_out
from hwsim.validation.table import read_table

Numbers = NDArray[np.float64]
BUSES = ("l40s", "rtx_pro_6000", "b60")
SWITCHES = ("h100", "h200", "b200", "b300", "gb200", "gb300")
PORT_GB_S = {"a100_80": 300, "h100": 450, "h200": 450, "l40s": 32, "rtx_pro_6000": 64, "b60": 32}
DEFAULT_PORT_GB_S = 900


@dataclass(frozen=True)
class Rows:
    """Columns of the table, as arrays."""

    op: NDArray[np.str_]
    form: NDArray[np.str_]
    n: Numbers
    size: Numbers
    us: Numbers
    held: NDArray[np.bool_]

    def only(self, mask: NDArray[np.bool_]) -> Rows:
        return Rows(*(getattr(self, name)[mask] for name in ("op", "form", "n", "size", "us", "held")))


def read(path: Path, machine: str) -> dict[str, Rows]:
    """By library."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in read_table(path, ("machine", "library", "op", "dtype", "devices", "elements", "latency_us")):
        if row["machine"] != machine:
            continue
        op, form, devices, elements = OPERATIONS[row["op"]], row["dtype"], int(row["devices"]), int(row["elements"])
        size = elements * FORMAT_BYTES[form] * whole(LIBRARIES[row["library"]], op, devices)
        held = is_held_out(row["op"], form, devices, elements)
        one = (op, form, devices, size, float(row["latency_us"]), held)
        found.setdefault(LIBRARIES[row["library"]], []).append(one)
    kinds = (str, str, float, float, float, bool)
    return {library: Rows(*map(np.array, zip(*rows, strict=True), kinds)) for library, rows in found.items()}


def ring(rows: Rows, start: float, step: float, rate: float, many: Numbers) -> Numbers:
    rounds = np.where(rows.op == "all_reduce", 2, 1) * (rows.n - 1)
    return start + rounds * (step + rows.size / rows.n * many / rate)


def direct(rows: Rows, start: float, step: float, rate: float, many: Numbers) -> Numbers:
    return start + (rows.n - 1) * (step + rows.size / rows.n * many / rate)


def one_shot(rows: Rows, start: float, step: float, rate: float, many: Numbers) -> Numbers:
    return start + (rows.n - 1) * (step + rows.size * many / rate)


def two_shot(rows: Rows, start: float, step: float, rate: float, many: Numbers) -> Numbers:
    return start + 2 * (rows.n - 1) * (step + rows.size / rows.n * many / rate)


def switch(rows: Rows, start: float, step: float, rate: float, many: Numbers) -> Numbers:
    return start + step + 2 * rows.size / rate


KERNELS: dict[str, Callable[[Rows, float, float, float, Numbers], Numbers]] = {
    "ring": ring, "direct": direct, "one_shot": one_shot, "two_shot": two_shot, "switch": switch,
}  # fmt: skip
LEAST, MOST = [0.5, 0.001, 0.02], [150.0, 4.0, 1.0]
"""Of start and step in microseconds, and of the share of the bandwidth."""


class Model:
    """Kernels with constants; the fastest that can do a row is taken."""

    def __init__(self, names: list[str], values: Numbers, port: float, bus: Numbers, frozen: Model | None = None,
                 host: float = 0.0) -> None:  # fmt: skip
        self.names, self.values, self.port, self.bus, self.frozen = names, values.reshape(-1, 3), port, bus, frozen
        self.host = host

    def times(self, rows: Rows) -> Numbers:
        many = np.where(rows.n == 2, 1.0, np.where(rows.n == 4, self.bus[0], self.bus[1]))
        best = self.frozen.times(rows) if self.frozen is not None else np.full(rows.us.shape, np.inf)
        for name, (start, step, share) in zip(self.names, self.values, strict=True):
            kind = name.split()[0]
            fits = rows.op != "all_to_all" if kind == "ring" else rows.op == "all_to_all"
            if kind in ("one_shot", "two_shot", "switch"):
                fits = rows.op == "all_reduce"
            if kind == "switch":
                fits &= (rows.form != "int8") & (rows.n >= 4)
            times = KERNELS[kind](rows, start, step, share * self.port * 1e3, many)
            best = np.where(fits, np.minimum(best, times), best)
        return np.maximum(best, self.host)


def fit(make: Callable[[Numbers], Model], guess: Numbers, rows: Rows, free: int) -> Model:
    """Least mean relative error; starts, steps and shares stay where they can mean something."""
    low = np.log(np.array([*LEAST * (free // 3), *[1.0] * (guess.size - free)]))
    high = np.log(np.array([*MOST * (free // 3), *[150.0] * (guess.size - free)]))

    def values_at(logs: Numbers) -> Numbers:
        return np.exp(np.clip(logs, low, high))

    def loss(logs: Numbers) -> float:
        return float(np.mean(np.abs(make(values_at(logs)).times(rows) / rows.us - 1)))

    generator, best = np.random.default_rng(0), None
    for trial in range(2):
        point = np.log(guess) + generator.normal(0, 0.15 * trial, guess.size)
        for _ in range(3):
            options = {"maxfev": 2500, "adaptive": True, "xatol": 1e-4, "fatol": 1e-5}
            found = minimize(loss, point, method="Nelder-Mead", options=options)
            point = found.x
        if best is None or found.fun < best.fun:
            best = found
    return make(values_at(best.x))


def error(model: Model, rows: Rows) -> Numbers:
    return np.abs(model.times(rows) / rows.us - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("machines", nargs="*")
    given = parser.parse_args()
    machines = given.machines or sorted({row["machine"] for row in read_table(given.data, ("machine",))})
    for machine in machines:
        fit_machine(given.data, machine)


def fit_machine(data: Path, machine: str) -> None:
    libraries, port = read(data, machine), PORT_GB_S.get(machine, DEFAULT_PORT_GB_S)
    base = "oneccl" if "oneccl" in libraries else "nccl"
    names = ["ring low_latency", "ring simple", "direct low_latency", "direct simple"]
    guess = [5, 0.8, 0.15, 8, 1.5, 0.6, 6, 0.1, 0.1, 10, 0.5, 0.6]
    if machine in SWITCHES:
        names, guess = [*names, "switch"], [*guess, 20, 1, 0.95]
    free, bus = len(guess), machine in BUSES
    if bus:
        guess += [2.0, 4.0]

    def make(values: Numbers) -> Model:
        return Model(names, values[:free], port, values[free:] if bus else np.ones(2))

    everything = []
    own = libraries.pop(base)
    model = fit(make, np.array(guess, float), own.only(~own.held), free)
    everything.append(say(machine, base, model, own, port, None))
    for library, rows in sorted(libraries.items()):
        eager = library.endswith("eager")
        kernels = ["two_shot", "ring"] if eager else ["one_shot", "two_shot"]
        begin = [3.0, 0.2, 0.4, 3.0, 0.5, 0.5, *([25.0] if eager else [])]
        frozen = None if eager else model

        def build(values: Numbers, kernels: list[str] = kernels, frozen: Model | None = frozen) -> Model:
            own, host = values[: 3 * len(kernels)], values[3 * len(kernels) :]
            return Model(kernels, own, port, model.bus, frozen, float(host.sum()))

        found = fit(build, np.array(begin), rows.only(~rows.held), 3 * len(kernels))
        everything.append(say(machine, library, found, rows, port, None if eager else base))
    print(
        f"# {machine}: mean error of {sum(map(len, everything))} held-out rows: "
        f"{np.concatenate(everything).mean():.3f}\n"
    )


def used(model: Model, rows: Rows) -> NDArray[np.bool_]:
    """Kernels that are the fastest for at least one row; the others mean nothing."""
    kept = np.ones(len(model.names), bool)
    for number in range(len(model.names)):
        rest = np.array([each != number for each in range(len(model.names))])
        without = Model(
            [n for n, r in zip(model.names, rest, strict=True) if r],
            model.values[rest],
            model.port,
            model.bus,
            model.frozen,
            model.host,
        )
        kept[number] = bool(np.any(without.times(rows) > model.times(rows)))
    return kept


OPS = {"ring": "all_reduce, all_gather, reduce_scatter", "direct": "all_to_all"}


def say(machine: str, library: str, model: Model, rows: Rows, port: float, beside: str | None) -> Numbers:
    """Print a library as a system file has it."""
    held, seen = error(model, rows.only(rows.held)), error(model, rows.only(~rows.held))
    print(f"# {machine} {library}: {len(held)} held-out rows, mean {held.mean():.3f}, median {np.median(held):.3f}")
    if not np.all(model.bus == 1) and not beside and not library.endswith("eager"):
        print(f"# bus: 2: {2 * port:.4g} GB/s, 4: {4 * port / model.bus[0]:.4g}, 8: {8 * port / model.bus[1]:.4g}")
    print(f"  {library}:")
    if beside:
        print(f"    beside: {beside}")
    if model.host:
        print(f"    host: {model.host:.3g} us")
    kept_ones = used(model, rows.only(~rows.held))
    if kept_ones.any():
        print("    kernels:")
    for name, (start, step, share), kept in zip(model.names, model.values, kept_ones, strict=True):
        if not kept:
            continue
        algorithm, _, protocol = name.partition(" ")
        more = f"protocol: {protocol}, " if protocol else ""
        last = ", least_devices: 4, refuses: [int8]" if algorithm == "switch" else ""
        ops = OPS.get(algorithm, "all_reduce")
        times = f"start: {start:.3g} us, step: {1e3 * step:.0f} ns, share: {share:.3g}"
        print(f"      - {{algorithm: {algorithm}, {more}ops: [{ops}], {times}{last}}}")
    print(
        f'    source: "fitted: {len(seen)} measured times of {library.replace("_", " ")}, mean error {seen.mean():.1%}"'
    )
    return held


if __name__ == "__main__":
    main()
