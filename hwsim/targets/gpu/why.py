"""What a run on a GPU is bound by, in words, how its launches fill it, and what to try next."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from hwsim.energy import CONTROL
from hwsim.engine import summed
from hwsim.errors import HwsimError
from hwsim.result import RunResult, bytes_moved, machine_of, workload_of
from hwsim.spec.machine import MachineSpec
from hwsim.spec.variant import with_parameters
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
    find_target,
    has_limit,
    intensity_head,
    larger,
    per_byte,
    without_limit,
)
from hwsim.targets.gpu.device import FUSED, LAUNCH, POWER, WORDS, element_bytes
from hwsim.targets.gpu.knobs import LIBRARY
from hwsim.units import data, digits, percent, seconds

MEANING = {**WORDS, "tail": "the last blocks, which leave other SMs idle"}
SHORT = (LAUNCH, "start", "step latency", "tail")
"""Parts that more SMs do not shorten: there is too little work for those there are."""
HELP = {
    FUSED: "In each step of a block its softmax follows its products, and the units of either wait for the other's.",
    "load/store": "Larger tiles in registers, wider loads, or fewer bank conflicts would keep it less busy.",
    "special": "Fewer exponentials and fewer passes over the data would help.",
    "step latency": "Smaller tiles or registers would let more blocks share an SM.",
    LAUNCH: "A larger problem, or fewer and longer kernels, would use the GPU.",
    "tail": "More blocks, of smaller tiles, would share the SMs more evenly.",
    "start": "The work is too little for the whole GPU: a larger problem, or a batch.",
}
"""What would help, where that depends on nothing else."""
KINDS = {
    "math": "compute",
    FUSED: "compute",
    "special": "compute",
    "l2": "bandwidth",
    "dram": "bandwidth",
    "write": "bandwidth",
}
"""The kind of bound that a part is; others are their own kind."""
PARTS = {
    "math": "multiply-adds on the SMs",
    FUSED: "products and softmax on the SMs",
    "special": "special functions and lanes on the SMs",
    "load/store": "loads and stores on the SMs",
    "launch": "launch overhead",
    "start": "starts and ends blocks",
    "step latency": "waits for operands of a step",
    "write": "writes results",
    "power": "slowed by the power limit",
    "tail": "waits for the last blocks",
    "issue": "issues other instructions",
}
"""Rows of the attribution table that are not simply waits for what they are called."""
MOST_LAUNCHES = 12
BLOCKS = (
    "at a time: blocks that all SMs together hold. waves: how often they are filled. room used: blocks over the places "
    "in all waves, the last one counted whole."
)
CLOSED = (
    "closed forms: every wave takes its longest part at full clock; operands come from DRAM once, or once for every "
    "rectangle of blocks where the L2 does not hold them all. The run replays tiles through the L2 in the order of "
    "blocks, and lets SMs share the L2 and DRAM."
)
MOVED = (
    "times: bytes moved over the size. More than once is what the L2 did not keep until it was asked for again, or "
    "sums in parts. What blocks read is known in all, and given to tensors in proportion to their bytes."
)
ALIKE = 0.02
"""Differences that need no reason."""


def explain(machine: MachineSpec, result: RunResult) -> Why:
    """What decided the time of a run on a GPU."""
    unit = machine.compute[0]
    bound = find_bound(result)
    program = _program_words(result)
    return Why(
        used=f"{unit.count} {unit.name}",
        whole="the GPU",
        peak=f"{result.work.use['gpu']['count']} {unit.name}",
        units=sum(each.count for each in machine.compute),
        bound=bound,
        bounds=bounds_words(result),
        advice=advise(result, bound),
        parts=PARTS,
        levels=_level_table(result),
        body=(_launch_table(result), *([Line(program, "faint")] if program else [])),
        look=partial(look, result),
        prices=_price_words(result),
        schedule=choices_read(machine, result),
    )


def _price_words(result: RunResult) -> str:
    """What a multiply-add and a byte of DRAM pay for as well; some files price control apart."""
    causes = result.energy_by_cause
    if causes is None:
        return ""
    return FEEDS if CONTROL in causes else ALL_IN


ALL_IN = (
    "arithmetic: a multiply-add with its registers, shared memory and control, which measured power does not tell "
    "apart; dram: a byte on its whole way through the L2"
)
FEEDS = "arithmetic: a multiply-add with the shared memory and the caches that feed it, which are not counted apart"


def look(result: RunResult) -> Details:
    """How blocks fill the GPU, and what they moved."""
    return Details(
        (
            Section("How the blocks fill the GPU", (_block_table(result), Line(BLOCKS, "faint"))),
            Section("Where the bytes went", (_level_table(result),)),
            Section("What went to and from main memory", (_tensor_table(result), Line(MOVED, "faint"))),
            Section("The run beside closed forms", (_closed_table(result), Line(CLOSED, "faint"))),
        )
    )


def longest_launch(result: RunResult) -> dict[str, Any]:
    """The launch that takes the most time."""
    found: dict[str, Any] = max(result.work.use["gpu"]["launches"], key=lambda launch: launch["seconds"])
    return found


def find_bound(result: RunResult) -> Bound:
    """The largest row of the attribution table, or a link that takes longer than that while it runs beside it."""
    together = summed(result.attribution)
    whole = sum(together.values())
    (_, part), cycles = next(iter(together.items()), (("", LAUNCH), 0))
    share = cycles / whole if whole else 0.0
    much = f"{percent(share, 1)} of the time"
    if part == LAUNCH:
        words = f"Bound by launch overhead: {much} goes by before kernels run. {HELP[LAUNCH]}"
        return Bound(part, LAUNCH, share, words)
    beside = _longer_link(result, part)
    if beside is not None:
        share = result.bounds.parts[beside] / result.time_s
        much = f"it is busy for {percent(share, 1)} of the time, most of it while the SMs compute ({much})"
        return Bound(beside, KINDS[beside], share, f"Bound by {MEANING[beside]}: {much}.{_help(result, beside)}")
    words = f"Bound by {MEANING.get(part, part)}: {much}{_most_in(result)}.{_help(result, part)}"
    return Bound(part, KINDS.get(part, part), share, words + _room_words(result))


def _longer_link(result: RunResult, part: str) -> str | None:
    """The L2 or DRAM, where it takes longer than the work that its transfers run beside: in all, and in the kernels
    that take most of the time."""
    parts = result.bounds.parts
    taken: Counter[str] = Counter()
    for launch in result.work.use["gpu"]["launches"]:
        taken[launch["bound"]] += launch["seconds"]
    longest = max(taken, key=lambda name: taken[name])
    longer = longest in ("l2", "dram") and parts.get(longest, 0.0) > parts.get(part, 0.0)
    return longest if longer and KINDS.get(part) == "compute" else None


def _help(result: RunResult, part: str) -> str:
    """What would help, where this machine has it: a format that it computes the workload in, tiles that were chosen."""
    if part in HELP:
        return f" {HELP[part]}"
    workload = result.resolved.workload
    if part == "math":
        faster = faster_formats(result)
        return f" A format with a higher rate ({' or '.join(faster)}) would be faster." if faster else ""
    if part == "l2":
        if "tile" not in str(longest_launch(result).get("name")):
            return " Fewer bytes, or fewer passes over them, would help."
        chosen = workload.get("choices") or workload.get("threads", {}).get("kernel", LIBRARY) != LIBRARY
        return f" {LARGER_TILES if chosen else LIBRARY_TILES}"
    narrower = narrower_formats(result) if part in ("dram", "write", POWER) else []
    named = f"a narrower format ({' or '.join(narrower)})" if narrower else ""
    if part == "dram":
        several = len(result.work.use["gpu"]["launches"]) > 1
        ways = [way for way in ("fusing operations" if several else "", named) if way] or ["larger tiles"]
        words = " or ".join(ways)
        return f" {words[0].upper()}{words[1:]} would move fewer bytes."
    what = {"write": "would write fewer bytes", POWER: "does the same with less energy"}
    return f" {named[0].upper()}{named[1:]} {what[part]}." if named and part in what else ""


LARGER_TILES = "Larger tiles would read each value less often."
LIBRARY_TILES = (
    "Of the library's tiles these are estimated to be the fastest: larger ones read each value less often, but fewer "
    "blocks share an SM."
)


def faster_formats(result: RunResult) -> list[str]:
    """Formats of a higher rate in which this machine computes the workload; the nearest rate first."""
    return [name for name, faster, _ in _formats(result) if faster]


def narrower_formats(result: RunResult) -> list[str]:
    """Formats of fewer bits in which this machine computes the workload."""
    return [name for name, _, fewer in _formats(result) if fewer]


def _formats(result: RunResult) -> list[tuple[str, bool, bool]]:
    """Other floating formats that the machine computes the workload in: whether they are faster, and narrower."""
    unit, own = result.resolved.machine["compute"][0], result.resolved.workload["precision"]
    rates = {**unit["lanes"], **unit["tensor"]}
    if not isinstance(own, str) or own not in rates:
        return []
    by_rate = sorted((name for name in rates if not name.startswith("int") and name != own), key=lambda n: rates[n])
    found = [(name, rates[name] > rates[own], element_bytes(name) < element_bytes(own)) for name in by_rate]
    return [each for each in found if (each[1] or each[2]) and _computes(result, each[0])]


def _computes(result: RunResult, precision: str) -> bool:
    """Whether this machine takes the workload in another format."""
    try:
        work = with_parameters(workload_of(result), {"precision": precision})
        find_target(machine_of(result)).prepare(work, math=False)
    except HwsimError:
        return False
    return True


def advise(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests, which this machine takes and which is not there already."""
    machine = result.resolved.machine
    unit = machine["compute"][0]
    name, count = unit["name"], unit["count"]
    fewer = _fused(result)
    if fewer is not None:
        return fewer
    if bound.part in SHORT:
        return _more_work(result, unit)
    levels = {"l2": "l2", "dram": "dram", "write": "dram"}
    if bound.part in levels:
        source = next(each for each in machine["memory"] if levels[bound.part] in (each["name"], each["kind"]))
        if has_limit(source):
            return without_limit(source["name"])
    launch = longest_launch(result)
    if bound.part == POWER or (launch["power_limited"] and _share_of(result, POWER) >= WORTH):
        return Advice((), (f"{name}.power_limit={2 * _watts(unit['power_limit'])} W",), "with twice the power")
    blocks, grown = launch["blocks"], larger(result.resolved.workload.get("sizes", {}))
    if blocks < count * launch["resident"] and grown is not None:
        return Advice((grown,), (), f"a larger problem: {count} {name} have room for more than {blocks:,} blocks")
    precision = result.resolved.workload["precision"]
    halves = [each for each in ("bf16", "fp16") if each in unit["tensor"] and _computes(result, each)]
    if bound.kind == "compute" and precision in ("fp32", "fp64") and halves:
        return Advice((("precision", halves[0]),), (), "the same on the tensor cores")
    return Advice((), (f"{name}.count={2 * count}",), f"the same with twice as many {name}")


WORTH = 0.04
"""A share of the time that is worth a change."""


def _share_of(result: RunResult, part: str) -> float:
    """Of the cycles, those that went to a part."""
    together = summed(result.attribution)
    taken = sum(cycles for (_, name), cycles in together.items() if name == part)
    return taken / sum(together.values()) if together else 0.0


def _fused(result: RunResult) -> Advice | None:
    """Attention in three kernels moves its scores through memory; one kernel does not, on tensor cores."""
    workload, unit = result.resolved.workload, result.resolved.machine["compute"][0]
    halves = [each for each in ("fp16", "bf16") if each in unit["tensor"]]
    naive = workload.get("schedule", {}).get("variant") == "naive" and len(result.work.use["gpu"]["launches"]) > 1
    if workload.get("op") != "attention" or not naive or not unit["library"]["attention"] or not halves:
        return None
    half = () if workload["precision"] in halves else (("precision", halves[0]),)
    return Advice((("variant", "fused"), *half), (), "one kernel instead of three: scores never leave the SMs")


def _most_in(result: RunResult) -> str:
    """Which launch takes the most, where there are several."""
    launch = longest_launch(result)
    if len(result.work.use["gpu"]["launches"]) == 1 or not result.time_s:
        return ""
    return f", and {launch['name']} is {percent(launch['seconds'], result.time_s)} of it all"


def _room_words(result: RunResult) -> str:
    """What the longest launch leaves empty, and what power does to it."""
    launch = longest_launch(result)
    count = result.work.use["gpu"]["count"]
    words = ""
    if launch["blocks"] < count * launch["resident"]:
        words += f" Its {launch['blocks']:,} blocks leave room on the {count} SMs: a larger problem would use it."
    if launch["power_limited"]:
        words += f" It runs at {launch['clock_hz'] / 1e9:.2f} GHz and {launch['watts']:.0f} W"
        words += f", where an action costs {launch['core_energy']:.0%}." if launch.get("core_energy", 1) < 1 else "."
    return words


def _more_work(result: RunResult, unit: dict[str, Any]) -> Advice:
    """Fewer launches where operations can be fused, else more work in each of them."""
    schedule = result.resolved.workload.get("schedule", {})
    several = len(result.work.use["gpu"]["launches"]) > 1
    if several and schedule.get("fused") is False:
        return Advice((("fused", "true"),), (), "fewer kernels to launch")
    grown = larger(result.resolved.workload.get("sizes", {}))
    if grown is not None:
        return Advice((grown,), (), "a larger problem: a launch takes as long for much work as for little")
    return Advice((), (f"{unit['name']}.launch.stream=0 us",), "what is left without launch overhead")


def _watts(text: object) -> int:
    return round(float(str(text).partition(" ")[0]))


def _launch_table(result: RunResult) -> Table:
    """Kernels in the order in which they are started."""
    launches = result.work.use["gpu"]["launches"]
    rows: list[tuple[str, ...]] = [
        (
            launch["name"],
            seconds(launch["seconds"]),
            f"{launch['blocks']:,}",
            digits(launch["waves"]),
            f"{launch['warps']} of {launch['most_warps']}" if "warps" in launch else "",
            launch.get("limit", ""),
            launch["bound"],
        )
        for launch in launches[:MOST_LAUNCHES]
    ]
    rest = launches[MOST_LAUNCHES:]
    if rest:
        rows.append((f"{len(rest)} more", seconds(sum(launch["seconds"] for launch in rest))))
    columns = ("kernel", "time", "blocks", "waves", "warps per SM", "limited by", "longest part")
    return Table(columns, tuple(rows), (0, 5, 6))


def _block_table(result: RunResult) -> Table:
    """How the blocks of each launch find room on the SMs."""
    count = result.work.use["gpu"]["count"]
    rows = []
    for launch in result.work.use["gpu"]["launches"][:MOST_LAUNCHES]:
        places = count * launch["resident"]
        waves = -(-launch["blocks"] // places) if places else 0
        used = percent(launch["blocks"], waves * places)
        warps = f"{launch['warps']} of {launch['most_warps']}" if "warps" in launch else ""
        cells = (f"{launch['blocks']:,}", f"{places:,}", digits(launch["waves"]), used, warps, launch.get("limit", ""))
        rows.append((launch["name"], *cells))
    columns = ("kernel", "blocks", "at a time", "waves", "room used", "warps per SM", "limited by")
    return Table(columns, tuple(rows), (0, 6))


def _closed_table(result: RunResult) -> Table:
    """Time and traffic of each launch as it ran and by formula, and why they differ."""
    rows = []
    for launch in result.work.use["gpu"]["launches"][:MOST_LAUNCHES]:
        closed = launch["closed"]
        times = seconds(launch["seconds"]), seconds(closed["seconds"])
        moved = data(launch["dram_bytes"]), data(closed["dram_bytes"])
        rows.append((launch["name"], *times, *moved, _difference(launch)))
    columns = ("kernel", "time", "closed form", "dram", "closed form", "why they differ")
    return Table(columns, tuple(rows), (0, 5))


def _difference(launch: dict[str, Any]) -> str:
    closed = launch["closed"]
    found = []
    if launch["dram_bytes"] < (1 - ALIKE) * closed["dram_bytes"]:
        found.append("the L2 still has tiles of the blocks before")
    elif launch["dram_bytes"] > (1 + ALIKE) * closed["dram_bytes"]:
        found.append("tiles are pushed out of the L2 before they are used again")
    if launch["power_limited"]:
        found.append("power lowers the clock")
    elif not found and abs(launch["seconds"] - closed["seconds"]) > ALIKE * closed["seconds"]:
        found.append("waves differ in what they find in the L2")
    if launch["walked"] < 1:
        found.append(f"{percent(launch['walked'], 1)} of the replay was walked")
    return "; ".join(found)


def _level_table(result: RunResult) -> Table:
    """What went through the L2 and what came from DRAM, and for how much of the time each was at it."""
    rows = []
    for name, counts in result.memory.items():
        reads, misses = counts.reads, getattr(counts, "read_misses", None)
        hits = percent(reads - misses, reads) if misses is not None and reads else ""
        busy = percent(result.bounds.parts.get(name, 0.0), result.time_s) if result.time_s else ""
        rows.append((name, data(bytes_moved(counts)), busy, hits, per_byte(result, name)))
    return Table(("level", "memory traffic", "busy", "hit rate", intensity_head(result)), tuple(rows))


def _tensor_table(result: RunResult) -> Table:
    """Bytes of each tensor that went to and from DRAM, and how often its size that is; the sum is DRAM's traffic."""
    rows = []
    moved = result.work.use["gpu"].get("tensors", {})
    for name, each in moved.items():
        size, both = result.tensors[name].bytes, each["bytes_read"] + each["bytes_written"]
        often = f"{both / size:.2f}" if size else ""
        rows.append((name, data(size), data(each["bytes_read"]), data(each["bytes_written"]), often))
    if len(rows) > 1:
        read, written = (sum(each[key] for each in moved.values()) for key in ("bytes_read", "bytes_written"))
        rows.append(("all", "", data(read), data(written), ""))
    return Table(("tensor", "size", "read", "written", "times"), tuple(rows))


def _program_words(result: RunResult) -> str:
    """What only a hand-written kernel has; nothing for a library's."""
    launch = result.work.use["gpu"]["launches"][0]
    if "sectors_per_request" not in launch:
        return ""
    walked = percent(launch["walked"], 1)
    how = "" if launch["walked"] == 1 else f"; {walked} of its steps were walked, the rest are alike"
    return (
        f"{digits(launch['sectors_per_request'])} sectors for each load of a warp, "
        f"{percent(launch['bank_conflicts'], 1)} of the passes through shared memory are bank conflicts, "
        f"{percent(launch['l1_hit_rate'], 1)} of the sectors are found in the L1 and "
        f"{percent(launch['l2_hit_rate'], 1)} of the others in the L2{how}"
    )
