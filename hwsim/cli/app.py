"""The `hwsim` program: which commands there are, and what happens when one fails."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Container, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hwsim import __version__
from hwsim.cli.arguments import CTRL_C, INTERRUPTED, check_option, with_json_place, with_plot_name
from hwsim.cli.console import err, make_safe, out, print_error, styled
from hwsim.errors import HwsimError, InputError
from hwsim.files import forget_inputs
from hwsim.units import HIDDEN, visible

_MOST_SAID = 200
"""Letters of an error that was not foreseen."""
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
# A thread of NumPy's BLAS that has nothing to do sleeps after 2**18 cycles; after 2**28, a short run would pay for it.
_COMPLETION = "_HWSIM_COMPLETE"
"""The environment variable by which a shell asks for completions."""

COMMANDS = {
    "run": "Simulate a workload on a machine: what it costs, and why.",
    "model": "Simulate a whole model on a machine: memory, prompt, tokens, training; what each costs, and why.",
    "import": "Turn a config.json, ONNX, torch.export or a table of layers into a model file that can be changed.",
    "explain": "Explain a run (conflicts by set, reuse, stalls, miss penalties, formulas, energy), or a term.",
    "sweep": "Simulate every combination; the same command goes on where it was interrupted.",
    "tune": "Find the best schedule for a machine by its own cost model, and tell what it gains over the default, "
    "and why.",
    "compare": "Compare machines and workloads: every combination, with speed-ups against the first.",
    "ladder": "Climb a ladder: the same computation in steps, with what each step brings.",
    "lesson": "Take a lesson: a question, your prediction, the runs, what they show, why, and exercises that are "
    "graded.",
    "roofline": "Show one roof per memory level and per number format, with runs where their simulated traffic puts "
    "them.",
    "serve": "Serve a model to users: time to first token, time per token, throughput, tails, energy, and what limits.",
    "collective": "Show how long devices take to exchange data: algorithm, time, formula, links; all-reduce if none is "
    "named.",
    "report": "Write one self-contained HTML page about a run or a sweep: words, tables, charts, the machine, its "
    "sources.",
    "export": "Write the points of a sweep as CSV, JSON or Parquet.",
    "list": "List machines, workloads, models, systems and engines, with one line on each.",
    "show": "Show a machine, workload, system or engine.",
    "check": "Check files of machines, workloads, systems and engines: all problems, with file and line.",
    "view": "Draw a tensor's storage under a chain of views: strides, offset, what is copied, and the lines it "
    "touches.",
    "trace": "Print the accesses of a small run in order: flat addresses, with the tensor and element that each means.",
    "gradient": "Differentiate an expression: its graph, the adjoint of each node, and what forward and reverse mode "
    "cost.",
    "rewrite": "Try rewrites of a chain of operations; each is kept only if the answer is the same and the time falls.",
    "replay": "Replay an access trace through a machine's caches.",
    "schema": "Print the JSON Schema of machine or workload files.",
    "calibrate": "Measure this computer with small loops, in less than a minute, and write it down as a machine file.",
    "measure": "Compile a workload's loops with Numba, run them on this computer, and compare with the simulation.",
    "fit": "Fit a GPU's few constants to one half of a table of measured kernels, and report the other half.",
    "validate": "Compare hwsim with independent simulators and measured hardware; exit 1 if a stated bar is missed.",
}
"""What `hwsim --help` says of each command: the first line of its function, which is imported only when it is used."""

_HOMES = {
    "ladder": "compare", "roofline": "compare", "schema": "check", "import": "model", "calibrate": "measure",
    "trace": "view", "gradient": "view", "rewrite": "view", "fit": "validate", "collective": "serve", "list": "show",
    "report": "export", "tune": "sweep",
}  # fmt: skip
"""Commands that share the module of another one; the others have one of their own name."""


def make_app(used: Container[str]) -> typer.Typer:
    """The program, with the arguments and options of the commands that are used; of all others only what they are."""
    app = typer.Typer(
        name="hwsim",
        help="What would this kernel cost on that machine, and why?",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    for name, text in COMMANDS.items():
        if name in used:
            module = command_module(name)
            epilog = getattr(module, f"{name.upper()}_EXAMPLE")
            app.command(name, cls=_Command, epilog=epilog)(getattr(module, f"{name}_command"))
        else:
            app.command(name, help=text)(_unused)
    return app


def command_module(name: str) -> ModuleType:
    """The module of a command, imported."""
    return import_module(f"hwsim.cli.{_HOMES.get(name, name)}")


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class _Command(TyperCommand):
    """A command that tells whoever writes a parameter as an option, `--tile 32`, how it is written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click does it."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            name = getattr(error, "option_name", "") if hasattr(error, "possibilities") else ""
            if name and any(each.name == "words" for each in self.params):
                check_option(str(name), given)
            raise


def _unused() -> None:
    """Stands for a command that the command line does not name."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hwsim {__version__}")
        raise typer.Exit


def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show Python tracebacks; allowed anywhere (or HWSIM_DEBUG=1).")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print_welcome()


def main(given: Sequence[str]) -> int:
    """Run one command line; gives its exit code: 0 fine, 1 a run or a check failed, 2 the input is wrong."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # or it reads the metadata of all installed packages
    debug = "--debug" in given or os.environ.get("HWSIM_DEBUG", "") not in ("", "0")
    words = with_json_place(with_plot_name([word for word in given if word != "--debug"]))
    make_safe(sys.stdout)
    make_safe(sys.stderr)
    forget_inputs()
    try:
        _check_words(words)
        make_app(COMMANDS if _COMPLETION in os.environ else words)(args=words, prog_name="hwsim")
    except SystemExit as stop:
        _tell_of_compiling()
        return _finish(_exit_code(stop))
    except HwsimError as error:
        if debug:
            raise
        print_error(str(error))
        return error.exit_code
    except MemoryError as error:
        if debug:
            raise
        print_error(f"this needs more memory than there is ({error}); choose smaller sizes, or --no-math")
        return InputError.exit_code
    except KeyboardInterrupt:
        return _finish(INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        return 1
    except OSError as error:
        if debug:
            raise
        _silence_stdout()
        where = f" {error.filename}" if error.filename else ""
        print_error(f"cannot read or write{where}: {error.strerror or error}")
        return 1
    except Exception as error:
        if debug:
            raise
        print_error(our_fault(error))
        return 1
    return 0


def our_fault(error: Exception) -> str:
    """What to tell a user about a mistake that is not theirs."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
    said = str(error).partition("\n")[0][:_MOST_SAID]
    return (
        f"this is a mistake in hwsim {__version__}, not in what you gave it ({type(error).__name__}{where}"
        f"{f': {said}' if said else ''}). Please report it, with this command and its files; "
        "the same command with --debug shows where it happened"
    )


def _check_words(words: Sequence[str]) -> None:
    """A name with control characters is a slip or a trick; either way nobody can see what is meant."""
    for word in words:
        found = HIDDEN.search(word)
        if found is not None and not word.isprintable():
            raise InputError(
                f"'{visible(word)}': a word of a command line cannot have the character U+{ord(found[0]):04X}"
            )


def _tell_of_compiling() -> None:
    """Whoever waits for the compiler in every run is told why."""
    jit = sys.modules.get("hwsim.jit")
    reason = jit.why_not_kept() if jit is not None else ""
    if reason:
        note = (
            f"compiled code is not kept ({reason}): each run compiles again; name a folder of yours in XDG_CACHE_HOME"
        )
        err().print(note, style="dim", soft_wrap=True, markup=False)


def _exit_code(stop: SystemExit) -> int:
    return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1


def _finish(code: int) -> int:
    if code == INTERRUPTED:
        CTRL_C.said = True
        print_error("interrupted")
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    return code


def _silence_stdout() -> None:
    """Whoever read our output has gone: Python must not complain about it at exit either."""
    with suppress(io.UnsupportedOperation):  # a stream in memory has no reader that could go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


FIRST_COMMANDS = (
    ("hwsim run", "a tiled matrix product on the course's CPU: what it costs, and why"),
    ("hwsim run zen3 matmul_naive n=512", "another machine, another workload, another size"),
    ("hwsim explain", "more about the last run: conflicts, reuse, stalls, energy"),
    ("hwsim sweep course_cpu matmul_tiled tile=4..256:x2 --plot t.png", "many runs, kept and drawn"),
    ("hwsim ladder matmul", "naive, vectorised, tiled, parallel: what each step brings"),
    ("hwsim lesson tiling", "a question, your prediction, runs, the reason; hwsim lesson lists them all"),
    ("hwsim list", "machines and workloads that are here"),
    ("hwsim show course_cpu", "one of them, at a glance"),
    ("hwsim show course_cpu --set l1.size='64 KiB' --resolved", "a variant, with every default filled in"),
    ("hwsim check machines/my.yaml", "what is wrong with a file of yours"),
    ("hwsim schema machine > machine.schema.json", "completion and hints in your editor"),
    ("hwsim --help", "all commands"),
)


def print_welcome() -> None:
    console = out()
    console.print(styled((f"hwsim {__version__}", "bold"), ": what would this kernel cost on that machine, and why?\n"))
    console.print("Try:\n")
    width = max(len(command) for command, _ in FIRST_COMMANDS)
    for command, meaning in FIRST_COMMANDS:
        console.print(styled("  ", (f"{command:<{width}}", "cyan"), f"  {meaning}"))
