"""Whole models against measurements: the comparison runs what `hwsim model` runs, and can fail."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hwsim.errors import SpecError
from hwsim.models.load import load_model
from hwsim.models.run import run
from hwsim.spec.variant import with_parameters
from hwsim.validation.models import COLUMNS, _machine, pytorch_seconds, served_seconds, validate
from hwsim.validation.report import Report
from hwsim.validation.serving import BURST, SWEEPS, ServingRow
from hwsim.validation.table import read_table, shipped
from hwsim.validation.tpu import _app

HEAD = "machine,model,mode,seq,batch,variant,e2e_ms,pred_roofline_ms,pred_neusight_ms\n"


def compared(path: Path) -> Report:
    found = list(validate(path))[-1]
    assert isinstance(found, Report)
    return found


def table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


def test_a_row_is_what_the_model_command_runs(tmp_path: Path) -> None:
    asked = {"precision": "fp32", "phase": "forward", "prompt": 512, "batch": 8, "kernels": "eager"}
    model = with_parameters(load_model("bert_large").model, asked)
    milliseconds = 1e3 * run(_machine("h100"), model, math=False).time_s  # type: ignore[arg-type]
    found = compared(table(tmp_path, f"h100,bert_large,inf,512,8,,{milliseconds!r},1,2"))
    assert found.total.mape == 0
    assert found.passed


def test_a_wrong_time_misses_its_bar_and_other_machines_are_named(tmp_path: Path) -> None:
    found = compared(table(tmp_path, "h100,bert_large,inf,512,16,,70,90,80", "abacus,bert_large,inf,512,8,,9,,",
                           "h100,bert_large,inf,512,8,zero3,9,,", "h100,switch4,inf,512,8,,9,,"))  # fmt: skip
    assert not found.passed
    assert any("there is no machine abacus" in note for note in found.notes)
    assert any("the variant zero3 is not known" in note for note in found.notes)
    assert any("the numbers of switch4 are not known" in note for note in found.notes)
    assert any("NeuSight 14.3%" in note and "a roofline 28.6%" in note for note in found.notes)


def test_a_served_token_is_within_a_tenth_of_the_measured_one() -> None:
    """Llama-3.1-8B on one H100 under TensorRT-LLM; `hwsim validate models` has all rows."""
    path = shipped("models_serving.csv")
    for record in read_table(path, ("tpot_ms",))[::7]:
        assert 1e3 * served_seconds(path, record) == pytest.approx(float(record["tpot_ms"]), rel=0.10)


def test_a_damaged_row_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"rows\.csv:2: seq: 'long' is not a whole number"):
        compared(table(tmp_path, "h100,bert_large,inf,long,16,,70,,"))


def test_rows_of_several_devices_are_what_a_system_takes(tmp_path: Path) -> None:
    """One microbatch goes through four stages one after the other: as long as on one device. Four copies of a quarter
    of the batch, or four shares of every layer, are faster, and at most four times."""
    rows = [f"h100,bert_large,inf,512,8,{variant},1,," for variant in ("", "dp4", "tp4", "pp4_1")]
    path = table(tmp_path, *rows)
    one, dp, tp, pp = (pytorch_seconds(path, record) for record in read_table(path, COLUMNS))
    assert pp == pytest.approx(one, rel=0.01)
    assert one / 4.4 < dp < one / 2
    assert one / 4.4 < tp < one / 1.5
    assert {bar.name for bar in compared(path).bars} == {"inference, mean error", "on several devices, mean error"}


def test_models_that_are_not_stock_come_from_a_config_beside_the_table(tmp_path: Path) -> None:
    """The same numbers as the stock model of that config; a name that would lead elsewhere is not followed."""
    (tmp_path / "configs").mkdir()
    about = {
        "model_type": "gpt2",
        "n_layer": 36,
        "n_embd": 1280,
        "n_head": 20,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    (tmp_path / "configs" / "mine.json").write_text(json.dumps(about))
    rows = (f"h100,{name},inf,1024,4,,100,,\n" for name in ("mine", "gpt2_large", "../configs/mine"))
    path = tmp_path / "rows.csv"
    path.write_text(HEAD + "".join(rows))
    mine, stock, _ = read_table(path, COLUMNS)
    assert pytorch_seconds(path, mine) == pytest.approx(pytorch_seconds(path, stock), rel=1e-9)
    assert any("../configs/mine are not known" in note for note in compared(path).notes)


def served(prompt: int, output: int, version: str = "0.9") -> ServingRow:
    return ServingRow("2", "a/b", "h100", "vllm", version, "bf16", prompt, output, 4, 1, 0.1, 0.01)


def test_requests_come_as_their_benchmark_sends_them() -> None:
    """Four users: five requests each of 90 to 110 % of the length; ten of 80 to 100 % where lengths are mixed; one."""
    usual = served(1000, 500).stream().requests
    assert len(usual) == 20
    assert 900 <= min(each.prompt for each in usual) < 1000 < max(each.prompt for each in usual) <= 1100
    mixed = served(1024, 1024).stream().requests
    assert len(mixed) == 40
    assert max(each.prompt for each in mixed) <= 1024 + 1
    assert min(each.prompt for each in mixed) >= 0.8 * 1024 - 1
    burst = served(1000, 500, BURST).stream().requests
    assert [(each.prompt, each.output) for each in burst] == [(1000, 500)] * 4


def test_an_application_of_the_paper_fills_its_array_as_counted() -> None:
    """A quarter of the cells useful while active half of the time: filled by half, so that layers of 256 x 256 cells
    hold half of 65,536 weights each."""
    record = {
        "app": "made", "layers": "4", "batch": "8", "vector_layers": "0", "weights_m": str(4 * 4 * 32768 / 1e6),
        "tops": "90", "stall_pct": "10", "active_pct": "50", "useful_pct": "25", "side": "", "claimed": "yes",
        "line": "2",
    }  # fmt: skip
    app = _app(Path("tpu.csv"), record)
    assert (app.matrices, app.batch, app.stall, app.claimed, app.rate) == (4, 8, 0.1, True, 1.0)
    assert app.widths == (round(512 * 0.5**0.5),) * 5  # two tiles of 256 to a side, of which the root of a half is used


def test_a_server_with_one_place_fewer_than_users_lets_the_last_of_them_wait() -> None:
    row = ServingRow("2", "meta-llama/Llama-3.1-8B-Instruct", "h100", "trtllm", "0", "bf16", 128, 128, 4, 1, 0.1, 0.01)
    assert row.server() == {"requests": 3}
    assert replace(row, users=1).server() == {}
    assert replace(row, backend="vllm").server() == {}


def test_requests_of_a_sweep_have_one_length_and_steps_of_two_prompts() -> None:
    """Ten requests for each of four users; only of the servers, versions and prompts that the sweep had."""
    for backend, version in SWEEPS:
        row = replace(served(1024, 500, version), backend=backend)
        assert row.server() == {"tokens": 2 * 1024 + 4}
        assert [(each.prompt, each.output) for each in row.stream().requests] == [(1024, 500)] * 40
        for other in (
            replace(row, version="0.9"), replace(row, prompt=1000), replace(row, backend="sglang"),
            replace(row, backend=next(each for each, _ in SWEEPS if each != backend)),
        ):  # fmt: skip
            assert not other.swept and other.server() == {}
            assert len(other.stream().requests) in (20, 40)
            assert len({each.prompt for each in other.stream().requests}) > 1


@pytest.mark.parametrize("record", read_table(shipped("tpu.csv"), ("app",)), ids=lambda record: record["app"])
def test_a_stack_of_an_application_has_the_layers_and_weights_that_were_published(record: dict[str, str]) -> None:
    """Jouppi and others, 2017, table 1. Weights of the matrices are those of the application, as far as its array was
    filled; those of a given side are as many as hold them."""
    app = _app(shipped("tpu.csv"), record)
    layers, weights = int(record["layers"]), float(record["weights_m"]) * 1e6
    assert len(app.widths) == layers + 1
    if record["side"]:
        assert set(app.widths) == {int(record["side"])}
        assert app.matrices * int(record["side"]) ** 2 == pytest.approx(weights, rel=0.01)
    else:
        held = sum(wide * out for wide, out in pairwise(app.widths))
        assert app.matrices == layers
        assert held == pytest.approx(weights, rel=0.1)
    assert (app.name, app.batch, app.vector_layers) == (
        record["app"], int(record["batch"]), int(record["vector_layers"])
    )  # fmt: skip
    program = app.kernel()
    assert len([loop for loop in program.loops if "matrix" in loop.name]) == max(app.matrices, layers)
    assert len(program.loops) == max(app.matrices, layers) + app.vector_layers
