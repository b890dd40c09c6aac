"""`hwsim model` and `hwsim import`: what people see, what goes into files, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hwsim.catalog import load_workload
from tests.cli.command_line import hwsim
from tests.unit.models.test_importers import LLAMA


def test_one_screen_has_memory_phases_operations_and_the_next_step() -> None:
    found = hwsim("model", "llama3_8b", "h100", "prompt=256", "generate=8", "batch=2")
    assert found.code == 0, found.err
    for words in ("8.03 G parameters", "kv cache (131 kB a token)", "fits: ", "prefill ", "decode ", "a token",
                  "layer.up", "bound by", "accuracy rms", "next  hwsim model llama3_8b h100"):  # fmt: skip
        assert words in found.out
    assert len(found.out.splitlines()) < 50


def test_without_words_the_models_are_listed() -> None:
    found = hwsim("model")
    assert found.code == 0
    assert "llama3_70b" in found.out
    assert "llama3_70b" in hwsim("list", "models").out


def test_json_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert hwsim("model", "bert_base", "a100_80", "batch=4", "--no-math", "--json", str(path)).code == 0
    data = json.loads(path.read_text())
    about = data["work"]["model"]
    operations = [row for phase in about["phases"] for row in phase["operations"]]
    assert sum(row["seconds"] for row in operations) == pytest.approx(data["time_s"])
    assert sum(row["joules"] for row in operations) == pytest.approx(data["energy_j"])
    assert sum(size for name, size in about["memory"].items() if name != "total") == about["memory"]["total"]
    assert about["metrics"]["sequences_per_s"] == pytest.approx(4 / data["time_s"])
    assert data["work"]["macs"] == pytest.approx(about["macs"], rel=0.01)
    explained = hwsim("explain", str(path))
    assert explained.code == 0
    assert "forward, by operation" in explained.out


def test_a_training_step_that_was_written_is_read_again(tmp_path: Path) -> None:
    """Its operations add up to the step but for rounding, which once was less than no time of the host."""
    path = tmp_path / "r.json"
    words = ("bert_large", "a100_80", "phase=train", "batch=8", "--no-math")
    assert hwsim("model", *words, "--json", str(path)).code == 0
    about = json.loads(path.read_text())["work"]["model"]
    assert min(about["phases"][0]["bounds"].values()) > 0
    assert hwsim("explain", str(path)).code == 0


def test_what_does_not_fit_says_what_would() -> None:
    found = hwsim("model", "llama3_70b", "a100_80", "prompt=64", "generate=2", "--no-math")
    assert found.code == 0
    assert "does not fit: " in found.out
    assert "with weights=w8a16 it would" in found.out
    assert "weights=w8a16" in found.out.rpartition("next")[2]


def test_training_has_three_parts_and_recompute_keeps_less() -> None:
    plain = hwsim("model", "gpt2", "a100_80", "phase=train", "prompt=256", "batch=4", "--no-math", "--json", "-")
    again = hwsim("model", "gpt2", "a100_80", "phase=train", "prompt=256", "batch=4", "recompute=true", "--no-math",
                  "--json", "-")  # fmt: skip
    first, second = (json.loads(each.out) for each in (plain, again))
    parts = {row["part"] for row in first["work"]["model"]["phases"][0]["operations"]}
    assert parts == {"forward", "backward", "update"}
    kept = [each["work"]["model"]["memory"] for each in (first, second)]
    assert kept[1]["activations"] < kept[0]["activations"] / 3
    assert kept[0]["optimizer"] == 3 * 4 * 124_439_808  # two means and the weights in fp32
    assert second["time_s"] > first["time_s"]


def test_models_are_workloads_to_compare_and_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = hwsim("compare", "a100_80,h100", "bert_base", "--no-math")
    assert found.code == 0, found.err
    assert "bert_base" in found.out
    swept = hwsim("sweep", "h100", "gpt2", "batch=1,8", "weights=fp16,w4a16", "prompt=64", "generate=4", "--no-math",
                  "--executor", "inprocess", "--plot", "p.png")  # fmt: skip
    assert swept.code == 0, swept.err
    assert (tmp_path / "p.png").stat().st_size > 10_000
    exported = hwsim("export", "sweep.db", "--format", "csv")
    assert "tokens_per_s" in exported.out.splitlines()[0]


def test_a_plot_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.svg"
    assert hwsim("model", "gpt2", "h100", "prompt=64", "generate=4", "--no-math", "--plot", str(path)).code == 0
    text = path.read_text()
    for words in ("prefill: ", "decode: ", "memory: ", "layer.qkv"):
        assert words in text


def test_an_imported_file_is_a_model_that_runs(tmp_path: Path) -> None:
    source, path = tmp_path / "config.json", tmp_path / "tiny.yaml"
    source.write_text(json.dumps(LLAMA))
    found = hwsim("import", str(source), "-o", str(path))
    assert found.code == 0, found.err
    assert "understood" in found.out
    assert load_workload(path).spec.name == "tiny"
    assert hwsim("check", str(path)).code == 0
    for file in (path, source):
        run = hwsim("model", str(file), "course_cpu", "precision=fp32", "prompt=8", "generate=2")
        assert run.code == 0, run.err
        assert "the whole model" in run.out


PROGRAM = str(Path(__file__).parents[1] / "unit" / "models" / "programs" / "resnet_small.pt2")


def test_an_exported_program_runs_where_no_torch_is_and_on_a_grid_of_elements(tmp_path: Path) -> None:
    found = hwsim(
        "model", PROGRAM, "eyeriss", "precision=int16", "--no-math", "--timeline", str(tmp_path / "line.json")
    )
    assert found.code == 0, found.err
    assert "7,410 parameters; 506,016 multiply-adds" in found.out
    lanes = json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    assert {"1 phase", "2 layer"} <= {each["args"].get("name") for each in lanes if each["ph"] == "M"}


def test_other_commands_say_how_to_make_a_model_file_of_an_exported_program() -> None:
    for command in ("run", "compare"):
        found = hwsim(command, "h100", PROGRAM)
        assert found.code == 2
        assert "hwsim import" in found.err


def test_the_screen_says_from_how_few_rows_a_bar_comes_and_what_its_table_counts() -> None:
    """Three models were measured whole on an H100: the bar is no narrower knowledge than one from hundreds of rows."""
    screen = hwsim("model", "gpt2", "h100", "prompt=64", "generate=8", "--no-math").out
    assert "only 3 measured rows that were not fitted" in screen
    head = next(line for line in screen.splitlines() if line.startswith("phase "))
    assert head.split("  ")[0] == "phase"
    assert "layers" in head and "time in all" in head and "times" not in head
    many = hwsim("run", "h100", "matmul", "n=256", "--no-math").out
    assert "measured rows that were not fitted" in many and "only" not in many.split("measured rows")[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("llama3_8b",), "a model and a machine are needed"),
        (("llama9", "h100"), "there is no model 'llama9'"),
        (("llama3_8b", "h100", "batch=0"), "batch=0: must be a whole number of at least 1"),
        (("llama3_8b", "h100", "batsch=8"), "did you mean 'batch'"),
        (("llama3_8b", "h100", "weights=fp7"), "weights=fp7: must be"),
        (("bert_base", "h100", "phase=decode"), "bert_base generates nothing"),
        (("matmul", "h100"), "matmul is a workload of one operation"),
        (("none.json", "h100"), "there is no file none.json"),
        (("none.pth", "h100"), "ends in .yaml"),
        ((PROGRAM, "h100", "prompt=64"), "prompt=64: resnet_small takes the same input every time"),
        (("resnet18", "h100", "generate=8"), "generate=8: resnet18 takes the same input every time"),
        (("llama3_8b", "a100_80", "weights=fp8"), "no lanes rate for fp8_e4m3"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(words: tuple[str, ...], says: str) -> None:
    found = hwsim("model", *words, "--no-math")
    assert found.code == 2
    assert says in found.err
    assert "Traceback" not in found.err


def test_a_model_file_with_mistakes_is_told_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("""format: 1
name: bad
description: Not right.
op: model
blocks:
  - name: layer
    repeat: layers
    operations:
      - {name: a, op: linear, out: 8}
      - {name: b, op: linaer, out: 8}
      - {name: c, op: attention, heads: 2, kv_heads: 2}
""")
    found = hwsim("check", str(path))
    assert found.code == 2
    assert "'linaer' is not one of" in found.err + found.out
    assert "head_dim" in found.err + found.out


def test_an_import_does_not_write_onto_what_it_reads(tmp_path: Path) -> None:
    source = tmp_path / "config.json"
    source.write_text(json.dumps(LLAMA))
    assert hwsim("import", str(source), "-o", str(source)).code == 2
    assert json.loads(source.read_text()) == LLAMA


def test_sweeps_and_comparisons_of_models_say_tokens_per_second(tmp_path: Path) -> None:
    words = "gpt2", "phase=decode", "prompt=64"
    rows = json.loads(hwsim("compare", "t4,a100_40", *words, "--json", "-").out)
    for row in rows:  # one sequence: a token for each step
        assert row["tokens_per_s"] == pytest.approx(1 / row["time_s"])
    shown = hwsim("compare", "t4,a100_40", *words).out
    assert "throughput" in shown and shown.count("token/s") == 2
    swept = hwsim("sweep", "a100_40", *words, "batch=1,8", "--out", str(tmp_path / "s.db")).out
    assert "tokens per second" in swept and "lines filled" not in swept
    mixed = hwsim("compare", "a100_40", "gpt2,resnet18").out
    assert "token/s" in mixed and "input/s" in mixed


def test_activations_grow_with_the_batch_until_prompts_are_read_in_pieces_and_the_screen_says_so() -> None:
    sizes, words = [], []
    for batch in (1, 4, 64):
        text = " ".join(hwsim("model", "gpt2", "a100_40", f"batch={batch}", "prompt=1024", "--no-math").out.split())
        found = re.search(r"([0-9.]+) MB activations \(([0-9,]+) tokens at a time(.*?)\)", text)
        assert found is not None
        sizes.append((float(found[1]), found[2]))
        words.append(found[3])
    assert [tokens for _, tokens in sizes] == ["1,024", "4,096", "8,192"]
    assert sizes[0][0] * 3.9 < sizes[1][0] < sizes[2][0] < 2.1 * sizes[1][0]
    assert words == ["", "", ", as engines read prompts"]
