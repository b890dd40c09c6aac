"""The `hwsim` program: which commands there are, and what happens when one fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hwsim import __version__
from hwsim.cli import (
    check,
    compare,
    explain,
    export,
    ladder,
    replay,
    report,
    roofline,
    run,
    schema,
    show,
    sweep,
    tune,
    validate,
    welcome,
)
from hwsim.cli import list as list_
from hwsim.cli.console import print_error
from hwsim.errors import HwsimError, InputError

INTERRUPTED = 130

app = typer.Typer(
    name="hwsim",
    help="What would this kernel cost on that machine, and why?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("run", epilog=run.EXAMPLE)(run.run_command)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain_command)
app.command("sweep", epilog=sweep.EXAMPLE)(sweep.sweep_command)
app.command("tune", epilog=tune.EXAMPLE)(tune.tune_command)
app.command("compare", epilog=compare.EXAMPLE)(compare.compare_command)
app.command("ladder", epilog=ladder.EXAMPLE)(ladder.ladder_command)
app.command("roofline", epilog=roofline.EXAMPLE)(roofline.roofline_command)
app.command("report", epilog=report.EXAMPLE)(report.report_command)
app.command("export", epilog=export.EXAMPLE)(export.export_command)
app.command("list", epilog=list_.EXAMPLE)(list_.list_command)
app.command("show", epilog=show.EXAMPLE)(show.show_command)
app.command("check", epilog=check.EXAMPLE)(check.check_command)
app.command("replay", epilog=replay.EXAMPLE)(replay.replay_command)
app.command("schema", epilog=schema.EXAMPLE)(schema.schema_command)
app.command("validate", epilog=validate.EXAMPLE)(validate.validate_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hwsim {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show Python tracebacks; allowed anywhere (or HWSIM_DEBUG=1).")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        welcome.print_welcome()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; gives its exit code: 0 fine, 1 a run or a check failed, 2 the input is wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or os.environ.get("HWSIM_DEBUG", "") not in ("", "0")
    words = [word for word in given if word != "--debug"]
    try:
        app(args=words, prog_name="hwsim")
    except SystemExit as stop:
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
        print_error(f"cannot write the output: {error.strerror}")
        return 1
    return 0


def _exit_code(stop: SystemExit) -> int:
    return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1


def _finish(code: int) -> int:
    if code == INTERRUPTED:
        print_error("interrupted")
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    return code


def _silence_stdout() -> None:
    """Whoever read our output has gone: Python must not complain about it at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
