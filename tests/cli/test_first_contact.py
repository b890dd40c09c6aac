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
    ("words", "meant"),
    [
        (("run", "A100", "matmul"), "there is no machine 'A100'; did you mean 'a100_40', 'a100_80', 'a100_pcie_40' or "
         "'a100_pcie_80'?; hwsim list machines shows them"),
        (("run", "A100-40", "matmul"), "did you mean 'a100_40'?"),
        (("compare", "zen", "matmul"), "did you mean 'zen3' or 'zen4'?"),
        (("run", "zen3", "Matmul"), "did you mean 'matmul'?"),
        (("run", "zen3", "matmu"), "did you mean 'matmul'?"),
        (("model", "llama3", "h100"), "there is no model 'llama3'; did you mean 'llama3_70b' or 'llama3_8b'?"),
    ],
)  # fmt: skip
def test_a_name_is_found_whatever_its_letters_and_by_its_beginning(words: tuple[str, ...], meant: str) -> None:
    done = hwsim(*words)
    assert (done.code, done.out) == (2, "")
    assert meant in done.err
    assert len(done.err.splitlines()) == 1
    assert len(done.err) < 200


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "h100", "matmul", "--tile", "32"), "tile is a parameter: write tile=32"),
        (("run", "h100", "matmul", "--precision=fp16"), "precision is a parameter: write precision=fp16"),
        (("run", "course_cpu", "matmul_tiled", "--v1", "4"), "v1 is a parameter: write v1=4"),
        (("model", "llama3_8b", "h100", "--batch", "8"), "batch is a parameter: write batch=8"),
        (("sweep", "--tile", "8..32:x2"), "tile is a parameter: write tile=8..32:x2"),
    ],
)
def test_a_parameter_written_as_an_option_is_told_how_it_is_written(words: tuple[str, ...], says: str) -> None:
    done = hwsim(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"error: no such option: {next(w for w in words if w[0] == '-').split('=')[0]}; {says}\n"


def test_an_option_that_is_nothing_at_all_is_said_as_before() -> None:
    done = hwsim("run", "h100", "matmul", "--foo", "3")
    assert done.code == 2
    assert "No such option: --foo" in done.err


@pytest.mark.parametrize("command", ["compare", "sweep", "run"])
def test_a_system_where_one_machine_is_needed_is_told_which_commands_take_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left behind: a sweep once made its store first."""
    monkeypatch.chdir(tmp_path)
    done = hwsim(command, "8xh100", "llama3_70b")
    assert done.code == 2
    assert "'8xh100' is a system of several devices" in done.err
    assert "hwsim model MODEL 8xh100" in done.err
    assert not list(tmp_path.iterdir())


def test_the_list_of_parameters_that_a_message_names_is_there() -> None:
    wrong = hwsim("run", "course_cpu", "matmul_tiled", "size=64")
    assert wrong.code == 2
    assert len(wrong.err.splitlines()) == 1
    assert "its sizes are n, m, k; hwsim show matmul_tiled lists all" in wrong.err
    listed = hwsim("show", "matmul_tiled").out
    assert "name=value: n (a whole number), m (a whole number), k (a whole number)" in listed
    assert "hwsim show matmul_tiled --on MACHINE" in listed


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
