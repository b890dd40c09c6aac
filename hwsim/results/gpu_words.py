"""What a run on a GPU is bound by, in words, and what to try next."""

from __future__ import annotations

from typing import Any

from hwsim.results.advice import Advice
from hwsim.results.attribution import summed
from hwsim.results.result import RunResult
from hwsim.results.text import percent, seconds
from hwsim.results.words import Bound

LAUNCH = "launch"
HELP = {
    "math": "A format with a higher rate would be faster.",
    "load/store": "Larger tiles in registers, wider loads, or fewer bank conflicts would keep it less busy.",
    "special": "Fewer exponentials, or a format with a higher rate, would help.",
    "step latency": "Smaller tiles or registers would let more blocks share an SM.",
    "l2": "Larger tiles would read each value less often.",
    "dram": "Fusing operations, larger tiles or a narrower format would move fewer bytes.",
    "write": "A narrower format would write fewer bytes.",
    "start": "The work is too little for the whole GPU: a larger problem, or a batch.",
    "power": "A narrower format does the same with less energy.",
}
KINDS = {"math": "compute", "special": "compute", "l2": "bandwidth", "dram": "bandwidth", "write": "bandwidth"}


def longest_launch(result: RunResult) -> dict[str, Any]:
    """The launch that takes the most time."""
    found: dict[str, Any] = max(result.work["gpu"]["launches"], key=lambda launch: launch["seconds"])
    return found


def gpu_bound(result: RunResult) -> Bound:
    """Starting kernels, where that takes most of the time; else what the longest launch is bound by."""
    together = summed(result.attribution)
    whole = sum(together.values())
    starting = sum(cycles for (_, name), cycles in together.items() if name == LAUNCH)
    launches = result.work["gpu"]["launches"]
    if whole and starting > whole / 2:
        words = (
            f"Bound by starting kernels: {percent(starting, whole)} of the time goes by before they run. "
            "A larger problem, or fewer and longer kernels, would use the GPU."
        )
        return Bound(LAUNCH, LAUNCH, starting / whole, words)
    launch = longest_launch(result)
    share = launch["seconds"] / result.time_s if result.time_s else 0.0
    which = "" if len(launches) == 1 else f" ({launch['name']}, {percent(share, 1)} of the time)"
    words = f"Bound by {launch['bound_in_words']}{which}. {HELP.get(launch['bound'], '')}".strip()
    if launch["waves"] < 1:
        whole = result.work["gpu"]["count"]
        words += f" Its {launch['blocks']:,} blocks leave room on the {whole} SMs: a larger problem would use it."
    if launch["power_limited"]:
        words += f" It runs at {launch['clock_hz'] / 1e9:.2f} GHz and {launch['watts']:.0f} W."
    return Bound(launch["bound"], KINDS.get(launch["bound"], launch["bound"]), share, words)


def gpu_bounds(result: RunResult) -> str:
    lower, upper = seconds(result.bounds["lower_s"]), seconds(result.bounds["upper_s"])
    return f"{lower} if all parts overlapped, {upper} if none did"


def advise_gpu(result: RunResult, bound: Bound) -> Advice:
    """One change that the bound suggests."""
    machine = result.resolved["machine"]
    unit = machine["compute"][0]
    precision = result.resolved["workload"]["precision"]
    faster = [name for name in unit["tensor"] if name in ("bf16", "fp16") and name != precision]
    launch = longest_launch(result)
    if launch["waves"] < 1 and bound.kind != LAUNCH and not launch["power_limited"]:
        return Advice((), (f"{unit['name']}.count={max(1, unit['count'] // 2)}",), _idle(launch, unit))
    if bound.kind == "compute" and precision in ("fp32", "fp64") and faster:
        return Advice((("precision", faster[-1]),), (), "the same on the tensor cores")
    if bound.kind == "bandwidth":
        level = bound.part if bound.part in ("l2", "dram") else "dram"
        name = next(each["name"] for each in machine["memory"] if each["name"] == level or each["kind"] == level)
        return Advice((), (f"{name}.bandwidth=inf",), f"how fast it would be if {name} kept up")
    if bound.part == "power":
        return Advice((), (f"{unit['name']}.power_limit={2 * _watts(unit['power_limit'])} W",), "with twice the power")
    return Advice((), (f"{unit['name']}.count={2 * unit['count']}",), f"the same with twice as many {unit['name']}")


def _idle(launch: dict[str, Any], unit: dict[str, Any]) -> str:
    whole = f"{unit['count']} {unit['name']}"
    return f"its {launch['blocks']:,} blocks do not fill {whole}: see whether half as many do as well"


def _watts(text: object) -> int:
    return round(float(str(text).partition(" ")[0]))
