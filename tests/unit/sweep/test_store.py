"""The store: what is in it survives, and what is wrong with it is said."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import hwsim
from hwsim.sweep import store as store_module
from hwsim.sweep.grid import SweepRequest, make_request
from hwsim.sweep.runner import run_request
from hwsim.sweep.store import FORMAT, ResultStore, StoreError

ROOT = Path(__file__).resolve().parents[3]


def request(*sizes: int) -> SweepRequest:
    return make_request("course_cpu", "matmul_naive", {"n": list(sizes)}, {})


def fill(path: Path, *sizes: int) -> None:
    with ResultStore(path) as store:
        for _ in run_request(request(*(sizes or (16, 17))), store, "inprocess"):
            pass


def test_a_point_takes_less_than_10_kb(tmp_path: Path) -> None:
    fill(tmp_path / "s.db", *range(16, 56))
    assert (tmp_path / "s.db").stat().st_size / 40 < 10_000


def test_another_kind_of_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    with pytest.raises(StoreError, match="is not a sweep of hwsim"):
        ResultStore(path)
    assert path.read_text() == "dear diary, " * 100


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="is not a sweep of hwsim"):
        ResultStore(path)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    with pytest.raises(StoreError, match=f"format {FORMAT + 1}.*writes format {FORMAT}"):
        ResultStore(tmp_path / "s.db")


def test_a_store_of_another_model_is_refused_for_writing_and_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "s.db")
    monkeypatch.setattr(store_module, "model_version", lambda: "9.9+new")
    with ResultStore(tmp_path / "s.db") as store:
        with pytest.raises(StoreError, match=r"this is model 9\.9\+new.*--out"):
            store.check_model()
        assert store.count() == 2


def test_a_damaged_store_says_so_and_keeps_its_bytes(tmp_path: Path) -> None:
    fill(tmp_path / "s.db", *range(16, 46))
    path = tmp_path / "s.db"
    broken = bytearray(path.read_bytes())
    broken[4096 * 3 : 4096 * 5] = os.urandom(8192)
    path.write_bytes(broken)
    with pytest.raises(StoreError, match="is damaged"), ResultStore(path) as store:
        store.digest()
    assert path.read_bytes() == bytes(broken)


def test_a_point_whose_bytes_are_damaged_is_not_taken_for_a_result(tmp_path: Path) -> None:
    fill(tmp_path / "s.db")
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("UPDATE points SET result = substr(result, 1, 100)")
    with pytest.raises(StoreError, match="is damaged"), ResultStore(tmp_path / "s.db") as store:
        store.digest()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """SQLite reports the same error when its page limit is reached as when the disk has no more room."""
    fill(tmp_path / "s.db", 16)
    sizes = tuple(range(16, 40))
    with ResultStore(tmp_path / "s.db") as store:
        pages = store._pragma("page_count")
        store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
        with pytest.raises(StoreError, match="the disk is full; what was finished is kept"):
            list(run_request(request(*sizes), store, "inprocess"))
        kept = store.count()
    assert 1 < kept < len(sizes)
    fill(tmp_path / "s.db", *sizes)
    fill(tmp_path / "whole.db", *sizes)
    with ResultStore(tmp_path / "s.db") as resumed, ResultStore(tmp_path / "whole.db") as whole:
        assert resumed.digest() == whole.digest()


def test_places_that_cannot_hold_a_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        ResultStore(tmp_path / "nowhere" / "s.db")
    with pytest.raises(StoreError, match="is a folder"):
        ResultStore(tmp_path)
    with pytest.raises(StoreError, match="there is no file"):
        ResultStore(tmp_path / "s.db", write=False)
    assert not (tmp_path / "s.db").exists()


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write, and has /proc for it"
)
def test_a_read_only_folder_is_refused() -> None:
    with pytest.raises(StoreError, match="read-only; choose another with --out"):
        ResultStore(Path("/proc/self/s.db"))


def test_two_processes_may_write_to_one_store(tmp_path: Path) -> None:
    program = (
        "import sys, hwsim\n"
        "hwsim.sweep('course_cpu', 'matmul_naive', n=sys.argv[2], out=sys.argv[1], executor='inprocess')\n"
    )
    ranges = ("16..31", "24..39")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "s.db"), each], env=environment)
        for each in ranges
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    hwsim.sweep("course_cpu", "matmul_naive", n="16..39", out=tmp_path / "whole.db", executor="inprocess")
    with ResultStore(tmp_path / "s.db") as both, ResultStore(tmp_path / "whole.db") as whole:
        assert both.digest() == whole.digest()
        assert len(both.sweeps()) == 2


def test_the_digest_of_a_store_has_every_point_with_its_result(tmp_path: Path) -> None:
    fill(tmp_path / "s.db", 16, 17, 18)
    with ResultStore(tmp_path / "s.db", write=False) as store:
        found = store.digest()
    assert [(status, error) for status, _, error in found.values()] == [("done", None)] * 3
    assert len({result for _, result, _ in found.values()}) == 3
