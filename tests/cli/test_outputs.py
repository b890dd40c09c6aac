"""What commands write: whole or not at all, never onto what they read, and readable wherever it goes."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hwsim as hwsim_package
from hwsim.errors import OutputError
from hwsim.files import forget_inputs, note_input, private_folder, write_text, written
from tests.cli.command_line import hwsim

SOURCE = Path(hwsim_package.__file__).resolve().parent.parent
MATMUL = ("course_cpu", "matmul_tiled", "n=16", "tile=4")
SWEEP = ("sweep", "course_cpu", "matmul_tiled", "n=16,17", "tile=4")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each file that commands read."""
    folder = tmp_path_factory.mktemp("made")
    own = (SOURCE / "machines" / "course_cpu.yaml").read_text()
    (folder / "m.yaml").write_text(own.replace("name: course_cpu", "name: m"))
    (folder / "base.yaml").write_text(own.replace("name: course_cpu", "name: base"))
    (folder / "v.yaml").write_text("format: 1\nname: v\nextends: base.yaml\ndescription: a variant\n")
    (folder / "t.din").write_text("0 100\n1 200\n" * 50)
    assert hwsim(*SWEEP, "--out", str(folder / "s.db"), "--executor", "inprocess").code == 0
    assert hwsim("run", *MATMUL, "--json", str(folder / "r.json")).code == 0
    (folder / "link.json").symlink_to("r.json")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a folder of its own, with a last run of its own, and the compiled code of all."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder, symlinks=True)
    os.link(folder / "r.json", folder / "hard.json")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(private_folder()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget_inputs()
    return folder


ONTO_INPUT = (
    ("s.db", ("export", "s.db", "-o", "s.db", "--format", "csv")),
    ("s.db", ("export", "s.db", "-o", "./s.db", "--format", "json", "--full")),
    ("s.db", ("export", "s.db", "-o", "s.db", "--format", "parquet")),
    ("s.db", ("report", "s.db", "-o", "s.db")),
    ("r.json", ("report", "r.json", "-o", "r.json")),
    ("r.json", ("report", "r.json", "-o", "link.json")),
    ("r.json", ("report", "r.json", "-o", "hard.json")),
    ("s.db", (*SWEEP, "--out", "s.db", "--json", "s.db")),
    ("m.yaml", ("sweep", "m.yaml", "matmul_tiled", "n=16", "tile=4", "--out", "t.db", "--json", "m.yaml")),
    ("m.yaml", ("run", "m.yaml", "matmul_tiled", "n=16", "tile=4", "--json", "m.yaml")),
    ("m.yaml", ("run", "m.yaml", "matmul_tiled", "n=16", "tile=4", "--timeline", "m.yaml")),
    ("m.yaml", ("run", "m.yaml", "matmul_tiled", "n=16", "tile=4", "--energy-csv", "m.yaml")),
    ("base.yaml", ("run", "v.yaml", "matmul_tiled", "n=16", "tile=4", "--json", "base.yaml")),
    ("m.yaml", ("compare", "m.yaml,course_cpu", "matmul_tiled", "n=16", "tile=4", "--json", "m.yaml")),
    ("m.yaml", ("roofline", "m.yaml", "--json", "m.yaml")),
    ("m.yaml", ("tune", "m.yaml", "matmul_tiled", "n=16", "tile=4,8", "--json", "m.yaml")),
    ("t.din", ("replay", "m.yaml", "t.din", "--json", "t.din")),
    ("m.yaml", ("replay", "m.yaml", "t.din", "--json", "m.yaml")),
)


@pytest.mark.parametrize(("file", "words"), ONTO_INPUT, ids=[" ".join(words) for _, words in ONTO_INPUT])
def test_output_onto_input_is_refused_and_the_input_stays(here: Path, file: str, words: tuple[str, ...]) -> None:
    before = Path(file).read_bytes()
    done = hwsim(*words)
    assert Path(file).read_bytes() == before
    assert done.code == 2, done
    assert "is read here, and would be replaced; choose another name" in done.err


def test_two_outputs_of_one_command_do_not_share_a_file(here: Path) -> None:
    done = hwsim("run", "m.yaml", "matmul_tiled", "n=16", "tile=4", "--json", "x.json", "--timeline", "./x.json")
    assert done.code == 2
    assert "--json writes this file already" in done.err


def test_a_tensor_that_is_read_is_not_written(here: Path) -> None:
    import numpy as np

    np.save("a.npy", np.zeros((16, 16)))
    before = Path("a.npy").read_bytes()
    Path("w.yaml").write_text("format: 1\nname: w\nextends: matmul_tiled\ninputs: {A: a.npy}\n")
    done = hwsim("run", "m.yaml", "w.yaml", "n=16", "tile=4", "--json", "a.npy")
    assert (done.code, Path("a.npy").read_bytes() == before) == (2, True), done


def test_what_another_command_has_read_may_be_written(here: Path) -> None:
    assert hwsim("report", "r.json", "-o", "page.html").code == 0
    assert hwsim("run", *MATMUL, "--json", "r.json").code == 0


# Whole or not at all ------------------------------------------------------------------------------------------------

OUTPUTS = (
    ("old.json", ("run", *MATMUL, "--json", "old.json")),
    ("old.json", ("run", *MATMUL, "--timeline", "old.json")),
    ("old.csv", ("run", *MATMUL, "--energy-csv", "old.csv")),
    ("old.png", ("run", *MATMUL, "--plot", "old.png")),
    ("old.html", ("report", "r.json", "-o", "old.html")),
    ("old.csv", ("export", "s.db", "-o", "old.csv")),
    ("old.json", ("export", "s.db", "-o", "old.json", "--full")),
    ("old.json", ("replay", "course_cpu", "t.din", "--json", "old.json")),
)


def with_small_files(words: tuple[str, ...], most: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command whose files cannot grow beyond `most` bytes, as on a disk that is full."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-m", "hwsim", *words], capture_output=True, text=True, check=False, timeout=120, cwd=folder,
        env=environment, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )  # fmt: skip


@pytest.mark.parametrize(("file", "words"), OUTPUTS, ids=[" ".join(words) for _, words in OUTPUTS])
def test_a_full_disk_leaves_the_older_file_whole(
    here: Path, monkeypatch: pytest.MonkeyPatch, file: str, words: tuple[str, ...]
) -> None:
    """Half of the file is written, then there is no more room."""
    Path(file).write_text("precious")
    real = os.fsync

    def full(number: int) -> None:
        if "hwsim-" in str(Path(f"/proc/self/fd/{number}").readlink()):
            os.ftruncate(number, 10)
            raise OSError(28, "No space left on device")
        real(number)

    monkeypatch.setattr("os.fsync", full)
    done = hwsim(*words)
    assert Path(file).read_text() == "precious"
    assert done.code == 2, done
    assert "cannot be written: the disk is full (No space left on device); nothing was changed" in done.err
    assert not list(here.glob(".hwsim-*")), "nothing is left lying about"


def test_a_disk_that_is_really_full_leaves_the_older_file_whole(here: Path) -> None:
    Path("old.html").write_text("precious")
    done = with_small_files(("report", "r.json", "-o", "old.html"), 4096, here)
    assert (done.returncode, Path("old.html").read_text()) == (2, "precious"), done.stderr
    assert "the disk is full" in done.stderr
    assert not list(here.glob(".hwsim-*"))


def test_a_writer_that_is_interrupted_leaves_the_older_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("precious")
    with pytest.raises(KeyboardInterrupt), written(file) as half:
        half.write(b"new")
        raise KeyboardInterrupt
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "x", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)


def test_a_new_file_has_the_permissions_of_new_files(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_devices_are_written_as_they_are() -> None:
    write_text(Path("/dev/null"), "x")
    assert not Path("/dev/null").is_file()
    with pytest.raises(OutputError, match="/dev/full cannot be written: the disk is full"):
        write_text(Path("/dev/full"), "x" * 100_000)


def test_a_file_that_was_read_is_refused_by_any_name(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("old")
    (tmp_path / "folder").mkdir()
    note_input(file)
    for name in (file, tmp_path / "folder" / ".." / "x"):
        with pytest.raises(OutputError, match="is read here"):
            write_text(name, "new")
    forget_inputs()
    write_text(file, "new")


# Wherever it goes ---------------------------------------------------------------------------------------------------


def process(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    return subprocess.run(
        [sys.executable, "-m", "hwsim", *words],
        capture_output=True,
        check=False,
        timeout=120,
        cwd=folder,
        env=variables,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_output_that_is_not_utf8_is_no_traceback(here: Path, encoding: str) -> None:
    done = process("run", *MATMUL, folder=here, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert "matmul_tiled" in done.stdout.decode(encoding)


def test_json_on_an_output_that_is_not_utf8_says_the_same(here: Path) -> None:
    Path("n.yaml").write_text("format: 1\nname: n\nextends: m.yaml\ndescription: größer × 2 µs\n")
    plain = process("show", "n.yaml", "--json", folder=here, PYTHONIOENCODING="utf-8")
    other = process("show", "n.yaml", "--json", folder=here, PYTHONIOENCODING="ascii")
    assert json.loads(plain.stdout) == json.loads(other.stdout)


@pytest.mark.parametrize("words", [("list",), ("export", "s.db"), ("run", *MATMUL, "--json", "-")])
def test_a_reader_that_goes_away_ends_it_quietly(here: Path, words: tuple[str, ...]) -> None:
    command = f"{shlex.quote(sys.executable)} -m hwsim {' '.join(words)} | head -c 10"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=here, env=environment, timeout=120)
    assert done.stderr == ""
