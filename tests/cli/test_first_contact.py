"""The first minute with hwsim: a welcome, quick help, a version, and errors without tracebacks."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import hwsim, hwsim_process

import hwsim as package
from hwsim.cli import app as app_module
from hwsim.cli.app import FIRST_COMMANDS
from hwsim.errors import CatalogError

HEAVY = ("numba", "simpy", "matplotlib", "numpy", "scipy", "llvmlite")


def test_hwsim_alone_prints_commands_to_copy() -> None:
    outcome = hwsim()
    assert outcome.code == 0
    for command, _ in FIRST_COMMANDS:
        assert command in outcome.out


@pytest.mark.parametrize("command", [command for command, _ in FIRST_COMMANDS])
def test_a_command_of_the_welcome_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "my.yaml").write_text("format: 1\nname: my\ndescription: Mine.\nextends: course_cpu\n")
    words = shlex.split(command.split(">", maxsplit=1)[0])
    assert words[0] == "hwsim"
    assert hwsim(*words[1:]).code == 0


def test_version_is_the_packages() -> None:
    assert hwsim("--version").out == f"hwsim {package.__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["list", "--json"], ["check"], ["show", "matmul"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from hwsim.cli.app import main\n"
        f"code = main({words!r})\n"
        f"print('heavy:', [m for m in {HEAVY!r} if m in sys.modules], 'code:', code, file=sys.stderr)"
    )
    source = Path(package.__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=source, check=True)
    reads_operations = words[0] in ("list", "check", "show")  # declared beside their references, which are NumPy's
    assert done.stderr.splitlines()[-1] == f"heavy: {['numpy'] if reads_operations else []} code: 0"


@pytest.mark.parametrize("command", ["list", "show", "check", "schema"])
def test_every_command_has_an_example_in_its_help(command: str) -> None:
    outcome = hwsim(command, "--help")
    assert outcome.code == 0
    assert f"Example: hwsim {command}" in outcome.out


def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--debug", "show", "nothing"], ["show", "nothing", "--debug"]):
        with pytest.raises(CatalogError):
            hwsim(*words)
    monkeypatch.setenv("HWSIM_DEBUG", "1")
    with pytest.raises(CatalogError):
        hwsim("show", "nothing")


def test_an_interrupt_ends_with_130_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app_module, "print_welcome", interrupt)
    outcome = hwsim()
    assert outcome.code == 130
    assert outcome.err == "error: interrupted\n"


def test_a_reader_that_stops_early_is_no_error() -> None:
    source = Path(package.__file__).resolve().parent.parent
    shell = f"{shlex.quote(sys.executable)} -m hwsim schema machine | head -c 10"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, cwd=source, check=False)
    assert done.stderr == ""


def test_output_into_a_pipe_has_no_colour_codes() -> None:
    done = hwsim_process("show", "course_cpu")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_the_module_gives_the_exit_code_of_the_command_line() -> None:
    """`python -m hwsim` is the same as `hwsim`, also for scripts that look at what it returns."""
    good, bad = (
        subprocess.run([sys.executable, "-m", "hwsim", *words], capture_output=True, timeout=60, check=False)
        for words in (["--help"], ["run", "no_such_workload"])
    )
    assert (good.returncode, bad.returncode) == (0, 2)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sgemm", "matmul"),
        ("gemv", "matvec"),
        ("flash_attention", "attention_fused"),
        ("conv", "conv2d"),
        ("saxpy", "triad"),
    ],
)
def test_what_libraries_call_a_kernel_is_answered_with_its_name_here(typed: str, meant: str) -> None:
    done = hwsim("run", "zen3", typed)
    assert done.code == 2
    assert f"did you mean '{meant}'?" in done.err
