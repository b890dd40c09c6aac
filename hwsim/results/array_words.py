"""What a run on an array is bound by, in words, and how well its cells were used."""

from __future__ import annotations

from dataclasses import dataclass

from hwsim.results.attribution import BUSY, summed
from hwsim.results.result import RunResult
from hwsim.results.text import percent, seconds
from hwsim.results.words import Bound

FILLED = 0.75
"""A larger array is worth while from this share of cells in use."""


@dataclass(frozen=True)
class Utilisation:
    """Shares that multiply to the share of the peak: cells used, cycles streaming, cycles not stalled."""

    mapping: float
    """Share of the cells that had something to multiply while values streamed."""
    streaming: float
    """Share of the array's own time in which values entered, and not fills, drains or gaps between folds."""
    running: float
    """Share of all time that was the array's own, and not waiting for data or for the vector unit."""

    @property
    def total(self) -> float:
        return self.mapping * self.streaming * self.running


def utilisation(result: RunResult) -> Utilisation:
    """Where the peak was lost."""
    used = result.work["array"]
    streaming, filling = used["streaming_cycles"], used["fill_drain_cycles"]
    peak = streaming * used["peak_macs_per_cycle"]
    own = streaming + filling
    return Utilisation(
        used["macs"] / peak if peak else 0.0,
        streaming / own if own else 0.0,
        own / result.cycles if result.cycles else 0.0,
    )


def array_bound(result: RunResult) -> Bound:
    """What most cycles went to."""
    together = summed(result.attribution)
    (_, name), cycles = next(iter(together.items()), ((BUSY, "array"), 0))
    share = cycles / sum(together.values()) if together else 0.0
    used = utilisation(result)
    machine = result.resolved["machine"]
    dram = next(level for level in machine["memory"] if level["kind"] == "dram")
    size = f"{result.work['array']['rows']} x {result.work['array']['columns']}"
    source = f"{dram['name']} ({dram['bandwidth'] or 'no limit'})"
    pipelined = machine["compute"][0].get("folding") == "pipelined"
    filled = "What it still waits for is in the table; beyond that, only a larger or faster array would help."
    if used.mapping < FILLED:
        filled = "Tiles that fill the array, or a smaller array, would use it better."
    sentences = {
        "array": (
            "compute",
            f"Bound by the array: values stream into it {percent(share, 1)} of the time, and "
            f"{percent(used.mapping, 1)} of its {size} cells have something to multiply. {filled}",
        ),
        "vector": (
            "compute",
            "Bound by the vector unit: what the array cannot do takes most of the time. More lanes, or fewer "
            "exponentials and divisions, would help.",
        ),
        "fill and drain": (
            "fill",
            f"Bound by filling and draining the array: the tiles are short for {size} cells. Longer streams (a larger "
            f"batch) or a smaller array{'' if pipelined else ', or pipelined folding,'} would help.",
        ),
        "scratchpad": (
            "scratchpad",
            "Bound by a scratchpad: it cannot feed the array in time. More banks or bandwidth would help.",
        ),
        "weights": (
            "bandwidth",
            f"Bound by weights: the array waits for them to come from {source}. A larger batch uses each weight more "
            "often.",
        ),
        "inputs": (
            "bandwidth",
            f"Bound by inputs: the array waits for them to come from {source}. Larger tiles, or keeping them on the "
            "chip, would move fewer bytes.",
        ),
        "outputs": (
            "bandwidth",
            f"Bound by outputs: the array waits for room, while results go to {source}. A second buffer, or keeping "
            "them on the chip, would help.",
        ),
    }
    bound_kind, words = sentences[name]
    return Bound(name, bound_kind, share, words)


def array_bounds(result: RunResult) -> str:
    """Where the time lies between everything overlapping and nothing."""
    lower, upper = seconds(result.bounds["lower_s"]), seconds(result.bounds["upper_s"])
    return f"{lower} if all parts overlapped, {upper} if none did"
