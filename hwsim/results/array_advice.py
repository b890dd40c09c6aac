"""A next command to try after a run on an array."""

from __future__ import annotations

from hwsim.results.advice import Advice
from hwsim.results.result import RunResult
from hwsim.results.words import Bound


def advise_array(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    unit = result.resolved["machine"]["compute"][0]
    dram = next(level["name"] for level in result.resolved["machine"]["memory"] if level["kind"] == "dram")
    name = unit["name"]
    if bound.kind == "bandwidth":
        return Advice((), (f"{dram}.bandwidth=inf",), f"how fast it would be if {dram} kept up")
    if unit["kind"] == "grid":
        return Advice((), (f"{name}.columns={2 * unit['columns']}",), "twice the elements: more output rows at a time")
    if bound.kind == "fill" and unit["folding"] == "serial":
        return Advice((), (f"{name}.folding=pipelined",), "the next tile moves in while this one streams")
    if bound.kind == "fill" or result.utilisation < 0.25:
        rows, columns = max(1, unit["rows"] // 2), max(1, unit["columns"] // 2)
        return Advice((), (f"{name}.rows={rows}", f"{name}.columns={columns}"), "a smaller array, better filled")
    if bound.part == "vector":
        return Advice((), (f"{name}.vector.lanes={2 * unit['vector']['lanes']}",), "twice the lanes")
    other = "os" if unit["dataflow"] != "os" else "ws"
    return Advice((), (f"{name}.dataflow={other}",), "the same with another operand staying in the cells")
