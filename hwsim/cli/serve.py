"""`hwsim serve`: a model behind a serving engine; what users wait for, what limits, and where the knee is.

`hwsim collective`: how long devices of a system take to exchange data, by which algorithm, over which links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hwsim.cli.arguments import JsonFile, PlotFile, check_output, spinner, split_words
from hwsim.cli.console import err, make_table, screen, styled, wrapped
from hwsim.errors import InputError
from hwsim.units import counted, data, digits, joules, percent, rate, seconds

if TYPE_CHECKING:
    from rich.console import Console

    from hwsim.engine import Span
    from hwsim.record import ErrorBar
    from hwsim.systems.communicate import Communication
    from hwsim.systems.serve import Percentiles, ServeResult
    from hwsim.systems.serve_model import Service
    from hwsim.systems.spec import SystemSpec

SERVE_EXAMPLE = (
    "Example: [cyan]hwsim serve llama3_8b h100 prompt=2048 generate=256 load=8..128:x2 --plot[/cyan]   "
    "[cyan]hwsim serve llama3_70b 8xh100 weights=fp8 rate=2[/cyan]   "
    "[cyan]hwsim serve llama3_8b h100 trace=requests.csv engine=sglang[/cyan]"
)
WORDS = {"ttft": "to first token", "tpot": "per output token"}
DEFAULT_SPREAD = 0.1
"""Lengths up to a tenth above and below what is said: with equal ones, users who began together would stay in step."""


def serve_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL SYSTEM [NAME=VALUE]...",
            help="A model, a system (8xh100, dgx_h100, or a machine alone), and load= (users), rate= (requests per "
            "second) or trace= (a file), prompt=, generate=, tp=, pp=, dp=, ep=, weights=, kv=, engine=, spread=, "
            "prefix=, requests=, blocks=, budget=, seed=.",
        ),
    ],
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="Every step of one load: JSON for Perfetto, or a plot."),
    ] = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Serve a model to users: time to first token, time per token, throughput, tails, energy, and what limits."""
    from hwsim.systems.bars import served_bars
    from hwsim.systems.serve_model import make_service

    output = check_output(json_file, plot, words, timeline=timeline)
    names, given = split_words(words, "write a parameter as name=value, such as load=32")
    if len(names) != 2:
        raise InputError("give a model and a system: hwsim serve llama3_8b h100 prompt=2048 generate=256 load=32")
    kinds = [name for name in ("load", "rate", "trace") if name in given]
    if len(kinds) > 1:
        raise InputError(f"{' and '.join(kinds)}: requests come in one way; give load= (users), rate= or trace=")
    kind = kinds[0] if kinds else "load"
    spread = _spread(given.get("spread", str(DEFAULT_SPREAD)))
    loads = [given[kind]] if kind == "trace" else _loads(kind, given.get(kind, "16"))
    if len(loads) > 1 and timeline is not None:
        raise InputError("--timeline shows one load; give load=32 or the like")
    with spinner("simulating") as told:
        service = make_service(names[0], names[1], given, told)
        service.price.blocks_of(service.engine.block)
        results = []
        for value in loads:
            stream = service.stream(kind, value, spread)
            heard = partial(_tell, told, len(stream.requests), f"{kind}={value}")
            results.append(service.run(stream, timeline=timeline is not None, told=heard))
    if timeline is not None:
        from hwsim.results.plot.style import is_plot_file
        from hwsim.results.plot.timeline import write_timeline

        spans = results[0].spans
        drawn = _by_kind(spans) if is_plot_file(timeline) else spans
        write_timeline(timeline, drawn, f"{names[0]} on {names[1]}")
        if len(spans) >= 50_000:
            err().print(f"{timeline} has the first {len(spans):,} steps", style="dim")
    if plot is not None:
        _plot(plot, kind, loads, results, f"{names[0]} on {names[1]}, {service.engine.name}")
    formulas = [service.closed_form(int(value)) if kind == "load" else None for value in loads]

    def show() -> None:
        console = screen()
        _print_head(console, service, names[0])
        _print_requests(console, kind, results[0])
        if len(results) == 1:
            _print_one(console, results[0], formulas[0], bars[0])
        else:
            _print_many(console, kind, loads, results, formulas, bars)

    bars = [served_bars(service, result) for result in results]
    output.show(lambda: _data(results, formulas, bars), show)


def _tell(told: Callable[..., None], total: int, load: str, done: int) -> None:
    told(f"{done} of {total} requests, {load}", done / total)


def _spread(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"spread={text}: a share of the length is needed, such as 0.2") from None


def _loads(kind: str, text: str) -> list[str]:
    from hwsim.sweep.grid import make_axis

    return [str(value) for value in make_axis(kind, text).values]


def _print_head(console: Console, service: Service, model: str) -> None:
    price, system = service.price, service.system
    layout = price.layout.words
    used = price.devices * service.replicas
    console.print(
        styled((model, "bold"), " on ", (f"{used} x {system.machine}", "bold"), f" ({layout}), ",
               (service.engine.name, "bold"), f", {price.numbers.words()}")
    )  # fmt: skip
    blocks = price.blocks_of(service.engine.block)
    room = blocks * service.engine.block
    console.print(
        f"room for {room:,} tokens of keys and values in each group ({data(price.token_bytes)} a token and device)",
        style="dim",
    )


_COMING = {
    "load": "each user asks again as soon as the answer is there",
    "rate": "they come at random, so many per second",
    "trace": "they come as the trace says",
}


def _print_requests(console: Console, kind: str, result: ServeResult) -> None:
    """What users ask for, and when."""
    count = max(1, len(result.served))
    lengths = f"prompts of {digits(result.prompt_tokens / count)} and answers of {digits(result.output_tokens / count)}"
    console.print(f"{lengths} tokens on average; {_COMING[kind]}", style="dim")
    console.print()


Bars = Mapping[str, "ErrorBar"]
"""Of the times to the first token and for each further one."""


def _print_one(console: Console, result: ServeResult, formula: float | None, bars: Bars) -> None:
    console.print(
        styled((result.words, "bold"), f": {counted(len(result.served), 'request')} in {seconds(result.seconds)}")
    )
    table = make_table("", "mean", "p50", "p90", "p99")
    for name, found in (
        ("to first token", result.ttft),
        ("per output token", result.tpot),
        ("whole request", result.latency),
    ):
        if found is not None:
            table.add_row(name, *(seconds(value) for value in (found.mean, found.p50, found.p90, found.p99)))
    console.print(table)
    if formula is not None and result.tpot is not None:
        text = f"{seconds(formula)} per output token: a step of this batch, and a prompt of each other user meanwhile"
        wrapped(console, "formula  ", text, "")
    console.print(
        f"output {digits(result.output_per_s)} tokens/s, {digits(result.requests_per_s)} requests/s; "
        f"{result.batch_mean:.1f} requests in the batch, {result.steps:,} steps"
    )
    console.print(f"keys and values {percent(result.kv_mean, 1)} of the blocks, at most {percent(result.kv_most, 1)}")
    spent = ", ".join(f"{name} {percent(share, 1)}" for name, share in result.shares().items() if share >= 0.0005)
    console.print(f"time: {spent}")
    if result.joules_per_token is not None:
        console.print(
            f"energy {joules(result.joules_per_token)} per output token, {joules(result.joules or 0.0)} in all"
        )
    console.print()
    wrapped(console, "", f"Limit: {result.limit()}.", "bold")
    _print_bars(console, bars)


def _print_bars(console: Console, bars: Bars) -> None:
    """How far off the means are likely to be."""
    said = [f"{WORDS[name]} {bar.words}" for name, bar in bars.items()]
    known = [bar for bar in bars.values() if bar.is_known]
    whole = f"; 80 % of {known[0].source} lie within" if known else ""
    wrapped(console, "error bars  ", f"of the means: {', '.join(said)}{whole}", "dim")


def _print_many(
    console: Console, kind: str, loads: list[str], results: list[ServeResult], formulas: list[float | None],
    bars: list[dict[str, ErrorBar]],
) -> None:  # fmt: skip
    heads = ["users" if kind == "load" else "rate", "first token", "p99", "per token", "p99", "formula", "tokens/s"]
    table = make_table(*heads, "kv", "J/token", "idle")
    for value, result, formula in zip(loads, results, formulas, strict=True):
        per = result.joules_per_token
        table.add_row(
            value, seconds(result.ttft.p50), seconds(result.ttft.p99), _of(result.tpot, "p50"), _of(result.tpot, "p99"),
            seconds(formula) if formula is not None else "–", digits(result.output_per_s), percent(result.kv_mean, 1),
            joules(per) if per is not None else "–", percent(result.shares()["idle"], 1),
        )  # fmt: skip
    console.print(table)
    best = knee(results)
    wrapped(
        console, "", f"Knee at {'load' if kind == 'load' else 'rate'}={loads[best]}: beyond it, tokens per second grow "
        f"less than the time per token does. Limit at the end: {results[-1].limit()}.", "bold",
    )  # fmt: skip
    _print_bars(console, bars[best])


def _of(found: Percentiles | None, name: str) -> str:
    return seconds(getattr(found, name)) if found is not None else "–"


def knee(results: list[ServeResult]) -> int:
    """The last load at which throughput grew by at least as much as the time per token, both as ratios."""
    best = 0
    for number in range(1, len(results)):
        before, after = results[number - 1], results[number]
        if before.tpot is None or after.tpot is None:
            break
        if after.output_per_s / before.output_per_s < after.tpot.p50 / before.tpot.p50:
            break
        best = number
    return best


def _data(
    results: list[ServeResult], formulas: list[float | None], bars: list[dict[str, ErrorBar]]
) -> list[dict[str, Any]]:
    return [
        {**result.to_dict(), "formula_tpot_s": formula, "bars": {name: bar.to_dict() for name, bar in each.items()}}
        for result, formula, each in zip(results, formulas, bars, strict=True)
    ]


def _by_kind(spans: Sequence[Span]) -> list[Span]:
    """Steps named by what is in them: a picture has a colour for each name, and no two steps have equal numbers."""
    return [replace(span, name=_step_kind(span.name)) for span in spans]


def _step_kind(name: str) -> str:
    if "of prompts" not in name:
        return "tokens of answers"
    return "prompts" if name.startswith("0 ") else "prompts and tokens of answers"


def _plot(path: Path, kind: str, loads: list[str], results: list[ServeResult], title: str) -> None:
    from hwsim.results.plot.timeline import plot_knee

    points = [
        (value if kind != "trace" else "trace", result.output_per_s, result.tpot.p50, result.tpot.p99)
        for value, result in zip(loads, results, strict=True)
        if result.tpot is not None
    ]
    if not points:
        raise InputError("--plot draws time per output token, and every request has one token only")
    plot_knee(points, path, title, loads[knee(results)] if len(loads) > 1 else "")


COLLECTIVE_EXAMPLE = (
    "Example: [cyan]hwsim collective 8xh100 all_reduce bytes=64MB[/cyan]   "
    "[cyan]hwsim collective 4xl40s all_reduce bytes=1KiB..1GiB:x4 --plot[/cyan]"
)
_PARAMETERS = ("bytes", "library", "algorithm", "format", "devices")


def collective_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM [COLLECTIVE] [NAME=VALUE]...",
            help="A system (dgx_h100, 8xh100), a collective, and bytes=, library=, algorithm=, format=, devices=.",
        ),
    ],
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="FILE", help="A lane for each link: JSON for Perfetto, or a plot."),
    ] = None,
    plot: PlotFile = None,
    json_file: JsonFile = None,
) -> None:
    """Show how long devices take to exchange data: algorithm, time, formula, links; all-reduce if none is named."""
    from hwsim.systems.communicate import check_library, communicate
    from hwsim.systems.spec import Operation, is_system, load_system

    output = check_output(json_file, plot, words, timeline=timeline)
    names, given = split_words(words, "write a parameter as name=value, such as bytes=64MB")
    if not 1 <= len(names) <= 2:
        raise InputError("give a system, then a collective: hwsim collective 8xh100 all_reduce bytes=64MB")
    if len(names) == 2 and is_system(names[1]) and not is_system(names[0]):
        names.reverse()
    _check(given, names[1:], get_args(Operation))
    op = names[1] if len(names) == 2 else "all_reduce"
    system = load_system(names[0])
    library = check_library(system, given.get("library"))
    sizes = _sizes(given.get("bytes", "64MB"))
    devices = _devices(given.get("devices"), system)
    form, algorithm = given.get("format", "bf16"), given.get("algorithm", "")
    if len(sizes) > 1 and timeline is not None:
        raise InputError("--timeline shows one size; give bytes=64MB or the like")

    def ask(nbytes: int, algorithm: str = algorithm) -> Communication:
        return communicate(
            system, op, nbytes, devices=devices, library=library, algorithm=algorithm, form=form,
            timeline=timeline is not None,
        )  # fmt: skip

    found = [ask(nbytes) for nbytes in sizes]
    if timeline is not None:
        from hwsim.results.plot.timeline import write_timeline

        write_timeline(timeline, found[0].spans, f"{op} on {names[0]}")
    if plot is not None:
        from hwsim.results.plot.timeline import plot_collective

        known = _algorithms(system, op, library, devices, form) if not algorithm else [algorithm]
        lines = {each: _points([ask(nbytes, each) for nbytes in sizes]) for each in known}
        title = f"{op} on {counted(devices, 'device')} of {names[0]}, {library}"
        plot_collective({"fastest": _points(found), **lines} if len(lines) > 1 else lines, plot, title)

    def show() -> None:
        if len(found) == 1:
            _print_exchange(system, library, found[0], [ask(sizes[0], each) for each in _algorithms(
                system, op, library, devices, form)])  # fmt: skip
        else:
            _print_exchanges(names[0], library, found)

    output.show(lambda: [_exchange_data(each) for each in found], show)


def _check(given: dict[str, str], names: list[str], operations: tuple[str, ...]) -> None:
    from hwsim.spec.fields import did_you_mean

    for name in given:
        if name not in _PARAMETERS:
            raise InputError(f"'{name}' is not one of {', '.join(_PARAMETERS)}{did_you_mean(name, _PARAMETERS)}")
    for name in names:
        if name not in operations:
            raise InputError(f"'{name}' is not one of {', '.join(operations)}{did_you_mean(name, operations)}")


def _sizes(text: str) -> list[int]:
    from hwsim.sweep.grid import make_axis
    from hwsim.units import parse_bytes

    try:
        return [parse_bytes(value) for value in make_axis("bytes", text).values]
    except ValueError as error:
        raise InputError(f"bytes={text}: {error}") from None


def _devices(text: str | None, system: SystemSpec) -> int:
    if text is None:
        return system.count
    if not text.isdecimal() or not 2 <= int(text) <= system.count:
        raise InputError(f"devices={text}: from 2 to {system.count}, which {system.name} has")
    return int(text)


def _algorithms(system: SystemSpec, op: str, library: str, devices: int, form: str) -> list[str]:
    from hwsim.systems.communicate import LinkTopology, candidates

    topology = LinkTopology.of(system, range(devices))
    return list(dict.fromkeys(plan.kernel.name for plan in candidates(topology, op, library, form)))


def _print_exchange(system: SystemSpec, library: str, found: Communication, others: list[Communication]) -> None:
    from hwsim.systems.bars import collective_bar

    console = screen()
    what = f"{found.op} of {data(found.nbytes)} on {found.ranks} x {system.machine}, {library}"
    console.print(styled((what, "bold")))
    if not found.elapsed_fs:
        console.print("one device has nobody to talk to: nothing moves")
        return
    port = system.inside.bandwidth.amount
    console.print(styled(("took ", "dim"), (seconds(found.seconds), "bold"), f" by {found.kernel}"))
    speed = f"{rate(found.bus_bytes_per_s, 'B')}: {found.bus_words} over the time"
    if port is not None:
        speed += f"; {percent(found.bus_bytes_per_s, float(port))} of a port"
    wrapped(console, "bus bandwidth ", speed, "")
    console.print(collective_bar(system, found), style="dim")
    how = "the start, and for each round its step and the bytes of its busiest link over the bandwidth"
    wrapped(console, "formula ", f"{seconds(found.formula_fs / 1e15)}: {how}", "")
    table = make_table("kernel", "time", "against the fastest", "moved")
    for each in sorted(others, key=lambda one: one.elapsed_fs):
        total = sum(amount for link, amount in each.moved.items() if _leaves(link))
        table.add_row(each.kernel, seconds(each.seconds), f"{each.elapsed_fs / found.elapsed_fs:.2f} x", data(total))
    console.print(table)
    busiest = max(found.moved, key=lambda link: found.moved[link])
    console.print(f"busiest link: {busiest}, {data(found.moved[busiest])}", style="dim")


def _points(found: list[Communication]) -> list[tuple[float, float]]:
    return [(float(each.nbytes), each.seconds) for each in found]


def _leaves(link: str) -> bool:
    """Links that bytes leave a device by: each byte is counted once on them."""
    return (link.endswith(" out") and "uplink" not in link) or "→" in link


def _print_exchanges(name: str, library: str, found: list[Communication]) -> None:
    console = screen()
    console.print(styled((f"{found[0].op} on {found[0].ranks} devices of {name}, {library}", "bold")))
    table = make_table("bytes", "time", "formula", "bus bandwidth", "kernel", left=(0, 4))
    for each in found:
        speed = rate(each.bus_bytes_per_s, "B")
        table.add_row(data(each.nbytes), seconds(each.seconds), seconds(each.formula_fs / 1e15), speed, each.kernel)
    console.print(table)


def _exchange_data(found: Communication) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **{key: value for key, value in asdict(found).items() if key != "spans"},
        "seconds": found.seconds,
        "bus_bytes_per_s": found.bus_bytes_per_s,
    }
