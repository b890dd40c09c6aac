"""Screens of a model on several devices, for `hwsim model` and `hwsim tune` where they are given a system."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hwsim.cli.arguments import Output, spinner, split_words
from hwsim.cli.console import make_table, screen, styled, wrapped
from hwsim.errors import CapacityError, InputError
from hwsim.units import counted, data, digits, joules, percent, rate, seconds

if TYPE_CHECKING:
    from rich.console import Console

    from hwsim.systems.host import HostedRun, HostedStep
    from hwsim.systems.parallel import ParallelStep
    from hwsim.systems.shards import Candidate, SystemRun

PHASES = {"prefill": "prompt", "decode": "token", "forward": "pass", "train": "training step"}


def show_on_system(
    model: str, system: str, parameters: dict[str, str], output: Output, timeline: Path | None, plot: Path | None
) -> None:
    """`hwsim model MODEL SYSTEM`."""
    from hwsim.systems.shards import run_alone, run_on_system

    if plot is not None:
        raise InputError(
            "--plot draws a model on one machine; on a system, --timeline FILE.png draws devices and links"
        )
    if {"host_layers", "stream"} & set(parameters):
        _show_hosted(model, system, parameters, output, timeline)
        return
    with spinner("simulating") as told:
        run = run_on_system(model, system, parameters, timeline=timeline is not None, told=told)
        one = run_alone(run) if run.layout.devices > 1 else None
    if timeline is not None:
        title = f"{run.model.name} on {run.layout.devices} x {run.system.machine}, {run.layout.words}"
        _write_timeline(timeline, [steps[0][0] for steps in run.named().values()], title)
    output.show(lambda: _run_data(run, one), lambda: _print_run(run, one, (model, system, parameters)))


def _run_data(run: SystemRun, one: SystemRun | None) -> dict[str, object]:
    """The run, and how much faster it is than one of its devices."""
    if one is None:
        return run.to_dict()
    speed_up = one.seconds / run.seconds
    return {**run.to_dict(), "speed_up": speed_up, "efficiency": speed_up / run.layout.devices}


def _print_run(run: SystemRun, one: SystemRun | None, asked: tuple[str, str, dict[str, str]]) -> None:
    from hwsim.record import NEVER_MARK
    from hwsim.systems.shards import DIVIDED

    console = screen()
    used = run.layout.devices
    console.print(
        styled((run.model.name, "bold"), " on ", (f"{used} x {run.system.machine}", "bold"),
               f" ({run.layout.words}), {run.formats}, collectives of {run.library}")
    )  # fmt: skip
    if run.speaks:
        use = run.model.use
        console.print(f"batch {use.batch}, prompt {use.prompt:,}, generate {use.generate:,}", style="dim")
    if used < run.system.count:
        console.print(
            f"{run.system.count - used} of {run.system.count} devices stand idle; dp= would use them", style="dim"
        )
    _print_memory(console, run.steps[0][0])
    if run.system.host is not None:
        from hwsim.systems.host import feed

        loading = feed(run.system, run.steps[0][0].memory.weights, devices=run.layout.devices)
        console.print(f"loading the weights from the host takes {seconds(loading.seconds)}", style="dim")
    console.print()
    compared = one.named() if one is not None else {}
    heads = ("speed-up (efficiency)",) if compared else ()
    table = make_table("phase", "time", "throughput", *heads, "compute", "exposed talk", "bubble", "energy")
    for name, steps in run.named().items():
        step, _ = steps[len(steps) // 2]
        speed = step.phase.batch * (step.phase.tokens if run.speaks else 1) / step.seconds
        times = compared[name][len(steps) // 2][0].seconds / step.seconds if compared else 0.0
        gain = (f"{digits(times)}× ({percent(times, used)})",) if compared else ()
        table.add_row(
            PHASES[name], f"{seconds(step.seconds)} {NEVER_MARK}", rate(speed, "token" if run.speaks else "image"),
            *gain, percent(step.share("compute"), 1), percent(step.share("exposed"), 1),
            percent(step.share("waiting"), 1),
            f"{joules(step.joules)} {NEVER_MARK}" if step.joules is not None else "–",
        )  # fmt: skip
    console.print(table)
    if len(run.steps) > 1:
        spent = f", {joules(run.joules)} {NEVER_MARK}" if run.joules is not None else ""
        console.print(styled(("in all  ", "bold"), f"{seconds(run.seconds)} {NEVER_MARK}{spent}"))
    wrapped(console, f"{NEVER_MARK}  ", DIVIDED, "dim")
    if one is not None:
        first = one.steps[0][0]
        room = (
            ""
            if first.fits
            else f", which has no room for it ({data(first.memory.total)} of {data(first.has_bytes or 0)})"
        )
        words = f"over one {run.system.machine}{room}; efficiency is speed-up over {counted(used, 'device')}"
        wrapped(console, "speed-up  ", words, "dim")
    for note in dict.fromkeys(note for step, _ in run.steps for note in step.notes):
        wrapped(console, "note  ", note, "dim")
    console.print()
    wrapped(console, "", _why(run), "bold")
    _print_check(console, run)
    command, why = _next(run, *asked)
    console.print(styled("\nnext  ", (command, "cyan")), soft_wrap=True)
    wrapped(console, "      ", why, "dim")


NOTABLE = 0.15
"""A share of the time from which talk or a bubble is worth a word."""


def _next(run: SystemRun, model: str, system: str, given: dict[str, str]) -> tuple[str, str]:
    """A command that changes what most of the time goes into, and what it is about."""
    step, _ = max(run.steps, key=lambda each: each[0].seconds * each[1])
    if not run.fits or run.layout.devices < run.system.count:
        kept = {name: value for name, value in given.items() if name not in ("tp", "pp", "dp", "ep", "sp", "micro")}
        words = ("tune", system, model, *(f"{name}={value}" for name, value in kept.items()))
        some = "" if run.fits else ", if one fits"
        return shlex.join(("hwsim", *words)), f"all ways to divide it over the devices{some}, best first"
    changed = {**given, "batch": str(4 * run.model.use.batch)}
    if _bubbles(step) and _cuts_finer(run, step):
        changed = {**given, "micro": str(2 * run.layout.micro)}
    words = ("model", model, system, *(f"{name}={value}" for name, value in changed.items()))
    why = "a larger batch shares the weights that each device reads, and the start of each exchange"
    if "micro" in changed and changed["micro"] != given.get("micro"):
        why = "more microbatches make the bubble smaller"
    elif step.phase.name != "decode" and step.share("exposed") > NOTABLE:
        why = "whether a larger batch hides more of what the devices tell each other"
    return shlex.join(("hwsim", *words)), why


def _print_memory(console: Console, step: ParallelStep) -> None:
    use = step.memory
    parts = [f"{name} {data(amount)}" for name, amount in
             (("weights", use.weights), ("keys and values", use.kv_cache), ("activations", use.activations),
              ("gradients", use.gradients), ("optimizer", use.optimizer)) if amount]  # fmt: skip
    has = "" if step.has_bytes is None else f" of {data(step.has_bytes)}"
    mark = ("fits", "green") if step.fits else ("does not fit", "bold red")
    console.print(styled(f"a device needs {data(use.total)}{has}: ", mark, f" ({', '.join(parts)})"))


def _why(run: SystemRun) -> str:
    """One sentence about the longest phase."""
    step, _ = max(run.steps, key=lambda each: each[0].seconds * each[1])
    name = PHASES[step.phase.name]
    if _bubbles(step):
        more = f"more microbatches (micro={2 * run.layout.micro})"
        room = _cuts_finer(run, step)
        return (
            f"{percent(step.share('waiting'), 1)} of the time of a {name} is the bubble of the pipeline; "
            f"{more if room else 'a larger batch, cut into more microbatches,'} would make it smaller."
        )
    bounds = step.bounds
    whole = sum(bounds.values())
    bound = ", ".join(f"{percent(size, whole)} {each}" for each, size in list(bounds.items())[:2])
    computing = f"{percent(step.share('compute'), 1)} of the time of a {name} the devices compute, bound by {bound}"
    if step.share("exposed") > NOTABLE:
        return f"{computing}; {percent(step.share('exposed'), 1)} they talk and nothing hides it."
    return f"{computing}."


def _bubbles(step: ParallelStep) -> bool:
    """Whether stages wait for each other more than for anything else that several devices bring."""
    return step.share("waiting") > max(NOTABLE, step.share("exposed"))


def _cuts_finer(run: SystemRun, step: ParallelStep) -> bool:
    """Whether the batch of a copy can be cut into twice as many microbatches."""
    return step.phase.batch // (run.layout.dp * run.layout.ep) >= 2 * run.layout.micro


def _print_check(console: Console, run: SystemRun) -> None:
    check = run.check
    far = f"logits {check.logits:.1e}" + (f", gradients {check.gradients:.1e}" if check.gradients is not None else "")
    verdict = "as the whole one" if check.passed else "NOT as the whole one"
    text = f"a small transformer ({check.words}) computed shard by shard answers {verdict}: off by {far}"
    console.print(text, style="dim" if check.passed else "bold red", soft_wrap=True)


def _show_hosted(model: str, system: str, parameters: dict[str, str], output: Output, timeline: Path | None) -> None:
    """A model whose layers a host keeps or computes in part."""
    from hwsim.systems.host import run_hosted

    with spinner("simulating") as told:
        run = run_hosted(model, system, parameters, timeline=timeline is not None, told=told)
    if timeline is not None:
        steps = list({step.phase.name: step for step, _ in reversed(run.steps)}.values())[::-1]
        _write_timeline(timeline, steps, f"{run.model.name} on {run.host} and {run.system.machine}")
    output.show(run.to_dict, lambda: _print_hosted(run))


def _print_hosted(run: HostedRun) -> None:
    console = screen()
    resident = run.layers - run.host_layers - run.streamed
    console.print(
        styled((run.model.name, "bold"), " on ", (run.host, "bold"), " and ", (run.system.machine, "bold"),
               f", {run.formats}")
    )  # fmt: skip
    console.print(
        f"{counted(run.layers, 'layer')}: {run.host_layers} computed by {run.host}, {resident} on the device, "
        f"{run.streamed} copied to it in every step"
    )
    console.print(f"the device needs {data(run.memory.total)}; the host keeps {data(run.host_bytes)} of weights")
    console.print()
    table = make_table("phase", "time", "tokens/s", "host", "copies", "device", "device waits", "energy")
    shown = {step.phase.name: step for step, _ in run.steps}
    for name, step in shown.items():
        speed = step.phase.batch * step.phase.tokens / step.seconds
        parts = [seconds(fs / 1e15) for fs in (step.host_fs, step.copied_fs, step.device_fs, step.waiting_fs)]
        table.add_row(
            PHASES[name], seconds(step.seconds), digits(speed), *parts,
            joules(step.joules) if step.joules is not None else "–",
        )  # fmt: skip
    console.print(table)
    console.print()
    step, _ = max(run.steps, key=lambda each: each[0].seconds * each[1])
    spent = {
        "the host computes": step.host_fs,
        "its link copies": step.copied_fs,
        "the device computes": step.device_fs,
    }
    longest = max(spent, key=lambda name: spent[name])
    wrapped(
        console, "",
        f"A {PHASES[step.phase.name]} takes {seconds(step.seconds)}, where {longest} for "
        f"{seconds(spent[longest] / 1e15)}; one after the other, all would take {seconds(sum(spent.values()) / 1e15)}.",
        "bold",
    )  # fmt: skip


def _write_timeline(path: Path, steps: Sequence[ParallelStep | HostedStep], title: str) -> None:
    """Phases one after the other, each once."""
    from hwsim.engine import Span
    from hwsim.results.plot.timeline import write_timeline

    spans, now = [], 0
    for step in steps:
        spans += [Span(each.lane, each.name, each.start_fs + now, each.end_fs + now) for each in step.spans]
        now += step.elapsed_fs
    write_timeline(path, spans, title)


def tune_on_system(words: Sequence[str], metric: str, output: Output) -> None:
    """`hwsim tune SYSTEM MODEL`: all layouts, best first."""
    from hwsim.systems.shards import search_layouts

    names, given = split_words(words, "write a parameter as key=value, such as batch=64")
    if len(names) != 2:
        raise InputError("give a system and a model: hwsim tune 8xh100 llama3_70b batch=64")
    if metric not in ("time", "energy"):
        raise InputError(f"--for {metric}: layouts of a system are searched for time or energy")
    with spinner("simulating") as told:
        found = search_layouts(names[1], names[0], given, told)
    usable = [each for each in found if not each.why]
    if not usable:
        shortest = min((each for each in found), key=lambda each: len(each.why))
        raise CapacityError(f"no layout of {names[1]} fits {names[0]}: {shortest.layout.words}: {shortest.why}")
    if metric == "energy":
        usable.sort(key=lambda each: _energy(each))
    output.show(lambda: [_entry(each) for each in [*usable, *(one for one in found if one.why)]],
                lambda: _print_candidates(names, given, usable, len(found), metric))  # fmt: skip


def _energy(each: Candidate) -> float:
    assert each.run is not None
    return each.run.joules if each.run.joules is not None else float("inf")


def _entry(each: Candidate) -> dict[str, object]:
    run = each.run
    costs = {"seconds": run.seconds, "joules": run.joules} if run is not None else {}
    return {"layout": asdict(each.layout), "why_not": each.why, **costs}


def _print_candidates(
    names: Sequence[str], given: dict[str, str], usable: list[Candidate], tried: int, metric: str
) -> None:
    console = screen()
    console.print(styled((names[1], "bold"), " on ", (names[0], "bold"), f": {tried} layouts, {len(usable)} fit"))
    table = make_table("layout", "time", "energy", "memory of a device", "exposed talk", "bubble")
    for each in usable[:10]:
        run = each.run
        assert run is not None
        step = max(run.steps, key=lambda one: one[0].seconds * one[1])[0]
        table.add_row(
            each.layout.words, seconds(run.seconds), joules(run.joules) if run.joules is not None else "–",
            data(step.memory.total), percent(step.share("exposed"), 1), percent(step.share("waiting"), 1),
        )  # fmt: skip
    console.print(table)
    first, last = usable[0], usable[-1]
    assert first.run is not None and last.run is not None
    text = f"Best for {metric}: {first.layout.words}"
    of = f"{last.layout.words}, the last of {counted(len(usable), 'layout')}"
    if len(usable) > 1 and metric == "time":
        text += f", {digits(last.run.seconds / first.run.seconds)} times as fast as {of}"
    elif len(usable) > 1 and last.run.joules is not None and first.run.joules:
        text += f"; {of}, takes {digits(last.run.joules / first.run.joules)} times as much"
    wrapped(console, "", f"{text}.", "bold")
    others = [f"{name}={value}" for name, value in given.items() if name not in asdict(first.layout)]
    command = shlex.join(["hwsim", "model", names[1], names[0], *others, *first.layout.words.split()])
    console.print(styled(("next: ", "dim"), (command, "cyan")))
