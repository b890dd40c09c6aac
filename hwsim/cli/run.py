"""`hwsim run`: simulate a workload on a machine, and tell what it cost and why.

The last run, kept for `hwsim explain` and `hwsim report`: of this terminal, of this folder, of all.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.arguments import Settings, Words, check_output, parse_words, spinner, word_argument
from hwsim.cli.console import SHADES, STYLES, draw_table, err, make_table, print_body, screen, styled, wrapped
from hwsim.energy import STATIC
from hwsim.errors import CheckFailedError, HwsimError, InputError, OutputError
from hwsim.files import note_input, private_folders, read_file, why_none, write_text
from hwsim.results.metrics import shown, write
from hwsim.units import bar, digits, format_title, joule_seconds, joules, percent, ratio, seconds, short, watts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hwsim.api import Run
    from hwsim.record import ErrorBar
    from hwsim.result import FormulaCheck, RunResult
    from hwsim.target import Advice, Why

RUN_EXAMPLE = "Example: [cyan]hwsim run course_cpu matmul_tiled n=256 tile=32 --set l1.size='64 KiB'[/cyan]"


def run_command(
    words: Annotated[
        list[str] | None,
        word_argument(
            "[MACHINE] [WORKLOAD] [KEY=VALUE]...",
            "A machine and a workload, by name or path, and the workload's parameters, such as n=256; "
            "without any, matmul_tiled on course_cpu.",
        ),
    ] = None,
    settings: Settings = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - prints it, and nothing else."),
    ] = None,
    no_math: Annotated[
        bool, typer.Option("--no-math", help="Do not compute the answer; for sizes that would take too long.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="For random inputs and random replacement.", show_default=False),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what held which resource when, and power over time, for Perfetto; or draw it (png, svg, pdf).",
        ),
    ] = None,
    energy_csv: Annotated[
        Path | None,
        typer.Option("--energy-csv", metavar="FILE", help="Write counts, prices, joules and sources of all actions."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw where time and energy went: png, svg or pdf.")
    ] = None,
) -> None:
    """Simulate a workload on a machine: what it costs, and why."""
    from hwsim.results.plot.style import is_plot_file

    given = parse_words(words or ())
    output = check_output(json_file, plot, words or (), timeline=timeline, energy_csv=energy_csv)
    if timeline is not None:
        _check_timeline(given)
    with spinner("simulating"):
        run = _run(given, settings or (), seed, not no_math, timeline is not None)
    result = run.result
    remember(result)
    output.show(result.to_dict, lambda: print_screen(result, given.words(), tuple(settings or ())))
    if timeline is not None and is_plot_file(timeline):
        result.plot.timeline(run.spans, timeline)
    elif timeline is not None and run.outcome is not None:
        from hwsim.result import machine_of
        from hwsim.results.plot.timeline import power_over_time, timeline_json

        power = power_over_time(machine_of(result), run.outcome)
        write_text(timeline, timeline_json(run.spans, f"{result.workload} on {result.machine}", power))
    if energy_csv is not None:
        _write_energy(energy_csv, result)
    if plot is not None:
        from hwsim.results.plot.run import plot_split

        plot_split(result, plot)
    if result.verified is False:
        raise CheckFailedError(f"{result.workload}: {result.warnings[-1]}")


def _check_timeline(given: Words) -> None:
    """A whole model is many runs, and has a timeline of its own."""
    from hwsim.catalog import load_workload

    if load_workload(given.workload).spec.runner is not None:
        raise InputError(f"--timeline: {given.workload} is a whole model; hwsim model {given.workload} {given.machine} "
                         "--timeline FILE writes it")  # fmt: skip


def _write_energy(path: Path, result: RunResult) -> None:
    from hwsim.results.metrics import energy_csv

    if result.energy_j is None:
        raise InputError(f"--energy-csv {path}: {result.machine} has no energy prices")
    write_text(path, energy_csv(result))


def _run(given: Words, settings: Sequence[str], seed: int | None, math: bool, timeline: bool) -> Run:
    from hwsim.api import resolve_machine, run_all

    machine = resolve_machine(given.machine, settings)
    parts = {part.name for part in (*machine.compute, *machine.memory)}
    stray = [name for name in given.parameters if name.partition(".")[0] in parts and "." in name]
    if stray:
        word = f"{stray[0]}={given.parameters[stray[0]]}"
        raise InputError(f"{word}: this belongs to the machine; write --set {word!r}")
    if seed is not None and "seed" in given.parameters:
        raise InputError("give the seed once: as --seed or as seed=")
    return run_all(
        machine, given.workload, seed=seed, math=math, timeline=timeline, parameters=given.parameters, warn=_warn
    )


def _warn(seconds: float) -> None:
    """A long run says so before it begins, also where no bar can turn."""
    note = f"the arithmetic of this run takes some {_duration(seconds)} here; --no-math leaves it out"
    err().print(note, style="dim", soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} seconds"
        if minutes < 2
        else f"{minutes:.0f} minutes"
        if minutes < 120
        else f"{minutes / 60:.0f} hours"
    )


_BAR = 24
_INDENT = " " * 17
_MOST_CAUSES = 6
_MOST_FORMULAS = 4
_MOST_STAGES = 14
_FROM = 0.001
"""Shares below this are left out of the tables."""

_OFF: tuple[Any, ...] = (None, False, "none", 1, {}, [])
_USUAL = (("split", "static"), ("accumulate", "register"), ("b_layout", "kj"))
"""Choices that need no mention."""


def print_screen(result: RunResult, words: Sequence[str], settings: Sequence[str]) -> None:
    """About forty lines, a hundred columns wide."""
    from hwsim.results.explanation import explain, wider_words

    console = screen()
    why = explain(result)
    print_head(console, result, why)
    _print_costs(console, result, why)
    console.print()
    console.print(draw_table(why.levels))
    if words_of_results := wider_words(result):
        wrapped(console, "", words_of_results, style="dim")
    if why.body:
        console.print()
        print_body(console, why.body)
    if len(result.stages) > 1:
        console.print()
        console.print(stage_table(result))
    console.print()
    console.print(why_table(result, why))
    console.print()
    wrapped(console, "", why.bound.words, style="bold")
    wrapped(console, "bounds  ", why.bounds, style="dim")
    rows = [row for row in result.formulas if _worth_showing(row)] or list(result.formulas)
    if rows:
        console.print()
        console.print(formula_table(rows[:_MOST_FORMULAS]))
        print_reasons(console, rows[:_MOST_FORMULAS])
    for warning in result.warnings:
        wrapped(console, "warning  ", warning, style="yellow")
    command = next_command("run", words, settings, why.advice, math=result.numeric is not None)
    console.print(styled("\nnext  ", (command, "cyan")), soft_wrap=True)
    wrapped(console, "      ", f"{why.advice.why}; or: hwsim explain", style="dim")


def print_head(console: Console, result: RunResult, why: Why) -> None:
    from hwsim.results.explanation import accuracy, verdict

    chosen = _choices(result.resolved.workload, why.schedule)
    console.print(styled((result.workload, "bold"), " on ", (result.machine, "bold"), f": {chosen}, {why.used}"))
    good = {True: ("green", "✓"), False: ("bold red", "✗"), None: ("yellow", "–")}
    style, mark = good[result.verified]
    console.print(f"{mark} {verdict(result)}", style=style)
    if words := accuracy(result):
        wrapped(console, "  ", words, style="")


def stage_table(result: RunResult) -> Table:
    """The operations of a chain: what each took, and the lines that it brought from main memory."""
    cache = list(result.caches)[-1] if result.caches else None
    table = make_table(
        "operation", "time", "share", "", "operations", *([f"{cache} misses"] if cache else []), left=(0, 3)
    )
    for stage in result.stages[:_MOST_STAGES]:
        share = stage.time_s / result.time_s if result.time_s else 0.0
        far = [f"{sum(moved.misses.get(cache, 0) for moved in stage.tensors.values()):,}"] if cache else []
        table.add_row(
            stage.name, seconds(stage.time_s), percent(share, 1), _bar(share, "cyan"), f"{stage.flops:,}", *far
        )
    rest = result.stages[_MOST_STAGES:]
    if rest:
        time_s = sum(stage.time_s for stage in rest)
        share = time_s / result.time_s if result.time_s else 0.0
        flops = sum(stage.flops for stage in rest)
        table.add_row(f"{len(rest)} more", seconds(time_s), percent(share, 1), _bar(share, "cyan"), f"{flops:,}", "")
    return table


def why_table(result: RunResult, why: Why) -> Table:
    """Where the cycles went: all units together, the largest first."""
    from hwsim.engine import BUSY, summed

    together = summed(result.attribution)
    whole = sum(together.values())
    table = make_table(f"why: cycles of {why.whole}", "", "share", "", left=(0, 3))
    rows = [(kind, name, cycles) for (kind, name), cycles in together.items() if cycles >= _FROM * whole]
    for kind, name, cycles in rows[:_MOST_CAUSES]:
        style = "green" if kind == BUSY else "yellow"
        share = cycles / whole if whole else 0.0
        table.add_row(why.part(name), f"{cycles:,}", percent(cycles, whole), _bar(share, style))
    rest = whole - sum(cycles for _, _, cycles in rows[:_MOST_CAUSES])
    if rest > 0:
        table.add_row("everything else", f"{rest:,}", percent(rest, whole), "")
    return table


def formula_table(rows: Sequence[FormulaCheck]) -> Table:
    table = make_table("formula", "says", "simulated", "ratio", left=(0,))
    for row in rows:
        name = f"{row.name}: {row.expression}"
        same = row.ratio is not None and not row.reason
        table.add_row(
            name,
            _amount(row.predicted),
            f"{_amount(row.simulated)} {row.unit}",
            "exact" if row.predicted == row.simulated else "same" if same else ratio(row.ratio or 0.0),
        )
    return table


def next_command(
    command: str, words: Sequence[str], settings: Sequence[str], advice: Advice, *, math: bool = True
) -> str:
    """The command that was given, with what the advice changes; several machines run models alone."""
    from hwsim.systems.spec import joins
    from hwsim.target import MACHINES

    changed = dict(advice.parameters)
    if machines := changed.pop(MACHINES, ""):
        machine, model = words[:2] if command == "run" else words[1::-1]
        if not joins(machine, int(machines)):
            return "hwsim list systems"
        command, words = "model", [model, f"{machines}x{machine}", *words[2:]]
    kept = [word for word in words if word.partition("=")[0] not in changed]
    kept += [f"{name}={value}" for name, value in changed.items()]
    paths = {setting.partition("=")[0] for setting in advice.settings}
    asked = [setting for setting in settings if setting.partition("=")[0] not in paths]
    options = [word for setting in (*asked, *advice.settings) for word in ("--set", setting)]
    return shlex.join(["hwsim", command, *kept, *options, *([] if math else ["--no-math"])])


def _print_costs(console: Console, result: RunResult, why: Why) -> None:
    """A line for each metric of the first screen; time and energy have more to say."""
    console.print()
    for metric in shown("run"):
        if metric.name == "time_s":
            _print_time(console, result, why)
        elif metric.name == "energy_j":
            _print_energy(console, result, why)
        elif (value := metric.of(result)) is not None:
            console.print(styled((metric.title, "bold"), "  ", (write(metric.name, value), "bold cyan")))
    wrapped(console, "exact            ", result.bars.exact, style="dim")


def _bar_words(bar: ErrorBar | None) -> str:
    """`` ± 9 %`` beside a number that was compared with hardware."""
    return f" {bar.words}" if bar is not None and bar.is_known else ""


def _print_bar(console: Console, bar: ErrorBar | None) -> None:
    """What a bar rests on."""
    if bar is not None:
        wrapped(console, _INDENT, bar.source, style="dim")


def _print_time(console: Console, result: RunResult, why: Why) -> None:
    from hwsim.results.explanation import peak_words

    speed = peak_words(result)
    time = f"{seconds(result.time_s):<8}"
    bar = _bar_words(result.time)
    console.print(
        styled(
            ("time", "bold"), "    ", (time, "bold cyan"), (bar, "cyan"), f" {' ' * bool(bar)}{result.cycles:,} cycles"
        )
    )
    _print_bar(console, result.time)
    if speed:
        wrapped(console, _INDENT, speed, style="")
    for line in why.lines:
        wrapped(console, _INDENT, line.text, style=STYLES[line.weight])


def _print_energy(console: Console, result: RunResult, why: Why) -> None:
    from rich.text import Text

    from hwsim.results.metrics import energy_split

    if result.energy_j is None or result.power_w is None:
        console.print(styled(("energy", "bold"), "  this machine has no energy prices"), style="dim")
        return
    flops = result.work.flops
    each = [f"{joules(result.energy_j / flops)} for each operation"] if flops else []
    each += [f"energy × delay {joule_seconds(result.edp_js)}"] if result.edp_js else []
    bar, power = _bar_words(result.energy_bar), _bar_words(result.power_bar)
    words = f" {' ' * bool(bar)}{watts(result.power_w)}{power} on average"
    more = f", {', '.join(each)}" if each and not bar else ""
    console.print(
        styled(("energy", "bold"), "  ", (f"{joules(result.energy_j):<8}", "bold cyan"), (bar, "cyan"), words + more)
    )
    _print_bar(console, result.energy_bar)
    if each and bar:
        console.print(f"{_INDENT}{', '.join(each)}")
    split = energy_split(result)
    static = split.pop(STATIC, 0.0)
    dynamic = sum(split.values())
    shares = {name: joule / dynamic for name, joule in split.items() if dynamic}
    shown = {name: share for name, share in shares.items() if share >= _FROM}
    if shown:
        listed = ", ".join(f"{_shade(number)} {name} {percent(share, 1)}"
                           for number, (name, share) in enumerate(shown.items()))  # fmt: skip
        console.print(Text(_INDENT) + _split_bar(shown, console.width))
        own = f", {joules(dynamic / flops)} for each operation" if flops else ""
        wrapped(console, _INDENT, f"dynamic {joules(dynamic)}{own}: {listed}", style="dim")
        if why.prices:
            wrapped(console, _INDENT, why.prices, style="dim")
    if static:
        wrapped(console, _INDENT, f"static {joules(static)}: {_static_words(static, result, why)}", style="dim")


def _static_words(static: float, result: RunResult, why: Why) -> str:
    """Power that the machine draws whatever is done: of all its units, also where only some of them work."""
    drawn = watts(static / result.time_s) if result.time_s else ""
    some = f", {why.used.partition(',')[0]} at work" if why.used.startswith(f"{result.work.cores} of ") else ""
    return f"{drawn} of the whole machine while the run lasts{some}"


def _split_bar(shares: dict[str, float], room: int) -> Text:
    """One bar for the whole, a shade of its own for each share, which the line below it names."""
    from rich.text import Text

    width = max(10, min(60, room - len(_INDENT) - len(shares)))
    text = Text()
    styles = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")
    for number, share in enumerate(shares.values()):
        length = max(1, round(width * share))
        text.append(_shade(number) * length, style=styles[number % len(styles)])
    return text


def _shade(number: int) -> str:
    return SHADES[number % len(SHADES)]


def print_reasons(console: Console, rows: Sequence[FormulaCheck]) -> None:
    for row in rows:
        if row.reason:
            wrapped(console, f"  {row.name.partition(',')[0]}: ", row.reason, style="dim")


def _worth_showing(row: FormulaCheck) -> bool:
    """Totals rather than single tensors."""
    return "." not in row.compare or not row.compare.startswith(("loads.", "stores."))


def _choices(workload: Mapping[str, Any], schedule: Mapping[str, object]) -> str:
    """Sizes and schedule as they would be typed, without what is off or left alone."""
    chosen = {**workload.get("sizes", {}), **schedule}
    shown = [
        _typed(name, value)
        for name, value in chosen.items()
        if value is True or (value not in _OFF and (name, value) not in _USUAL)
    ]
    return " ".join([*shown, *_number_choices(workload)])


def _typed(name: str, value: Any) -> str:
    """A choice as the command line takes it."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, dict):
        return " ".join(f"{name}.{key}={entry}" for key, entry in value.items())
    if isinstance(value, list):
        parts = ["+".join(part) if isinstance(part, list) else str(part) for part in value]
        return f"{name}={','.join(parts)}"
    return f"{name}={value}"


def _number_choices(workload: Mapping[str, Any]) -> list[str]:
    """The precision, and what else is said about numbers."""
    names = {
        field: format_title(workload[field]) for field in ("precision", "accumulate") if workload[field] is not None
    }
    usual = {"chunk": None, "scale": "none", "distribution": "uniform"}
    others = {name: workload[name] for name, default in usual.items() if workload.get(name) not in (None, default)}
    said = {**{name: text for name, text in names.items() if name != "precision"}, **others}
    return [names["precision"], *(f"{name}={value}" for name, value in said.items())]


def _amount(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else short(value) if value >= 1e4 else digits(value)


def _bar(share: float, style: str) -> Text:
    from rich.text import Text

    return Text(bar(share, _BAR), style=style)


_MOST_RESULT_BYTES = 200_000_000


def last_run_files() -> list[Path]:
    """Where the last run may be kept: in folders of the user's own, the usual one first."""
    return [folder / "last-run.json" for folder in private_folders()]


def remember(result: RunResult) -> None:
    """Keep a result for `hwsim explain`: as the last one, and as the last of this folder and terminal.

    Where it cannot be kept, older ones go: they would be explained instead.
    """
    kept, reason = None, why_none()
    for file in last_run_files():
        here = _here(file)
        if kept is None:
            try:
                here.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, result.to_json())
                kept = file
                write_text(here, result.to_json())
                for old in sorted(here.parent.glob("*.json"), key=lambda each: -each.stat().st_mtime_ns)[_MOST_KEPT:]:
                    old.unlink(missing_ok=True)
            except (OSError, OutputError) as error:
                reason = str(error)
                _remove(here)
        if file != kept:
            _remove(file)
            _remove(here)
    if kept is None:
        err().print(f"this run is not kept for hwsim explain: {reason}", style="dim", soft_wrap=True, markup=False)

    for file in last_run_files():
        _remove(_searched(file))


_MOST_KEPT = 16
"""Folders and terminals whose last run is kept."""


@dataclass(frozen=True)
class LastSearch:
    """A sweep, or a search for the best, after the last run."""

    command: str
    """`sweep` or `tune`."""
    run: str
    """The command that runs its best point again."""


def remember_search(search: LastSearch) -> None:
    """Keep that it came after the last run of this folder and terminal: explain is not about it."""
    for file in last_run_files():
        place = _searched(file)
        with suppress(OSError, OutputError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, json.dumps(asdict(search)))
            for old in sorted(place.parent.glob("*.search"), key=lambda each: -each.stat().st_mtime_ns)[_MOST_KEPT:]:
                old.unlink(missing_ok=True)
            return


def last_search() -> LastSearch | None:
    """A search of this folder and terminal that no run came after."""
    for file in last_run_files():
        with suppress(OSError, ValueError, TypeError):
            return LastSearch(**json.loads(_searched(file).read_text(encoding="utf-8")))
    return None


def _searched(file: Path) -> Path:
    return _here(file).with_suffix(".search")


def _here(file: Path) -> Path:
    """Where the last run of this folder and this terminal is kept, beside the last one of all."""
    folder = ""
    with suppress(OSError):  # the folder may have been deleted
        folder = str(Path.cwd())
    session = os.getsid(0) if hasattr(os, "getsid") else os.getppid()
    return file.parent / "runs" / f"{sha256(folder.encode()).hexdigest()[:16]}-{session}.json"


def last_run() -> tuple[Path, str]:
    """The run to explain where none is named, and in words which one that is: of this terminal, else of this folder,
    else the last one of all."""
    here = [_here(file) for file in last_run_files()]
    folder = [file for each in here for file in each.parent.glob(f"{each.name.partition('-')[0]}-*.json")]
    for files, where in (
        (here, ""),
        (folder, " in this folder, from another terminal"),
        (last_run_files(), ", from another folder"),
    ):
        kept = {file: file.stat().st_mtime for file in files if file.exists()}
        if kept:
            newest = max(kept, key=lambda file: kept[file])
            return newest, f"the last run{where}, {_ago(time() - kept[newest])}"
    search = last_search()
    try_this = "hwsim run" if search is None else f"{search.run} (the best of the last hwsim {search.command})"
    raise InputError(f"there is no last run to explain; try: {try_this}")


def _ago(passed_s: float) -> str:
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if passed_s >= size:
            count = int(passed_s // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def _remove(file: Path) -> None:
    """Away with an older run; emptied where even that fails."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):
            os.truncate(file, 0)


def recall(path: Path | None) -> RunResult:
    """A stored result, or the last one."""
    from hwsim.result import RunResult

    source = path or last_run()[0]
    if path is not None:
        note_input(path)
    try:
        text = read_file(source, _MOST_RESULT_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise InputError(f"there is no file {source}") from error
    except InputError as error:
        raise InputError(f"{source}: {error}{_AGAIN if path is None else ''}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source} cannot be read: {error}{_AGAIN if path is None else ''}") from error
    try:
        return RunResult.from_json(text)
    except InputError as error:
        raise InputError(f"{source}: {error}{_AGAIN if path is None else ''}") from error


@contextmanager
def blaming(path: Path | None) -> Iterator[None]:
    """What a class of machines tells of its runs has no declared form: where it does not fit, the file is to blame."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if path is None or isinstance(error, HwsimError):
            raise
        raise InputError(f"{path}: damaged, it cannot be explained ({type(error).__name__}: {error})") from error


_AGAIN = "; the last run was not kept whole: give its command again"
