"""What a run on a grid of elements is bound by, in words, and how well its elements were used."""

from __future__ import annotations

from functools import partial

from hwsim.result import RunResult
from hwsim.spec.machine import MachineSpec
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
    factors,
    has_limit,
    longest_part,
    main_memory,
    pass_table,
    scratchpad_levels,
    stream_bounds,
    tensor_traffic,
    tile_words,
    without_limit,
)
from hwsim.units import counted, percent

PARTS = {
    "array": "values stream through the array",
    "fill and drain": "weights enter the elements",
    "outputs": "waits for finished sums to leave",
    "scratchpad": "waits for the buffer to deliver",
}
"""Rows of the attribution table that are not simply waits for what they are called."""
_MOVED = "Zeros around an image count as its elements; they are made on the chip and never move."
_CLOSED = (
    "The closed form takes every piece of a loop as whole, fetches the padding of images, and loads weights and inputs "
    "for every pass; in the run pieces at an edge are small, padding is made on the chip, and what the pass before "
    "left stays. Operands that are fused to the outputs, and pooling, are counted in the run alone."
)
_LEAST = (
    "No mapping can be faster than all elements multiplying in each cycle, or every value moving once. Few rounds of "
    "long loops are played; the others take as long as the last one that was."
)


def explain(machine: MachineSpec, result: RunResult) -> Why:
    """What decided the time of a run on a grid."""
    unit = result.resolved.machine["compute"][0]
    grid = result.work.use["array"]
    bound = find_bound(result)
    return Why(
        used=f"{unit['rows']} x {unit['columns']} elements, {unit['dataflow'].replace('_', ' ')}",
        whole="the array",
        peak=counted(grid["count"], "array"),
        units=sum(each.count for each in machine.compute),
        bound=bound,
        bounds=bounds_words(result),
        advice=advise(result, bound),
        parts=PARTS,
        levels=scratchpad_levels(result, grid["levels"]),
        lines=tuple(_use_lines(result)),
        look=partial(look, result),
        schedule=choices_read(machine, result),
    )


def look(result: RunResult) -> Details:
    """How elements were used, by which mapping, and what was moved for them."""
    mapping, running = mapped(result), computing(result)
    shares = factors(
        (
            ("elements in use while values stream (mapping)", mapping),
            ("computing, not waiting for weights, inputs or outputs", running),
            ("all together", mapping * running),
        )
    )
    moved = tensor_traffic(result, result.work.use["array"]["levels"])
    return Details(
        (
            Section("How the elements were used", (shares,)),
            Section("Which tiles", (pass_table(result, "layer", "passes"),)),
            Section("What went to and from main memory", (moved, Line(_MOVED, "faint"))),
            Section("Counted beside the closed form", (_closed_table(result), Line(_CLOSED, "faint"))),
            Section("How good the mapping is", (_mapper_table(result), Line(_LEAST, "faint"))),
        )
    )


def mapped(result: RunResult) -> float:
    """Share of the elements that had something to multiply while the grid computed."""
    grid = result.work.use["array"]
    peak = grid["streaming_cycles"] * grid["peak_macs_per_cycle"]
    return float(grid["macs"] / peak) if peak else 0.0


def computing(result: RunResult) -> float:
    """Share of the time in which the grid computed, and did not wait for weights or inputs."""
    return float(result.work.use["array"]["streaming_cycles"] / result.cycles) if result.cycles else 0.0


def find_bound(result: RunResult) -> Bound:
    """What most cycles went to."""
    name, share = longest_part(result, "array")
    sentences = stream_bounds(result, share, mapped(result)) | {
        "outputs": (
            "bandwidth",
            f"Bound by outputs: sums that are finished leave for {main_memory(result)} before others can take their "
            "place. A larger buffer, or fewer output channels in it (m), would let both go on.",
        ),
        "scratchpad": (
            "scratchpad",
            "Bound by the buffer: inputs and sums move more slowly than the elements multiply.",
        ),
        "fill and drain": (
            "fill",
            "Bound by weights on their way into the elements: nothing is computed meanwhile. A larger batch, or more "
            "weights in a cycle, would help.",
        ),
    }
    kind, words = sentences[name]
    return Bound(name, kind, share, words)


def advise(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    unit = result.resolved.machine["compute"][0]
    if bound.kind == "bandwidth" and has_limit(dram_of(result)):
        return without_limit(dram_of(result)["name"])
    if bound.kind == "scratchpad":
        return without_limit(next(lv["name"] for lv in result.resolved.machine["memory"] if lv["shared_by"] == "all"))
    if bound.kind == "fill":
        words = 2 * unit["weight_words"]
        return Advice((), (f"{unit['name']}.weight_words={words}",), "twice the weights in a cycle")
    wider = f"{unit['name']}.columns={2 * unit['columns']}"
    return Advice((), (wider,), "twice the elements: more output rows at a time")


def _use_lines(result: RunResult) -> list[Line]:
    """Where the peak was lost, and the mapping."""
    lines = []
    mapping, running = mapped(result), computing(result)
    if mapping * running:
        shares = f"mapping {percent(mapping, 1)} × computing {percent(running, 1)}"
        lines.append(Line(f"utilisation {percent(mapping * running, 1)} = {shares}"))
    for each in result.work.use["array"]["passes"]:
        words = f"{each['name']}: {each['tiles']:,} passes of {tile_words(each)}, order {each['order']}"
        lines.append(Line(words, "faint"))
    return lines


def _closed_table(result: RunResult) -> Table:
    """Values that the buffer and main memory delivered and received, played and by the formula of the loops."""
    rows = []
    for each in result.work.use["array"]["passes"]:
        for level, values in each["closed"].items():
            gap = values["counted"] / values["closed"] - 1  # each level takes the results at least
            rows.append((each["name"], level, f"{values['counted']:,}", f"{values['closed']:,}", f"{gap:+.1%}"))
    return Table(("layer", "level", "values in the run", "closed form", "difference"), tuple(rows), (0, 1))


def _mapper_table(result: RunResult) -> Table:
    """Cycles of each layer beside what was expected of its mapping, and beside what no mapping can beat."""
    rows = [
        (
            each["name"], f"{each['cycles']:,.0f}", f"{each['estimate_cycles']:,.0f}", f"{each['least_cycles']:,.0f}",
            f"{each['cycles'] / each['least_cycles']:.2f}×", f"{each['played']:,} of {each['tiles']:,}",
        )
        for each in result.work.use["array"]["passes"]
    ]  # fmt: skip
    columns = ("layer", "cycles", "estimated", "least possible", "of that", "passes played")
    return Table(columns, tuple(rows))
