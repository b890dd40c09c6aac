"""What decided the time of a model's run, from its result alone: bounds by phase, operations, memory, what to try."""

from __future__ import annotations

from functools import partial
from typing import Any

from hwsim.memory.counters import CacheCounters
from hwsim.models.price import HOST
from hwsim.result import RunResult, bytes_moved, machine_of
from hwsim.target import MACHINES, Advice, Bound, Details, Line, Section, Table, Why
from hwsim.text import data, digits, joules, percent, seconds

MODEL = "model"
MOST_ROWS = 14
BANDWIDTH = "bandwidth of "


def explain(result: RunResult) -> Why:
    """The explanation of a model, as screens and pages draw it."""
    about = result.work.use[MODEL]
    machine = machine_of(result)
    units = f"{machine.compute[0].count} {machine.compute[0].name}"
    bound = find_bound(result)
    lower, upper = seconds(result.bounds.lower_s), seconds(result.bounds.upper_s)
    return Why(
        used=f"{units}, {about['kernels']} kernels",
        whole="all kernels",
        peak=units,
        units=sum(each.count for each in machine.compute),
        bound=bound,
        bounds=f"{lower} if all parts of each kernel overlapped, {upper} if none did",
        advice=advise(result, bound),
        parts=about["parts"],
        levels=level_table(result),
        body=(operation_table(result),),
        look=partial(look, result),
        schedule={},
    )


def look(result: RunResult) -> Details:
    about = result.work.use[MODEL]
    sections = [Section("Memory", (memory_table(result),))]
    for phase in about["phases"]:
        title = f"{phase['name']}, by operation"
        sections.append(Section(title, (phase_table(phase), Line(bound_words(phase), "strong"))))
    if about["notes"]:
        sections.append(Section("What was not simulated as asked", tuple(Line(note) for note in about["notes"])))
    return Details(tuple(sections))


def find_bound(result: RunResult) -> Bound:
    """What most of the time of all phases is bound by."""
    about = result.work.use[MODEL]
    sums: dict[str, float] = {}
    for phase in about["phases"]:
        for name, amount in phase["bounds"].items():
            sums[name] = sums.get(name, 0.0) + amount
    part, amount = max(sums.items(), key=lambda item: item[1])
    whole = sum(sums.values())
    share = amount / whole if whole else 0.0
    words = "; ".join(bound_words(phase) for phase in about["phases"])
    if part.startswith(BANDWIDTH):
        return Bound(part.removeprefix(BANDWIDTH), "bandwidth", share, words)
    return Bound(part, "compute" if part == "arithmetic" else part, share, words)


def bound_words(phase: dict[str, Any]) -> str:
    """``decode: 82 % of the time is bound by bandwidth of hbm``."""
    whole = sum(phase["bounds"].values())
    parts = [f"{percent(amount, whole)} {name}" for name, amount in list(phase["bounds"].items())[:2]]
    return f"{phase['name']} is bound by {', '.join(parts)}"


def advise(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    about = result.work.use[MODEL]
    names = [phase["name"] for phase in about["phases"]]
    if not about["fit"]["fits"]:
        if about["fit"]["narrower"]:
            return Advice((("weights", about["fit"]["narrower"]),), (), "narrower weights would fit")
        if about["fit"]["largest_batch"]:
            return Advice((("batch", str(about["fit"]["largest_batch"])),), (), "the largest batch that fits")
        devices = 1 << (about["fit"]["needed"] // about["fit"]["has"]).bit_length()
        return Advice(((MACHINES, str(devices)),), (), f"the weights take {devices} such devices, joined in a system")
    if "decode" in names and bound.kind == "bandwidth":
        if about["weights"] in ("bf16", "fp16", "fp32"):
            return Advice((("weights", "w4a16"),), (), "a step reads all weights once: narrower ones are read sooner")
        return Advice((("batch", str(4 * about["batch"])),), (), "more sequences share each weight that is read")
    if bound.kind == HOST and about["allocator"] == "emptied":
        return Advice((("allocator", "cached"),), (), "memory of the step before is used again")
    if bound.kind == HOST:
        return Advice((("kernels", "compiled"),), (), "fewer kernels, which the host starts together")
    if bound.kind in ("starting kernels", "overhead inside kernels"):
        return Advice((("batch", str(4 * about["batch"])),), (), "more work for each kernel that is started")
    if bound.kind == "compute" and about["weights"] in ("fp32",):
        return Advice((("precision", "bf16"),), (), "the same on faster units")
    return Advice((("batch", str(2 * about["batch"])),), (), "whether a larger batch uses the machine better")


def level_table(result: RunResult) -> Table:
    rows = []
    for name, counts in result.memory.items():
        moved = bytes_moved(counts)
        hits = percent(counts.hits, counts.accesses) if isinstance(counts, CacheCounters) and counts.accesses else ""
        rows.append((name, data(moved), hits, digits(result.work.flops / moved) if moved else "–"))
    return Table(("level", "bytes to and from", "found there", "op per byte"), tuple(rows))


def operation_table(result: RunResult) -> Table:
    """The longest operations of all phases."""
    about = result.work.use[MODEL]
    rows = [
        (row["part"] if phase["name"] == "train" else phase["name"], row)
        for phase in about["phases"]
        for row in phase["operations"]
    ]
    rows.sort(key=lambda item: -item[1]["seconds"])
    shown = [
        (name, f"{row['block']}.{row['name']}", row["op"], f"{row['repeat']}", seconds(row["seconds"]),
         percent(row["seconds"], result.time_s), row["bound"])
        for name, row in rows[:MOST_ROWS]
    ]  # fmt: skip
    rest = rows[MOST_ROWS:]
    if rest:
        amount = sum(row["seconds"] for _, row in rest)
        shown.append(("", f"{len(rest)} more", "", "", seconds(amount), percent(amount, result.time_s), ""))
    return Table(("phase", "operation", "op", "times", "time", "share", "bound by"), tuple(shown), (0, 1, 2, 6))


def phase_table(phase: dict[str, Any]) -> Table:
    rows = [
        (f"{row['block']}.{row['name']}", row["op"], row["part"], f"{row['repeat']}", seconds(row["seconds"]),
         percent(row["seconds"], phase["seconds"]), joules(row["joules"]), row["bound"])
        for row in sorted(phase["operations"], key=lambda row: -row["seconds"])
    ]  # fmt: skip
    columns = ("operation", "op", "part", "times", "time", "share", "energy", "bound by")
    return Table(columns, tuple(rows), (0, 1, 2, 7))


def memory_table(result: RunResult) -> Table:
    about = result.work.use[MODEL]
    total = about["memory"]["total"]
    rows = [
        (name.replace("_", " "), data(size), percent(size, total))
        for name, size in about["memory"].items()
        if size or name == "total"
    ]
    return Table(("part", "bytes", "share"), tuple(rows))
