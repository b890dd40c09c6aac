"""What a run in memory is bound by: its banks, the rows that they open, or the pins between them and the host."""

from __future__ import annotations

from functools import partial

from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec, ScratchpadSpec
from hwsim.target import (
    Advice,
    Bound,
    Details,
    Line,
    Section,
    Table,
    Why,
    bounds_words,
    choices_read,
    dram_of,
    intensity_head,
    longest_part,
    per_byte,
    tensor_traffic,
)
from hwsim.units import data, percent

PARTS = {
    "mac": "columns stream past the units",
    "elementwise": "columns stream past the units, element by element",
    "row activation": "opens rows",
    "first column": "waits for the first column of a command",
    "refresh": "refreshes its rows",
    "inputs": "waits for what the banks are told",
    "outputs": "waits for results to leave",
}
"""Rows of the attribution table."""
MOST_PASSES = 24


def explain(machine: MachineSpec, result: RunResult) -> Why:
    """What decided the time of a run at the banks."""
    unit = machine.compute[0]
    bound = find_bound(machine, result)
    units = f"{unit.count} {unit.name}s"
    return Why(
        used=units,
        whole="the banks",
        peak=units,
        units=sum(each.count for each in machine.compute),
        bound=bound,
        bounds=bounds_words(result),
        advice=advise(machine, result, bound),
        parts=PARTS,
        levels=_level_table(result),
        lines=tuple(_pass_lines(result)),
        look=partial(look, result),
        schedule=choices_read(machine, result),
    )


def look(result: RunResult) -> Details:
    """Which loop ran in which way, and what each tensor moved."""
    return Details(
        (
            Section("What the banks were told to do", (_pass_table(result),)),
            Section("What each tensor moved", (tensor_traffic(result),)),
        )
    )


def find_bound(machine: MachineSpec, result: RunResult) -> Bound:
    """What most cycles went to."""
    part, share = longest_part(result, "mac")
    pins = next((str(level.bandwidth) for level in machine.memory if level.kind == "dram"), "")
    much = f"{percent(share, 1)} of the time"
    kinds = {
        "mac": (
            "compute",
            f"Bound by the units at the banks: a column streams past each of them {much}. Only more banks, or a "
            "narrower format, would make it faster.",
        ),
        "elementwise": (
            "compute",
            f"Bound by work element by element: columns stream past the units for it {much}. Fusing operations would "
            "read them once.",
        ),
        "row activation": (
            "rows",
            f"Bound by opening rows: {much} goes by before the first column of a row can be read. Longer rows, or "
            "tensors that lie side by side in a bank, would open fewer.",
        ),
        "first column": (
            "latency",
            f"Bound by the latency of a column: {much} goes by between commands and their first data. Longer vectors, "
            "or more outputs for each bank, would give a command more to do.",
        ),
        "inputs": (
            "bandwidth",
            f"Bound by the pins ({pins}): banks wait {much} for what they are told. More work for each byte told, such "
            "as a matrix with more rows for each vector, would help.",
        ),
        "outputs": (
            "bandwidth",
            f"Bound by the pins ({pins}): banks wait {much} for results to leave. Results that stay in memory would "
            "help.",
        ),
    }
    kind, words = kinds.get(part, ("other", f"Bound by {part}."))
    return Bound(part, kind, share, words)


def advise(machine: MachineSpec, result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    unit = machine.compute[0]
    dram = dram_of(result)
    if bound.kind == "bandwidth":
        return Advice((), (f"{dram['name']}.bandwidth=inf",), "how fast it would be if the pins kept up")
    row = _kibibytes(dram["row"]) << 10
    if bound.kind == "rows" and max(facts.bytes for facts in result.tensors.values()) >= row * unit.count:
        longer = f"{dram['name']}.row={2 * _kibibytes(dram['row'])} KiB"
        return Advice((), (longer,), "rows twice as long: half as many to open")
    latches = [level for level in machine.memory if isinstance(level, ScratchpadSpec) and "weight" in level.holds]
    rooms = (f"{level.name}.size={2 * int(level.size)} B" for level in latches)
    wider = (f"{unit.name}.count={2 * unit.count}", f"{dram['name']}.banks={2 * dram['banks']}", *rooms)
    return Advice((), wider, "the same with twice as many banks, each with its unit")


def _kibibytes(text: object) -> int:
    amount, _, unit = str(text).partition(" ")
    return max(1, round(float(amount) * {"B": 1 / 1024, "KiB": 1, "MiB": 1024}[unit]))


def _level_table(result: RunResult) -> Table:
    """What the units read and wrote, level by level."""
    rows = tuple(
        (name, data(counts.bytes_read), data(counts.bytes_written), per_byte(result, name))
        for name, counts in result.memory.items()
    )
    return Table(("level", "read", "written", intensity_head(result)), rows)


def _pass_lines(result: RunResult) -> list[Line]:
    """What crossed the pins, beside what stayed inside."""
    passes = result.work.use["pim"]["passes"]
    inside, outside = (sum(each[name] for each in passes) for name in ("bank_bytes", "channel_bytes"))
    return [Line(f"{data(inside)} read and written at the banks, {data(outside)} over the pins", "faint")]


def _pass_table(result: RunResult) -> Table:
    passes = result.work.use["pim"]["passes"]
    rows = [
        (
            each["name"],
            each["work"],
            str(each["stays"] or ""),
            f"{each['commands']:,}",
            data(each["bank_bytes"]),
            data(each["channel_bytes"]),
        )
        for each in passes[:MOST_PASSES]
    ]
    if len(passes) > MOST_PASSES:
        rows.append((f"and {len(passes) - MOST_PASSES} more", "", "", "", "", ""))
    return Table(("loop", "work", "stays", "commands", "at the banks", "over the pins"), tuple(rows), (0, 1, 2))
