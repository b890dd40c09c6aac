"""`hwsim validate`: what it prints and writes, and how it fails."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import hwsim

from hwsim.results.bar_table import shipped_table, table_file
from hwsim.validation import report
from hwsim.validation.standing import standing_file
from hwsim.validation.table import shipped

Rows = list[dict[str, str]]


def shipped_rows() -> Rows:
    with shipped("cache.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def as_text(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """Writes the three smallest rows of the table, one field of the second (line 3) changed."""

    def write(**changed: str) -> Path:
        rows = sorted(shipped_rows(), key=lambda row: int(row["accesses"]))[:3]
        rows[1] = {**rows[1], **changed}
        file = tmp_path / "mine.csv"
        file.write_text(as_text(rows))
        return file

    return write


def test_the_shipped_table_matches_in_every_row() -> None:
    outcome = hwsim("validate", "cache", "--json", "-")
    report = json.loads(outcome.out)
    assert outcome.code == 0
    assert {"family", "rows", "matched", "mape", "median", "groups", "worst"} <= set(report)
    assert (report["family"], report["rows"], report["matched"]) == ("cache", 40, 40)
    assert (report["mape"], report["median"], report["worst"]) == (0.0, 0.0, [])
    assert sum(group["rows"] for group in report["groups"].values()) == 40
    assert all(set(group) == {"rows", "matched", "mape", "median"} for group in report["groups"].values())


def test_people_see_the_groups_and_the_bar(small: Callable[..., Path]) -> None:
    outcome = hwsim("validate", "cache", "--data", str(small()))
    assert outcome.code == 0
    assert "holds: every counter of every row: 3 rows (bar: 3 rows)" in outcome.out


def test_one_changed_number_is_found_and_its_row_named(small: Callable[..., Path]) -> None:
    file = small()
    row = list(csv.DictReader(file.open()))[1]
    right = int(row["tb_L1_read_miss"])
    file = small(tb_L1_read_miss=str(right + 1))
    outcome = hwsim("validate", "cache", "--data", str(file), "--json", "-")
    report = json.loads(outcome.out)
    assert outcome.code == 1
    assert (report["rows"], report["matched"]) == (3, 2)
    assert [worst["id"] for worst in report["worst"]] == [row["id"]]
    assert report["worst"][0]["detail"] == f"tb_L1_read_miss: {right} simulated, {right + 1} expected"
    printed = hwsim("validate", "cache", "--data", str(file))
    assert printed.code == 1
    assert row["id"] in printed.out
    assert "missed: every counter of every row" in printed.out


def test_json_goes_into_a_file_too(small: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    outcome = hwsim("validate", "cache", "--data", str(small()), "--json", str(target))
    assert outcome.code == 0
    assert json.loads(target.read_text())["matched"] == 3


def test_error_bars_are_written_only_when_it_is_said(
    small: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of caches have no times: what was there is there again."""
    before = {
        name: file().read_text(encoding="utf-8") for name, file in (("bars", table_file), ("rows", standing_file))
    }
    shipped_table()
    (tmp_path / "rows").write_text(before["rows"], encoding="utf-8")
    monkeypatch.setattr("hwsim.results.bar_table.table_file", lambda: tmp_path / "bars")
    monkeypatch.setattr("hwsim.validation.standing.standing_file", lambda: tmp_path / "rows")
    assert "written" not in hwsim("validate", "cache", "--data", str(small())).err
    assert not (tmp_path / "bars").exists()
    outcome = hwsim("validate", "cache", "--data", str(small()), "--write")
    assert outcome.code == 0 and f"written: {tmp_path / 'bars'}, {tmp_path / 'rows'}" in outcome.err
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in before} == before


def test_a_sample_takes_so_many_rows_of_each_group_and_the_same_for_a_seed() -> None:
    first, again = (hwsim("validate", "cache", "--sample", "1", "--seed", "4", "--json", "-") for _ in range(2))
    assert first.out == again.out
    assert json.loads(first.out)["rows"] == 13


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n": "many"}, "n: 'many' is not a whole number"),
        ({"tb_L1_reads": ""}, "tb_L1_reads: '' is not a whole number"),
        ({"kernel": "mm_jik"}, "kernel: 'mm_jik' is not one of mm_ijk,"),
        ({"levels": "64x8"}, "levels: '64x8' is not of the form 64x8:LRU"),
        ({"levels": "64x8:MRU"}, "levels: '64x8:MRU' is not of the form"),
        ({"levels": "0x8:LRU"}, "levels: '0x8:LRU' is not of the form"),
        ({"line": "48"}, "line: 48 is not a power of two"),
        ({"base_a": "-64"}, "base_a: -64 must not be negative"),
        ({"n": "0"}, "these sizes make no"),
        ({"kernel": "mm_tiled_ijk", "T": "0"}, "these sizes make no mm_tiled_ijk"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(f"{k}={v}" for k, v in value.items()),
)
def test_a_bad_field_is_refused_with_its_line(small: Callable[..., Path], changed: dict[str, str], words: str) -> None:
    file = small(**changed)
    outcome = hwsim("validate", "cache", "--data", str(file))
    assert outcome.code == 2
    assert f"{file}:3: {words}" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in row if name != "lda"} for row in shipped_rows()[:2]]
    file = tmp_path / "mine.csv"
    file.write_text(as_text(rows))
    outcome = hwsim("validate", "cache", "--data", str(file))
    assert outcome.code == 2
    assert f"{file}:1: the column 'lda' is missing" in outcome.err


def test_a_row_that_breaks_off_is_refused_with_its_line(small: Callable[..., Path]) -> None:
    file = small()
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], lines[2][:40]]) + "\n")
    outcome = hwsim("validate", "cache", "--data", str(file))
    assert outcome.code == 2
    assert f"{file}:3: this row has not as many fields as the header" in outcome.err


def test_a_gzipped_table_is_read(small: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "mine.csv.gz"
    file.write_bytes(gzip.compress(small().read_bytes()))
    assert hwsim("validate", "cache", "--data", str(file)).code == 0


def test_a_truncated_gzip_is_refused_after_the_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv.gz"
    whole = gzip.compress(as_text(shipped_rows() * 20).encode())
    file.write_bytes(whole[: len(whole) // 2])
    outcome = hwsim("validate", "cache", "--data", str(file))
    assert outcome.code == 2
    where = outcome.err.split(f"{file}:")[1].split(":")[0]
    assert int(where) > 1
    assert "cannot be read as a CSV table" in outcome.err
    assert "Traceback" not in outcome.err


def test_damaged_gzip_data_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv.gz"
    whole = bytearray(gzip.compress(as_text(shipped_rows()).encode()))
    whole[40:80] = b"\xff" * 40
    file.write_bytes(bytes(whole))
    outcome = hwsim("validate", "cache", "--data", str(file))
    assert outcome.code == 2
    assert "cannot be read as a CSV table" in outcome.err


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01binary"], ids=["empty", "binary"])
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.csv"
    file.write_bytes(content)
    outcome = hwsim("validate", "cache", "--data", str(file))
    assert outcome.code == 2
    assert str(file) in outcome.err


def test_a_file_that_is_not_there_and_a_family_that_is_unknown_are_refused(tmp_path: Path) -> None:
    assert hwsim("validate", "cache", "--data", str(tmp_path / "none.csv")).code == 2
    outcome = hwsim("validate", "cash")
    assert outcome.code == 2
    assert "cache" in outcome.err


def test_without_a_family_all_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FAMILIES", {name: report.FAMILIES[name] for name in ("tpu", "energy")})
    outcome = hwsim("validate")
    assert outcome.code == 0
    assert "grid_layers, energy" in outcome.out
    assert "array_products" in outcome.out
    assert "stated bars hold" in outcome.out


def test_a_table_without_its_family_is_refused(tmp_path: Path) -> None:
    outcome = hwsim("validate", "--data", str(tmp_path / "mine.csv"))
    assert outcome.code == 2
    assert "a table is for one family" in outcome.err
