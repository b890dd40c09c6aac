"""`hwsim validate collectives` and `serving`: what is compared is what runs; rows that were fitted on are left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hwsim

from hwsim.systems.communicate import communicate
from hwsim.systems.spec import load_system
from hwsim.validation.collectives import OPERATIONS
from hwsim.validation.residual import is_held_out

HEAD = "machine,library,op,dtype,devices,elements,latency_us\n"
SERVED = "model,machine,backend,backend_version,precision,isl,osl,batch_size,tp,dp,moe_ep,ttft_ms,tpot_ms\n"


def a_row(held: bool) -> str:
    """The smallest all-reduce of a shape that is held out, or is not."""
    elements = next(size for size in range(4096, 8192) if is_held_out("all_reduce", "half", 8, size) == held)
    return f"h100,NCCL,all_reduce,half,8,{elements},15.7\n"


def test_collectives_compare_what_the_command_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(HEAD + a_row(True) + a_row(False), encoding="utf-8")
    report = json.loads(hwsim("validate", "collectives", "--data", str(file), "--json", "-").out)
    (row,) = report["worst"]
    nbytes = 2 * int(a_row(True).split(",")[5])
    found = communicate(load_system("8xh100"), OPERATIONS["all_reduce"], nbytes)
    assert row["error"] == pytest.approx(abs(found.seconds * 1e6 / 15.7 - 1))
    assert any("1 rows of the table have shapes that constants were fitted on" in note for note in report["notes"])


def test_a_table_of_fitted_rows_alone_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(HEAD + a_row(False), encoding="utf-8")
    outcome = hwsim("validate", "collectives", "--data", str(file))
    assert outcome.code == 2
    assert "no row of this table is held out" in outcome.err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("h100,NCCL,all_reduce,half,3,4096,15\n", "devices are 2, 4 or 8"),
        ("h100,Gloo,all_reduce,half,8,4096,15\n", "library: 'Gloo' is not one of NCCL"),
        ("h100,NCCL,all_reduce,half,8,many,15\n", "'many' is not a whole number"),
    ],
)
def test_bad_rows_are_told(tmp_path: Path, row: str, said: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(HEAD + row, encoding="utf-8")
    outcome = hwsim("validate", "collectives", "--data", str(file))
    assert outcome.code == 2
    assert said in outcome.err


def test_serving_compares_both_times_of_a_row(tmp_path: Path) -> None:
    """The times are made up: what matters is that both are compared, and which rows are not."""
    users = next(n for n in range(4, 16) if is_held_out("meta-llama/Llama-3.1-8B-Instruct", 1024, 64, n, 1))
    rows = (
        f"meta-llama/Llama-3.1-8B-Instruct,h100,trtllm,,,1024,64,{users},1,,1,60,9\nother,h100,vllm,,,1,2,1,1,,1,1,1\n"
    )
    file = tmp_path / "mine.csv"
    file.write_text(SERVED + rows, encoding="utf-8")
    report = json.loads(hwsim("validate", "serving", "--data", str(file), "--json", "-").out)
    assert sorted(name.split()[0] for name in report["groups"]) == ["TPOT", "TTFT"]
    assert {bar["name"].split(":")[0] for bar in report["bars"]} == {"dense models"}
    assert any("1 rows of models or machines that hwsim has not" in note for note in report["notes"])
