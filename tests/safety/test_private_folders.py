"""What is kept between runs lies in folders of the user's own, or nowhere; and what is damaged there is made again."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import hwsim as hwsim_package
from hwsim.files import private_folder, private_folders, trouble
from tests.cli.command_line import hwsim

SOURCE = Path(hwsim_package.__file__).resolve().parent.parent
COMPILED = str(private_folder())
"""Where the compiled code of all tests is."""
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
ONE_FUNCTION = """
import numpy as np
from hwsim.jit import compiled, why_not_kept

@compiled
def plus_one(numbers):
    return numbers[2] + 1

print(plus_one(np.arange(3)), why_not_kept())
"""


def run_one(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that compiles one small function; `folder` holds its program."""
    program = folder / "one.py"
    if not program.exists():
        program.write_text(ONE_FUNCTION)
    variables = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    variables |= {"PYTHONPATH": str(SOURCE), **environment}
    return subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=120, env=variables
    )


def code_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.code"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_folders_are_made_for_the_user_alone(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        folder = private_folder("code")
    finally:
        os.umask(before)
    assert folder == tmp_path / "cache" / "hwsim" / "code"
    assert {each.stat().st_mode & 0o777 for each in (folder, folder.parent, folder.parent.parent)} == {0o700}


@pytest.mark.skipif(not ROOT, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in (tmp_path / "cache" / "hwsim" / "code", temporary / f"hwsim-{os.geteuid()}"):
        folder.mkdir(parents=True)
        os.chown(folder, 65534, 65534)
        assert trouble(folder) == "it belongs to another user"
    assert private_folder("code") is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_in_is_not_used(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "hwsim"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert trouble(folder) == "others may write in it"
    assert private_folder() == temporary / f"hwsim-{os.geteuid()}"


def test_a_folder_below_one_that_everybody_may_write_in_is_not_used(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may rename in the folder above puts another in its place."""
    open_to_all = tmp_path / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(open_to_all))
    assert private_folder() == temporary / f"hwsim-{os.geteuid()}"
    open_to_all.chmod(0o1777)
    assert private_folder() == open_to_all / "hwsim"


@pytest.mark.parametrize("cache", ["", "relative/path"])
def test_an_empty_or_relative_cache_folder_means_the_home_folder(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert private_folder() == tmp_path / ".cache" / "hwsim"


def test_without_a_home_there_is_the_temporary_folder(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/1/nowhere")
    assert list(private_folders()) == [temporary / f"hwsim-{os.geteuid()}"]


def test_a_user_without_a_home_is_no_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert list(private_folders()) == [temporary / f"hwsim-{os.geteuid()}"]


# Compiled code ------------------------------------------------------------------------------------------------------


def test_a_prepared_folder_runs_no_code(tmp_path: Path) -> None:
    """The home cannot be written, and in the temporary folder somebody has put a cache of his own."""
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {mark}",)

    temporary = tmp_path / "tmp"
    (tmp_path / "first").mkdir()
    real = run_one(tmp_path, HOME="/proc/1/nowhere", TMPDIR=str(tmp_path / "first"))
    assert real.returncode == 0, real.stderr
    (tmp_path / "first").rename(temporary)
    found = code_files(temporary)
    assert found, "there is a place to attack"
    for file in found:
        file.write_bytes(pickle.dumps(Evil()))
        file.with_suffix(".nbi").write_bytes(pickle.dumps(Evil()))
    for folder in temporary.iterdir():
        folder.chmod(0o777)
    done = run_one(tmp_path, HOME="/proc/1/nowhere", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 "), done
    assert "others may write in it" in done.stdout
    assert not mark.exists()


def plus_one(number: int) -> int:
    return number + 1


def compiled_once(folder: Path) -> int:
    """How often a fresh compiled function found its code in a folder."""
    from hwsim.jit import StandIn
    from hwsim.machine_code import find_code

    function = StandIn(plus_one, kept=True)
    compiled = []

    def build() -> object:
        compiled.append(True)
        return function._build((2,))

    code = find_code("plus_one", "source", (int,), folder, build)
    assert code([2]) == 3
    return 1 - len(compiled)


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "rubbish"])
def test_a_damaged_file_of_compiled_code_is_made_again(tmp_path: Path, damage: str) -> None:
    assert (compiled_once(tmp_path), compiled_once(tmp_path)) == (0, 1)
    (file,) = code_files(tmp_path)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    bad = {"empty": b"", "truncated": whole[: len(whole) // 2], "flipped": bytes(flipped), "rubbish": b"\x80x" * 99}
    file.write_bytes(bad[damage])
    assert (compiled_once(tmp_path), compiled_once(tmp_path)) == (0, 1)


def test_compiled_code_that_cannot_be_kept_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled_once(tmp_path / "nowhere") == 0
    assert compiled_once(tmp_path) == 0
    (file,) = code_files(tmp_path)
    file.unlink()
    file.mkdir()
    assert compiled_once(tmp_path) == 0

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    file.rmdir()
    monkeypatch.setattr(Path, "write_bytes", full)
    assert compiled_once(tmp_path) == 0
    assert not list(tmp_path.iterdir())


# The last run -------------------------------------------------------------------------------------------------------

RUN = ("run", "course_cpu", "matmul_tiled", "tile=4")


@pytest.fixture
def kept(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with a run in it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", COMPILED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert hwsim(*RUN, "n=16").code == 0
    assert "n=16" in hwsim("explain").out
    return tmp_path / "cache" / "hwsim"


def test_a_run_that_cannot_be_kept_is_not_mistaken_for_an_older_one(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    done = hwsim(*RUN, "n=20")
    assert done.code == 0
    assert "this run is not kept for hwsim explain" in done.err
    assert "the disk is full" in done.err
    told = hwsim("explain")
    assert (told.code, "there is no last run" in told.err) == (2, True), told


def test_a_cache_folder_that_was_taken_away_is_replaced_by_another(kept: Path, temporary: Path) -> None:
    kept.chmod(0o777)
    assert hwsim(*RUN, "n=20").code == 0
    assert (temporary / f"hwsim-{os.geteuid()}" / "last-run.json").exists()
    assert "n=20" in hwsim("explain").out
    kept.chmod(0o700)
    assert "n=20" in hwsim("explain").out, "the newer of the two"
    assert hwsim(*RUN, "n=24").code == 0
    assert "n=24" in hwsim("explain").out


@pytest.mark.parametrize("damage", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"machine": "x"}'])
def test_a_damaged_last_run_says_what_to_do(kept: Path, damage: bytes) -> None:
    for file in (kept / "last-run.json", *(kept / "runs").iterdir()):
        file.write_bytes(damage)
    told = hwsim("explain")
    assert told.code == 2
    assert "give its command again" in told.err


def test_runs_at_the_same_time_leave_a_whole_last_run(kept: Path) -> None:
    from threading import Thread

    from hwsim.cli.run import recall, remember

    results = [hwsim_package.run("course_cpu", "matmul_tiled", n=n, tile=4) for n in (16, 20, 24, 28)]
    threads = [Thread(target=lambda one=one: [remember(one) for _ in range(5)]) for one in results]
    for thread in threads:
        thread.start()
    seen = [recall(None).to_json() for _ in range(10)]
    for thread in threads:
        thread.join()
    assert {recall(None).to_json(), *seen} <= {one.to_json() for one in results}
    assert [file.name for file in kept.glob("*last*")] == ["last-run.json"]
    assert not list(kept.glob(".hwsim-*"))
