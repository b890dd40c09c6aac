"""Nothing that a run says has changed unnoticed: every machine with every workload, against rows kept in `runs`.

These numbers are our own, and no theory stands behind them: a change that means to move them writes them again with
`make golden-update`, and the difference is reviewed like code. `make test` looks at a part, `make golden` at all.
"""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import rows
from observe import MACHINES, WORKLOADS, Seen, observe

from hwsim.files import write_text

ONE_OF_EACH_CLASS = ("course_cpu", "a100_40", "tpu_v1", "tpu_v4", "eyeriss", "ladder_asic")
SHOWN = (
    "add", "attention_fused", "attention_naive", "conv2d", "layernorm", "matmul", "matmul_naive", "matmul_parallel",
    "matmul_tiled", "softmax", "transformer_block",
)  # fmt: skip
"""Workloads whose screens are kept in full."""
LONG = ("attention_backward", "attention_gqa", "attention_multihead", "matmul_strassen", "transformer_block")
"""Workloads that take some seconds on a CPU: `make golden` alone looks at these."""
STRIDE = 35
"""`make test` looks at one row in so many, other ones on every machine: about 25 seconds with the screens."""


@cache
def seen(machine: str, workload: str) -> Seen:
    with TemporaryDirectory() as folder:
        return observe(machine, workload, Path(folder))


def chosen(machine: str, everything: bool) -> list[str]:
    """The workloads whose rows are looked at: all, or some on this machine and others on the next."""
    if everything:
        return WORKLOADS
    return [workload for workload in WORKLOADS[MACHINES.index(machine) % STRIDE :: STRIDE] if workload not in LONG]


def shown(everything: bool) -> list[str]:
    """The workloads whose screens are looked at."""
    return [workload for workload in SHOWN if everything or workload not in LONG]


def wants_all(config: pytest.Config) -> bool:
    """Whether all rows and screens are asked for, to compare them or to write them."""
    return bool(config.getoption("--golden-all") or config.getoption("--update-golden"))


@pytest.mark.parametrize("machine", MACHINES)
def test_every_run_is_as_it_was(machine: str, pytestconfig: pytest.Config) -> None:
    workloads = chosen(machine, wants_all(pytestconfig))
    found = {workload: rows.row(workload, seen(machine, workload)) for workload in workloads}
    if pytestconfig.getoption("--update-golden"):
        rows.write_rows(machine, found)
    if complaint := rows.objections(machine, rows.read_rows(machine), found):
        pytest.fail(complaint, pytrace=False)


@pytest.mark.parametrize("machine", ONE_OF_EACH_CLASS)
def test_every_screen_is_as_it_was(machine: str, pytestconfig: pytest.Config) -> None:
    changes = []
    for workload in shown(wants_all(pytestconfig)):
        file = rows.SCREENS / machine / f"{workload}.txt"
        found = rows.screens(machine, workload, seen(machine, workload))
        if pytestconfig.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, found)
        changes += difference(file, found)
    if changes:
        pytest.fail("\n".join([*changes, rows.UPDATE]), pytrace=False)


def difference(file: Path, found: str) -> list[str]:
    """The lines of a screen that are not as in its file."""
    expected = file.read_text(encoding="utf-8") if file.is_file() else ""
    names = (f"expected: {file.parent.name}/{file.name}", "found")
    return list(difflib.unified_diff(expected.splitlines(), found.splitlines(), *names, n=1, lineterm=""))


def test_every_machine_and_every_workload_has_its_golden_row(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        pytest.skip("rows are being written")
    assert sorted(file.stem for file in rows.RUNS.glob("*.txt")) == MACHINES
    assert {machine: list(rows.read_rows(machine)) for machine in MACHINES} == dict.fromkeys(MACHINES, WORKLOADS)


def test_every_screen_that_is_kept_is_looked_at(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        pytest.skip("screens are being written")
    kept = {(file.parent.name, file.stem) for file in rows.SCREENS.glob("*/*.txt")}
    assert kept == {(machine, workload) for machine in ONE_OF_EACH_CLASS for workload in SHOWN}


def test_a_part_of_the_rows_still_has_every_machine_and_every_workload_but_the_long_ones() -> None:
    part = {machine: chosen(machine, everything=False) for machine in MACHINES}
    assert all(len(workloads) >= 2 for workloads in part.values())
    assert {workload for workloads in part.values() for workload in workloads} == {*WORKLOADS} - {*LONG}


@pytest.mark.parametrize("column", [name for name in rows.WIDTHS if name != "workload"])
def test_a_row_that_differs_in_any_column_is_reported_with_both_versions(column: str) -> None:
    digests = ("683f9d27cd2b", "bcd1826e0bf6", "eced9aabe1b4")
    cells = ("matmul", "1.336738e-05", "18849", "9.068e-04", "120000", "yes", "2e-04", *digests, "starting kernels")
    golden = "".join(f"{cell:<{width}}" for cell, width in zip(cells, rows.WIDTHS.values(), strict=True))
    start = rows.start(column)
    altered = golden[:start] + "7" + golden[start + 1 :]
    complaint = rows.objections("a100_40", {"matmul": golden}, {"matmul": altered})
    assert complaint.splitlines() == [
        f"matmul on a100_40: {column}",
        f"  expected  {golden}",
        f"  found     {altered}",
        rows.UPDATE,
    ]
    assert rows.objections("a100_40", {"matmul": golden}, {"matmul": golden}) == ""


def test_a_run_that_is_refused_now_or_for_another_reason_is_reported() -> None:
    golden = rows.read_rows("a100_40")
    refused = golden["pointer_chase"]
    assert "InputError" in refused
    assert rows.differing(refused, refused + ".") == ["all"]
    assert rows.differing(golden["add"], refused) == ["all"]
    assert rows.NO_ROW in rows.objections("a100_40", {}, {"add": golden["add"]})


def test_an_error_may_differ_by_what_rounding_explains_and_no_more() -> None:
    golden = rows.read_rows("course_cpu")["matmul"]
    assert " 2e-07 " in golden
    assert rows.same(golden, golden.replace(" 2e-07 ", " 3e-07 "))
    assert rows.same(golden, golden.replace(" 2e-07 ", " 8e-07 "))  # a few roundings of fp32, by the order of a sum
    for wrong in (" 2e-06 ", " 0e+00 ", " 2e-16 "):
        assert rows.differing(golden, golden.replace(" 2e-07 ", wrong)) == ["error"]
    exact = golden.replace(" 2e-07 ", " 2e-16 ")
    assert rows.differing(exact, golden) == ["error"]
    assert rows.differing(exact, exact.replace(" 2e-16 ", " 8e-16 ")) == ["error"]


def test_a_row_that_says_the_same_is_not_written_again(tmp_path: Path) -> None:
    golden = rows.read_rows("course_cpu")["matmul"]
    rows.write_rows("course_cpu", {"matmul": golden}, tmp_path)
    rows.write_rows("course_cpu", {"matmul": golden.replace(" 2e-07 ", " 3e-07 ")}, tmp_path)
    assert rows.read_rows("course_cpu", tmp_path) == {"matmul": golden}


def test_digits_that_depend_on_the_blas_library_are_masked() -> None:
    head, inputs = "✓ verified: max rel err {}, rms {} vs NumPy", "  rms error {} with that of the inputs, {} dB"
    screen = f"{head.format('5.1e-04', '2.8e-04')}\n{inputs.format('3.5e-04', '69.1')}  "
    other = f"{head.format('5.2e-04', '2.7e-04')}\n{inputs.format('3.4e-04', '69.2')}"
    assert rows.masked(screen) == rows.masked(other)
    assert rows.masked(screen) != rows.masked(other.replace("verified", "WRONG ANSWER"))
    assert rows.masked("max rel err 1e-3, rms 1e-4\n12 cycles") != rows.masked("max rel err 1e-3, rms 1e-4\n13 cycles")


def test_a_screen_that_differs_is_shown_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "matmul.txt"
    file.write_text("time 1 s\nenergy 2 J\n", encoding="utf-8")
    assert difference(file, "time 1 s\nenergy 2 J\n") == []
    assert difference(file, "time 1 s\nenergy 3 J\n")[-2:] == ["-energy 2 J", "+energy 3 J"]
