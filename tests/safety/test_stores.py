"""A store survives what happens to files, or says what happened; a sweep takes nothing for final that may change."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hwsim as hwsim_package
from hwsim.errors import HwsimError, InputError, PassingError
from hwsim.sweep.grid import SweepRequest, make_request
from hwsim.sweep.point import Answer, RunInputs, run_inputs
from hwsim.sweep.result_set import ResultSet, Row, load_results
from hwsim.sweep.runner import Finished, run_request
from hwsim.sweep.store import ResultStore, StoreError
from tests.cli.command_line import hwsim

SOURCE = Path(hwsim_package.__file__).resolve().parent.parent
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
NOBODY = 65534


def request(*sizes: int) -> SweepRequest:
    return make_request("course_cpu", "matmul_naive", {"n": list(sizes)}, {})


def sweep(path: Path, asked: SweepRequest, retry: bool = False) -> list[Finished]:
    with ResultStore(path) as store:
        return list(run_request(asked, store, "inprocess", retry=retry))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "s.db"
    sweep(path, request(*range(16, 64, 4)))
    return path


# Tensors of the user's own ------------------------------------------------------------------------------------------


@pytest.fixture
def tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepRequest:
    """A sweep over a workload that reads a.npy."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.ones((16, 16)))
    Path("w.yaml").write_text("format: 1\nname: w\nextends: matmul_tiled\ninputs: {A: a.npy}\n")
    return make_request("course_cpu", "w.yaml", {"n": 16, "tile": [4, 8], "precision": "fp16"}, {})


def test_a_key_holds_the_content_of_a_tensor_not_its_path(tensors: SweepRequest, tmp_path: Path) -> None:
    sweep(tmp_path / "s.db", tensors)
    assert [news.reused for news in sweep(tmp_path / "s.db", tensors)] == [True, True]
    np.save("a.npy", np.full((16, 16), 1 / 3))
    assert [news.reused for news in sweep(tmp_path / "s.db", tensors)] == [False, False]
    with ResultStore(tmp_path / "s.db") as store:
        results = load_results(store, store.begin(tensors), tensors)
        assert {row["error_max_rel"] > 0 for row in results} == {True}, "thirds are rounded, ones are not"
        assert len(results) == 2


def test_a_tensor_that_changes_while_the_sweep_runs_is_noticed(
    tensors: SweepRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(inputs: RunInputs) -> str:
        np.save("a.npy", np.full((16, 16), random.random()))
        return run_inputs(inputs)

    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", meddle)
    news = sweep(tmp_path / "s.db", tensors)
    assert [each.status for each in news] == ["lost", "lost"]
    assert "has changed since the sweep began" in str(news[0].error)


def test_a_missing_tensor_is_not_for_ever(tensors: SweepRequest, tmp_path: Path) -> None:
    text = "format: 1\nname: w\nextends: matmul_tiled\nsizes: {n: 16}\nschedule: {tile: 4}\ninputs: {A: a.npy}\n"
    Path("w.yaml").write_text(text)
    alone = make_request("course_cpu", "w.yaml", {}, {})
    Path("a.npy").rename("away.npy")
    with ResultStore(tmp_path / "s.db") as store:
        (news,) = run_request(alone, store, "inprocess")
        assert (news.status, news.error) == ("lost", "inputs: there is no file a.npy")
    with pytest.raises(InputError, match=r"there is no file a\.npy"):
        sweep(tmp_path / "s.db", tensors)
    Path("away.npy").rename("a.npy")
    assert [news.status for news in sweep(tmp_path / "s.db", alone)] == ["done"]
    sweep(tmp_path / "whole.db", alone)
    with ResultStore(tmp_path / "s.db") as store, ResultStore(tmp_path / "whole.db") as whole:
        assert store.digest() == whole.digest(), "nothing of the fault is left"


# What is final ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [OSError(28, "No space left on device"), MemoryError(), PassingError("not there"), ZeroDivisionError("ours")],
    ids=["full disk", "memory", "passing", "mistake of ours"],
)
def test_a_passing_fault_is_tried_again_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(inputs: RunInputs) -> str:
        raise fault

    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", fail)
    assert [news.status for news in sweep(tmp_path / "s.db", request(16))] == ["lost"]
    monkeypatch.undo()
    assert [(news.status, news.reused) for news in sweep(tmp_path / "s.db", request(16))] == [("done", False)]


def test_a_refusal_of_the_model_is_final_until_one_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(inputs: RunInputs) -> str:
        raise InputError("it does not fit")

    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", refuse)
    assert [news.status for news in sweep(tmp_path / "s.db", request(16))] == ["failed"]
    monkeypatch.undo()
    assert [(news.status, news.reused) for news in sweep(tmp_path / "s.db", request(16))] == [("failed", True)]
    assert [news.status for news in sweep(tmp_path / "s.db", request(16), retry=True)] == ["done"]
    assert [news.reused for news in sweep(tmp_path / "s.db", request(16), retry=True)] == [True], "results stay"


def test_the_command_line_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("sweep", "course_cpu", "matmul_tiled", "n=16", "tile=4", "--executor", "inprocess", "--out")
    monkeypatch.setattr("hwsim.sweep.runner.run_inputs", lambda inputs: 1 / 0)
    told = hwsim(*words, str(tmp_path / "s.db"))
    assert "1 of them by chance: the same command tries again" in told.out
    monkeypatch.undo()
    assert hwsim(*words, str(tmp_path / "s.db"), "--retry").code == 0


def test_a_worker_with_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for refusal in (None, "it does not fit"):
        found = Answer("0.1+other", None if refusal else "{}", refusal)
        monkeypatch.setattr("hwsim.sweep.runner.answer", lambda function, inputs, found=found: found)
        with ResultStore(tmp_path / "s.db") as store:
            with pytest.raises(InputError, match=r"computes with model 0\.1\+other, and this is model .* not kept"):
                list(run_request(request(16), store, "inprocess"))
            assert store.count() == 0


# Folders that cannot be written -------------------------------------------------------------------------------------


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, too."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def read_without_rights(path: Path, words: str) -> subprocess.CompletedProcess[str]:
    """A Python statement about the store `path`, by somebody who cannot write in its folder."""
    path.parent.chmod(0o555)
    program = f"from hwsim.sweep.store import ResultStore\nstore = ResultStore({str(path)!r}, write=False)\n{words}"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program]
    if ROOT:
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=variables)


needs_others = pytest.mark.skipif(
    ROOT and (shutil.which("setpriv") is None or not SOURCE.stat().st_mode & stat.S_IXOTH),
    reason="root may write anywhere",
)


def left_open(source: Path, target: Path) -> None:
    """A copy of a store whose last point is only in its log, as after `kill -9`."""
    shutil.copy(source, target)
    with ResultStore(target) as store:
        list(run_request(request(200), store, "inprocess"))
        for ending in ("", "-wal"):
            shutil.copy(f"{target}{ending}", f"{target}{ending}.kept")
    for ending in ("", "-wal"):
        Path(f"{target}{ending}.kept").rename(f"{target}{ending}")


@needs_others
def test_a_store_in_a_read_only_folder_is_read_whole(filled: Path, open_folder: Path) -> None:
    shutil.copy(filled, open_folder / "s.db")
    done = read_without_rights(open_folder / "s.db", "print(store.count())")
    assert done.stdout == "12\n", done.stderr


@needs_others
def test_a_log_in_a_read_only_folder_is_not_skipped(filled: Path, open_folder: Path) -> None:
    """After a kill the last points are only in the log: all of them are read, or none."""
    left_open(filled, open_folder / "s.db")
    done = read_without_rights(open_folder / "s.db", "print(store.count())")
    assert done.returncode == 1, done.stdout
    assert "its last points are in s.db-wal" in done.stderr
    assert "copy s.db and s.db-wal together to a folder that can be written" in done.stderr
    open_folder.chmod(0o755)
    with ResultStore(open_folder / "s.db", write=False) as store:
        assert store.count() == 13


# Damage -------------------------------------------------------------------------------------------------------------


def exported(path: Path) -> str:
    with ResultStore(path, write=False) as store:
        return json.dumps([(each.status, each.data) for key in store.members(1).values() for each in [store.need(key)]])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_store_is_refused_and_not_written(filled: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "s.db"
    cut = filled.read_bytes()[: int(share * filled.stat().st_size)]
    path.write_bytes(cut)
    with pytest.raises(StoreError, match=r"is damaged .* nothing was changed: move it away|is not a sweep"):
        exported(path)
    assert path.read_bytes() == cut
    if share:
        with pytest.raises(StoreError, match=r"is damaged .* nothing was changed: move it away|is not a sweep"):
            sweep(path, request(16))
        assert path.read_bytes() == cut


def test_flipped_bytes_never_change_a_result(filled: Path, tmp_path: Path) -> None:
    """Two hundred times one byte: the points are the same, or the store is refused; never other numbers."""
    dice, whole, data = random.Random(14), exported(filled), filled.read_bytes()
    path, refused = tmp_path / "s.db", 0
    for _ in range(200):
        broken = bytearray(data)
        broken[dice.randrange(len(data))] ^= dice.randrange(1, 256)
        path.write_bytes(broken)
        try:
            assert exported(path) == whole
        except HwsimError as error:
            assert str(path) in str(error)
            refused += 1
        assert path.read_bytes() == bytes(broken), "reading changes nothing"
    assert refused > 50


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE members SET position = 99 WHERE position = 3",
        "UPDATE members SET key = (SELECT key FROM members WHERE position = 4) WHERE position = 3",
        "UPDATE points SET status = 'failed' WHERE key = (SELECT key FROM members WHERE position = 3)",
        "UPDATE sweeps SET request = replace(request, '16', '17')",
        "DELETE FROM points WHERE key = (SELECT key FROM members WHERE position = 3)",
        "DELETE FROM machines",
    ],
)
def test_rows_that_are_not_as_they_were_written_are_refused(filled: Path, tmp_path: Path, change: str) -> None:
    shutil.copy(filled, tmp_path / "s.db")
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute(change)
    db.close()
    told = hwsim("export", str(tmp_path / "s.db"))
    assert told.code == 2
    assert "is damaged" in told.err


def test_a_store_without_marks_is_read_and_gets_them(filled: Path, tmp_path: Path) -> None:
    """As 0.2.0 wrote it."""
    path = tmp_path / "s.db"
    shutil.copy(filled, path)
    with sqlite3.connect(path) as db:
        for table in ("points", "sweeps", "members"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN mark")
    db.close()
    with ResultStore(path, write=False) as store:
        assert store.count() == 12
        assert len(load_results(store, 1, request(*range(16, 64, 4)))) == 12
    sweep(path, request(*range(16, 68, 4)))
    with ResultStore(path, write=False) as store:
        assert len(store.digest()) == 13


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    program = f"import hwsim; hwsim.sweep(n='16..400:4', tile=4, out={str(path)!r}, executor='inprocess')"
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if path.exists() and path.with_name("s.db-wal").exists() and path.with_name("s.db-wal").stat().st_size > 40_000:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    with ResultStore(path) as store:
        assert store.count() > 0
        assert all(each[0] == "done" for each in store.digest().values())


# Large sweeps -------------------------------------------------------------------------------------------------------


def made(count: int, ties: bool, metrics: int = 2) -> ResultSet:
    names = ("time_s", "energy_j", "error_max_rel")[:metrics]
    rows = []
    for number in range(count):
        values = (1.0, 2.0, 3.0) if ties else (float(number), float(count - number), float(number % 7))
        metric = dict(zip(names, values, strict=False))
        rows.append(Row(number, str(number), {"n": number}, "done", None, dict(metric)))
    asked = make_request("course_cpu", "matmul_tiled", {"n": [1, 2]}, {})
    return ResultSet(asked, rows, lambda key: pytest.fail("not asked for"))


@pytest.mark.parametrize(("ties", "metrics"), [(True, 2), (False, 2), (True, 3), (False, 3)])
def test_the_front_of_20_000_points_takes_seconds(ties: bool, metrics: int) -> None:
    started = time.process_time()
    names = ("time", "energy", "error")[:metrics]
    assert len(made(20_000, ties, metrics).pareto(*names).rows) == 20_000
    assert time.process_time() - started < 15


def test_the_front_is_what_comparing_all_with_all_finds() -> None:
    dice = random.Random(3)
    for metrics in (1, 2, 3, 4):
        names = ("time_s", "energy_j", "error_max_rel", "cycles")[:metrics]
        rows = [
            Row(n, str(n), {"n": n}, "done", None, {name: float(dice.randrange(4 * metrics)) for name in names})
            for n in range(60)
        ]
        results = ResultSet(request(16, 17), rows, lambda key: pytest.fail("not asked for"))
        costs = {row.position: tuple(row.metrics[name] for name in names) for row in rows}
        front = {
            n for n, cost in costs.items()
            if not any(o != cost and all(a <= b for a, b in zip(o, cost, strict=True)) for o in costs.values())
        }  # fmt: skip
        assert {row.position for row in results.pareto(*names)} == front


def test_whole_results_are_exported_in_the_memory_of_one(filled: Path, tmp_path: Path) -> None:
    import tracemalloc

    shutil.copy(filled, tmp_path / "s.db")
    sweep(tmp_path / "s.db", request(*range(16, 40)))
    words = ("export", str(tmp_path / "s.db"), "--full", "-o", str(tmp_path / "x.json"))
    hwsim(*words)
    tracemalloc.start()
    assert hwsim(*words).code == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(json.loads((tmp_path / "x.json").read_text())) == 24
    assert peak < (tmp_path / "x.json").stat().st_size * 0.7


def test_exported_json_has_no_infinity(tensors: SweepRequest, tmp_path: Path) -> None:
    """An answer beyond the largest number of its format is infinitely wrong."""
    np.save("a.npy", np.full((16, 16), 6e4))
    sweep(tmp_path / "s.db", tensors)
    with ResultStore(tmp_path / "s.db") as store:
        rows = load_results(store, 1, tensors)
        assert any(value == float("inf") for value in rows[0].metrics.values()), "there is one to write"

    def strict(word: str) -> None:
        raise AssertionError(word)

    for words in ((), ("--full",)):
        told = hwsim("export", str(tmp_path / "s.db"), "--format", "json", *words)
        assert len(json.loads(told.out, parse_constant=strict)) == 2
    told = hwsim("sweep", "course_cpu", "w.yaml", "n=16", "tile=4,8", "precision=fp16", "--out", "s.db", "--json", "-")
    assert len(json.loads(told.out, parse_constant=strict)) == 2


# Names --------------------------------------------------------------------------------------------------------------


def test_an_editors_files_and_broken_ones_do_not_break_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("machines", "workloads"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / ".#mine.yaml").symlink_to("user@host.1234:5678")
        (folder / "gone.yaml").symlink_to("nowhere.yaml")
        (folder / "#mine.yaml").write_text("half a fi")
        (folder / "broken.yaml").write_text("{a: [")
        (folder / "binary.yaml").write_bytes(bytes(range(256)))
        (folder / "empty.yaml").write_text("")
        (folder / "folder.yaml").mkdir()
    told = hwsim("list", "--json")
    assert told.code == 0, told.err
    found = {entry["name"]: entry["description"] for entry in json.loads(told.out)["machines"]}
    assert {"broken", "binary", "empty", "course_cpu"} <= found.keys()
    assert not {".#mine", "#mine", "gone", "folder"} & found.keys()
    assert found["broken"] == "(has errors; see: hwsim check broken)"
