"""What commands are told: options that several share, words sorted and completed, files checked, and how they wait."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwsim.cli.console import bars, err, print_json, write_json
from hwsim.errors import InputError, OutputError
from hwsim.files import check_output_file

if TYPE_CHECKING:
    from rich.progress import Progress

    from hwsim.sweep.grid import SweepRequest
    from hwsim.sweep.runner import Finished, SweepTally
    from hwsim.target import Knob


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field, such as l1.size='64 KiB'; repeatable."),
]
AxisSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUES", help="Fields of the machine, such as l2.size=256KiB,1MiB; repeatable."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", help="Worker processes; as many as there are cores if not given."),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor", metavar="NAME", help="inprocess, processes, dask; auto starts processes where that pays."
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="A Dask scheduler that runs already, such as tcp://10.0.0.1:8786."
    ),
]
PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", metavar="[FILE]", help="Draw it: png, svg or pdf; without a name, WORKLOAD_MACHINE.png."),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - prints it, and nothing else.")
]


BareJson = Annotated[
    str | None, typer.Option("--json", metavar="[FILE|-]", help="Write JSON; alone or with -, prints it.")
]


@dataclass(frozen=True)
class Words:
    """A command line, sorted: machine, workload, parameters."""

    machine: str
    workload: str
    parameters: dict[str, str]

    def words(self) -> tuple[str, ...]:
        return (self.machine, self.workload, *(f"{name}={value}" for name, value in self.parameters.items()))


@dataclass(frozen=True)
class Names:
    """A command line, sorted: machines, workloads, and axes as they were typed."""

    machines: tuple[str, ...]
    workloads: tuple[str, ...]
    parameters: dict[str, str]


def parse_words(words: Sequence[str]) -> Words:
    """A word with ``=`` is a parameter; of the others the first is the machine, the second the workload."""
    names, parameters = split_words(words, "write a parameter as key=value, such as n=256", "")
    if len(names) > 2:
        raise InputError(f"'{names[2]}': only a machine and a workload are expected; parameters are key=value")
    return Words(*_roles(names, "".join(names[:1])), parameters)


def sort_words(words: Sequence[str]) -> Names:
    """Words with ``=`` are axes; of the others the first names machines, the second workloads, with commas between."""
    names, parameters = split_words(words, "write an axis as name=values, such as tile=8..256:x2")
    if len(names) > 2:
        raise InputError(
            f"'{names[2]}': machines, then workloads are expected, each with commas between; axes are name=values"
        )
    groups = {name: tuple(part.strip() for part in name.split(",") if part.strip()) for name in names}
    if not all(groups.values()):
        raise InputError("a name is missing between commas")
    machine, workload = _roles(names, groups[names[0]][0] if names else "")
    return Names(groups.get(machine, (machine,)), groups.get(workload, (workload,)), parameters)


def _roles(names: Sequence[str], first: str) -> tuple[str, str]:
    """The machine and the workload; a word alone is whichever of them its first name is, and the other is the usual."""
    from hwsim.api import DEFAULT_MACHINE, DEFAULT_WORKLOAD
    from hwsim.catalog import find_any

    if len(names) == 2:
        return names[0], names[1]
    if not names:
        return DEFAULT_MACHINE, DEFAULT_WORKLOAD
    return (names[0], DEFAULT_WORKLOAD) if find_any(first)[0] == "machine" else (DEFAULT_MACHINE, names[0])


def make_request(words: Sequence[str], settings: Iterable[str] | None, seed: int | None, math: bool) -> SweepRequest:
    """The sweep that a command line asks for: by words, or by the path of a sweep file."""
    from hwsim.sweep import grid
    from hwsim.sweep.grid import is_sweep_file, load_sweep

    files = [word for word in words if is_sweep_file(Path(word))]
    if files:
        if len(words) > 1 or settings:
            raise InputError(f"{files[0]} says all about its sweep; give nothing else, or change the file")
        return load_sweep(Path(files[0]))
    given = sort_words(words)
    fields = pairs(list(settings or ()), "write a field as path=values, such as l2.size=256KiB,1MiB")
    return grid.make_request(given.machines, given.workloads, given.parameters, fields, seed, math)


INTERRUPTED = 130


@dataclass
class CtrlC:
    """Ctrl-C ends the process at once, also inside machine code, inside a library, or while workers end.

    Python raises KeyboardInterrupt when it has its turn again, which may be minutes later, or never where the compiler
    swallows it. So the signal also wakes a thread, which gives Python a moment and then ends the process. Nothing is
    lost: files are written whole or not at all, stores hold every finished point, and workers end with their parent.
    """

    kept: str = ""
    """What whoever interrupts should know."""
    said: bool = False
    """Whether the user has been told."""
    finishing: bool = False
    """Whether what is done is being printed, and no more will be begun."""

    def heed(self) -> None:
        """Begin to watch; called where the process is ours."""
        with suppress(ValueError, OSError):  # not the main thread, or a system that wakes by sockets alone
            reads, writes = os.pipe()
            os.set_blocking(writes, False)
            signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(reads,), daemon=True).start()

    def _watch(self, reads: int) -> None:
        while signal.SIGINT not in os.read(reads, 1):
            pass
        time.sleep(_GRACE_S)
        if self.finishing:
            return
        if not self.said:
            cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hides it
            lines = [line for line in (self.kept, "error: interrupted") if line]
            os.write(sys.stderr.fileno(), (cursor + "\n".join(lines) + "\n").encode())
        os._exit(INTERRUPTED)


_GRACE_S = 0.3
CTRL_C = CtrlC()
"""That of this process."""


TELL_EVERY_S = 2.0
"""How often a line tells how far a command is, where there is no terminal."""


def follow(news: Iterable[Finished], total: int, doing: str) -> SweepTally:
    """Watch points arrive, with a bar on a terminal; elsewhere with a line every few seconds, which says how long the
    rest takes if it goes on like this."""
    from time import monotonic

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hwsim.sweep.runner import SweepTally, duration

    tally = SweepTally()
    columns = (
        TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"), TimeRemainingColumn()
    )  # fmt: skip
    shown = Progress(*columns, console=bars(), transient=True)
    began = last = monotonic()
    with shown as bar:
        task = bar.add_task("points", total=total, failed="")
        for done, each in enumerate(news, start=1):
            tally.add(each)
            passed, left = monotonic() - began, total - done
            if not err().is_terminal and left and began + passed - last > TELL_EVERY_S:
                last = began + passed
                rest = duration(passed / max(1, done - tally.reused) * left)
                err().print(f"{doing}: {done:,} of {total:,}, about {rest} more", style="dim", soft_wrap=True)
            bar.update(task, advance=1, failed=f"{tally.failed} failed" if tally.failed else "")
    return tally


def word_argument(metavar: str, what: str) -> Any:
    """Machines, workloads and parameters, which a shell completes."""
    return typer.Argument(metavar=metavar, help=what, autocompletion=word_completion, show_default=False)


_MOST_VALUES = 32
"""Values of a choice that are offered at once."""


def word_completion(ctx: Any, incomplete: str) -> list[str]:
    """The next word of `run`, `sweep`, `tune` or `compare`: a machine, a workload, or a parameter."""
    given = [str(word) for word in (ctx.params.get("words") or ()) if str(word) != incomplete]
    return complete_words(given, incomplete)


def machine_completion(incomplete: str) -> list[str]:
    """Names of machines."""
    from hwsim.catalog import machine_names

    return [name for name in machine_names() if name.startswith(incomplete)]


def complete_words(given: Sequence[str], incomplete: str) -> list[str]:
    """What may follow the words so far; nothing where they mean nothing."""
    from hwsim.errors import HwsimError

    names = [word for word in given if "=" not in word]
    with suppress(HwsimError, OSError):
        if len(names) < 2 and "=" not in incomplete:
            return [word for word in _names(names) if word.startswith(incomplete)]
        machine, workload = names[0].split(",")[0], names[1].split(",")[0]
        return list(_parameters(machine, workload, [word for word in given if "=" in word], incomplete))
    return []


def _names(given: Sequence[str]) -> Iterator[str]:
    from hwsim.catalog import machine_names, workload_names

    if not given:
        yield from machine_names()
    if not given or given[0] in machine_names():
        yield from workload_names()


def _parameters(machine: str, workload: str, typed: Sequence[str], incomplete: str) -> Iterator[str]:
    """Sizes and the like, and what the machine reads of the schedule; after the `=`, its values."""
    from hwsim.catalog import load_machine, load_workload
    from hwsim.spec.fields import literals
    from hwsim.spec.variant import parameter_keys, with_parameters
    from hwsim.target import find_target

    words = dict(word.split("=", 1) for word in typed if ".." not in word and "," not in word)
    work = with_parameters(load_workload(workload).spec, words)
    knobs = find_target(load_machine(machine).spec).reads(work)
    keys = parameter_keys(work)
    data = [name for name, key in keys.items() if key.path[0] not in ("schedule", "mapping", "threads")]
    name, equals, start = incomplete.partition("=")
    if not equals:
        taken = {word.partition("=")[0] for word in typed}
        names = [*data, *knobs, *(also for knob in knobs.values() for also in knob.also)]
        yield from (f"{each}=" for each in dict.fromkeys(names) if each.startswith(name) and each not in taken)
        return
    knob = knobs.get(name) or next((each for each in knobs.values() if name in each.also), None)
    values = _values(knob) if knob is not None else [str(word) for word in literals(keys[name].annotation)]
    yield from (f"{name}={value}" for value in values if value.startswith(start))


def _values(knob: Knob) -> list[str]:
    from hwsim.errors import InputError
    from hwsim.sweep.grid import make_axis, typed

    with suppress(InputError):
        return [typed(value) for value in make_axis(knob.name, knob.allowed).values[:_MOST_VALUES]]
    return []


_USUAL = ("n", "m", "k", "tile", "batch", "prompt", "generate", "phase", "load", "bytes")


def check_option(option: str, words: Sequence[str]) -> None:
    """Raises InputError where an unknown option is a parameter of the workload, or one of the usual ones."""
    from hwsim.catalog import load_workload
    from hwsim.errors import HwsimError
    from hwsim.spec.fields import near_names
    from hwsim.spec.variant import TOP, parameter_keys
    from hwsim.spec.workload import NAMES

    name, _, value = option.lstrip("-").partition("=")
    plain = name.replace("-", "_")
    position = next((number for number, word in enumerate(words) if word.partition("=")[0].lstrip("-") == name), None)
    if position is not None and not value:
        after = words[position].partition("=")[2] or "".join(words[position + 1 : position + 2])
        value = "" if after.startswith("-") else after
    known = [*_USUAL, *TOP, *NAMES]
    for word in words:
        with suppress(HwsimError, OSError):
            known += parameter_keys(load_workload(word.split(",")[0]).spec) if "=" not in word else ()
    if (found := near_names(plain, known, 1.0)) and found[0].casefold() == plain.casefold():
        raise InputError(f"no such option: {option}; {found[0]} is a parameter: write {found[0]}={value or 'VALUE'}")


PLOT = "--plot"


def with_plot_name(words: Sequence[str]) -> list[str]:
    """A command line in which a bare `--plot` has got a name: ``matmul_a100_40.png``."""
    found: list[str] = []
    for number, word in enumerate(words):
        found.append(word)
        if word == PLOT and _is_bare(words[number + 1 :]):
            found.append(default_name(words))
    return found


_JSON = "--json"
_MAY_BE_BARE = ("show", "list", "check", "explain")
"""Commands whose `--json` may stand alone, and then prints."""


def with_json_place(words: Sequence[str]) -> list[str]:
    """A command line in which a bare `--json` says where to: `-`. A file is what ends in ``.json``, except where that
    is the result that a command reads."""
    found: list[str] = []
    for number, word in enumerate(words):
        found.append(word)
        if word == _JSON and words[0] in _MAY_BE_BARE:
            after = "".join(words[number + 1 : number + 2])
            if after != "-" and (words[0] == "explain" or not after.endswith(".json")):
                found.append("-")
    return found


def default_name(words: Sequence[str]) -> str:
    """The workload and the machine, as far as they are named; the command where they are not."""
    names: list[str] = []
    for word in words[1:]:
        if word.startswith("-"):
            break
        if "=" not in word:
            names.append("_".join(Path(part).stem for part in word.split(",")))
    text = "_".join(reversed(names)) or (words[0] if words else "hwsim")
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text) + ".png"


def _is_bare(rest: Sequence[str]) -> bool:
    return not rest or rest[0].startswith("-") or "=" in rest[0]


_SPINNER_AFTER_S = 1.0


def check_place(option: str, path: Path | None, inputs: Iterable[str | Path | None] = ()) -> None:
    """A place that cannot be written is found out before the work, not after it; `inputs` are what the command reads:
    names, paths, and words with a path behind their `=`."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{option} {path}: this is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")
    check_output_file(path, _named_files(inputs), f"{option} {path}")


def _named_files(words: Iterable[str | Path | None]) -> Iterator[Path]:
    """The files that words of a command line mean: a path, a machine, a workload, `name=path`, several with commas."""
    from hwsim.catalog import KINDS, expand, find
    from hwsim.errors import CatalogError

    for word in words:
        if isinstance(word, Path):
            yield word
        for part in word.split(",") if isinstance(word, str) else ():
            yield expand(part.rpartition("=")[2])
            for kind in KINDS:
                with suppress(CatalogError, OSError, RuntimeError, ValueError):
                    yield find(kind, part)


def store_files(store: Path | None) -> tuple[Path, ...]:
    """A store and what SQLite keeps beside it: none of them is for anything else."""
    return () if store is None else tuple(Path(f"{store}{ending}") for ending in ("", "-wal", "-shm", "-journal"))


@dataclass(frozen=True)
class Output:
    """What a command tells: on the screen or, alone, as JSON on stdout; and as JSON in a file."""

    alone: bool
    json: Path | None

    def show(self, data: Callable[[], Any], screen: Callable[[], None]) -> None:
        if self.alone:
            print_json(data())
        else:
            screen()
        if self.json is not None:
            write_json(self.json, data())


def check_output(
    json_file: str | None, plot: Path | None = None, inputs: Iterable[str | Path | None] = (), **files: Path | None
) -> Output:
    """Where a command writes, all of it checked before the work: none of it onto `inputs`, which the command reads, and
    no two onto one file. `files` are further outputs, by the names of their options."""
    from hwsim.catalog import expand

    alone = json_file == "-"
    target = None if json_file is None or alone else expand(json_file)
    inputs = tuple(inputs)
    taken: dict[str, str] = {}
    for name, path in {"json": target, **files, "plot": plot}.items():
        option = f"--{name.replace('_', '-')}"
        check_place(option, path, inputs)
        if path is not None and (first := taken.setdefault(str(path.resolve()), option)) != option:
            raise OutputError(f"{option} {path}: {first} writes this file already; choose another name")
    if plot is not None:  # what draws is heavy
        from hwsim.results.plot.style import check_plot_file

        check_plot_file(plot)
    return Output(alone, target)


@contextmanager
def spinner(doing: str) -> Iterator[Callable[..., None]]:
    """Something that moves while one waits, on a terminal and only after a second: a bar with an estimate where the run
    knows how far it is. Yields how to say what is being done now, and which share of it is done."""
    if not err().is_terminal:
        yield lambda *_: None
        return
    shown = _Waiting(doing)
    timer = threading.Timer(_SPINNER_AFTER_S, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown.say
    finally:
        timer.cancel()
        timer.join()
        shown.stop()


class _Waiting:
    """A bar for a run of unknown length, until it tells how much is done."""

    def __init__(self, doing: str) -> None:
        self._doing = self._text = doing
        self._share = 0.0
        self._bar: Progress | None = None

    def start(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        from hwsim.engine import WATCHERS

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=err(), transient=True)
        first = " (the first run on a computer also compiles, for some seconds)"
        self._task = self._bar.add_task(self._text + (first if self._text == self._doing else ""), total=None)
        self._bar.start()
        WATCHERS.append(self._tell)

    def say(self, what: str, share: float | None = None) -> None:
        self._text = f"{self._doing} {what}"
        if share is not None:
            self._tell(share)
        elif self._bar is not None:
            self._bar.update(self._task, description=self._text)

    def _tell(self, share: float) -> None:
        if self._bar is None:
            return
        if share < self._share:  # the next of several runs
            self._bar.reset(self._task)
        self._share = share
        self._bar.update(self._task, description=self._text, total=1.0, completed=share)

    def stop(self) -> None:
        if self._bar is not None:
            from hwsim.engine import WATCHERS

            WATCHERS.remove(self._tell)
            self._bar.stop()


_SEVERAL = "; write its values with commas between"


def split_words(words: Sequence[str], how: str, twice: str = _SEVERAL) -> tuple[list[str], dict[str, str]]:
    """Words without ``=``, and the others by name."""
    parameters = pairs([word for word in words if "=" in word], how, twice)
    return [word for word in words if "=" not in word], parameters


def pairs(words: Sequence[str], how: str, twice: str = _SEVERAL) -> dict[str, str]:
    """``name=value`` by name; `how` and `twice` say what to do where one is none or comes again."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"'{word}': {how}")
        if name.strip() in pairs:
            raise InputError(f"'{word}': {name.strip()} is given twice{twice}")
        pairs[name.strip()] = value.strip()
    return pairs
