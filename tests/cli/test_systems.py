"""`hwsim collective`, `hwsim serve`, and models on systems: what they print, write and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import hwsim

from hwsim.catalog import find
from hwsim.cli.serve import _by_kind
from hwsim.engine import Span
from hwsim.systems.communicate import communicate
from hwsim.systems.spec import load_system, system_names
from hwsim.units import data, rate, seconds


def test_every_shipped_system_says_where_its_numbers_come_from_and_can_talk() -> None:
    assert {
        "dgx_a100",
        "dgx_h100",
        "b200_8",
        "gb200_4",
        "l40s_8",
        "two_nodes_h100",
        "tpu_v4_2x2x1",
        "four_phones",
    } <= set(system_names())
    for name in system_names():
        system = load_system(name)
        assert system.name == name
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"):
            found = communicate(system, op, 1 << 16, devices=min(4, system.count))
            assert (found.elapsed_fs > 0) == (system.count > 1), (name, op)


def test_a_collective_is_shown_with_its_kernels_and_its_formula() -> None:
    outcome = hwsim("collective", "8xh100", "all_reduce", "bytes=64MB")
    assert outcome.code == 0
    assert "all_reduce of 64 MB on 8 x h100, nccl" in outcome.out
    assert "ring, simple" in outcome.out and "switch" in outcome.out
    found = json.loads(hwsim("collective", "8xh100", "bytes=64MB", "algorithm=ring", "--json", "-").out)
    assert found[0]["algorithm"] == "ring"
    assert found[0]["moved"]["h100[0] out"] == 2 * 7 * 8_000_000


def test_a_table_of_collectives_has_time_formula_and_bandwidth_of_each_size() -> None:
    """A ring alone on its links takes as long as its formula; 2 · 3/4 of the bytes leave each of four devices."""
    words = ("collective", "4xl40s", "bytes=1KiB..1MiB:x32")
    outcome = hwsim(*words)
    assert outcome.code == 0
    rows = [line.split("   ") for line in outcome.out.splitlines() if "ring" in line]
    found = json.loads(hwsim(*words, "--json", "-").out)
    assert [each["nbytes"] for each in found] == [1 << 10, 1 << 15, 1 << 20]
    assert len(rows) == 3
    for row, each in zip(rows, found, strict=True):
        size, time, formula, speed, kernel = (cell.strip() for cell in row if cell.strip())
        assert (size, kernel) == (data(each["nbytes"]), each["kernel"])
        assert time == formula == seconds(each["elapsed_fs"] / 1e15)
        assert speed == rate(1.5 * each["nbytes"] / (each["elapsed_fs"] / 1e15), "B")


def test_collectives_over_size_are_drawn(tmp_path: Path) -> None:
    plot, timeline = tmp_path / "c.png", tmp_path / "t.json"
    assert hwsim("collective", "4xl40s", "bytes=1KiB..1MiB:x32", "--plot", str(plot)).code == 0
    assert plot.stat().st_size > 10_000
    assert hwsim("collective", "4xl40s", "bytes=1MiB", "--timeline", str(timeline)).code == 0
    assert {event.get("ph") for event in json.loads(timeline.read_text())["traceEvents"]} == {"M", "X"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("collective", "9xh200"), "the largest system of h200 is dgx_h200, with 8 devices"),
        (("collective", "8xcourse_cpu"), "no system joins course_cpu"),
        (("collective", "8xh100", "all_reduces"), "did you mean 'all_reduce'?"),
        (("collective", "8xh100", "bytes=64"), "has no unit"),
        (("collective", "8xh100", "size=64MB"), "'size' is not one of bytes, library"),
        (("collective", "8xh100", "library=gloo"), "dgx_h100 has nccl, sglang"),
        (("collective", "8xh100", "algorithm=tree"), "has for all_reduce of bf16 on 8 devices: ring, switch"),
        (("collective", "8xh100", "devices=9"), "from 2 to 8"),
        (("serve", "llama3_8b"), "give a model and a system"),
        (("serve", "llama3_8b", "h100", "load=0"), "nobody asks for anything"),
        (("serve", "llama3_8b", "h100", "rate=0"), "no request ever comes"),
        (("serve", "llama3_8b", "h100", "load=4", "rate=2"), "requests come in one way"),
        (("serve", "llama3_8b", "h100", "users=4"), "'users' is not one of"),
        (("serve", "llama3_8b", "h100", "trace=none.csv"), "cannot be read as a CSV table"),
        (("serve", "llama3_8b", "h100", "prompt=600000"), "it would never be served"),
        (("serve", "llama3_70b", "h100"), "more devices (tp=, pp=), weights=fp8"),
        (("serve", "bert_base", "h100"), "makes no tokens one by one"),
        (("serve", "llama3_8b", "8xh100", "tp=16"), "16 devices, and dgx_h100 has 8"),
        (("serve", "llama3_8b", "3xh100"), "tp can be 1, 2, 4, 8, 16, 32"),
        (("model", "gpt2", "8xh100", "tp=8"), "tp can be 1, 2, 3, 4, 6, 12"),
        (("model", "llama3_8b", "8xh100", "tp=8", "dp=2"), "16 devices, and dgx_h100 has 8"),
        (("model", "llama3_8b", "8xh100", "ep=2"), "has no experts to divide"),
        (("model", "llama3_8b", "8xh100", "tp=1", "pp=1", "dp=x"), "dp=x: a whole number is needed"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(words: tuple[str, ...], said: str) -> None:
    outcome = hwsim(*words)
    assert outcome.code == 2, outcome
    assert said in outcome.err


def test_a_system_of_a_machine_that_is_not_there_can_talk_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(__file__).resolve().parents[2].joinpath("systems", "dgx_h100.yaml").read_text(encoding="utf-8")
    (tmp_path / "systems").mkdir()
    text = text.replace("name: dgx_h100", "name: odd").replace("8 x h100", "8 x nowhere")
    (tmp_path / "systems" / "odd.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert hwsim("collective", "8xnowhere").code == 0
    outcome = hwsim("model", "gpt2", "odd", "tp=4")
    assert outcome.code == 2
    assert "hwsim collective needs none, but a model does" in outcome.err


def test_a_model_is_served(tmp_path: Path) -> None:
    plot = tmp_path / "knee.png"
    words = ("serve", "llama3_8b", "h100", "prompt=512", "generate=32", "load=2,8", "requests=48", "spread=0.3")
    outcome = hwsim(*words, "--plot", str(plot))
    assert outcome.code == 0, outcome.err
    assert "Knee at load=8" in outcome.out
    assert plot.stat().st_size > 10_000
    first, second = (hwsim(*words, "--json", "-").out for _ in range(2))
    assert first == second
    for found in json.loads(first):
        assert found["requests"] == 48
        assert found["output_tokens"] == sum(each["output_tokens"] for each in found["counters"])
        assert found["tpot_s"]["mean"] == pytest.approx(found["formula_tpot_s"], rel=0.2)


def test_a_trace_is_served_and_bad_lines_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,prompt,output\n0,100,5\n0.1,200,6\n", encoding="utf-8")
    outcome = hwsim("serve", "llama3_8b", "h100", f"trace={trace}")
    assert outcome.code == 0, outcome.err
    assert "2 requests" in outcome.out
    trace.write_text("arrival,prompt,output\n0,100,5\nsoon,200,6\n", encoding="utf-8")
    outcome = hwsim("serve", "llama3_8b", "h100", f"trace={trace}")
    assert outcome.code == 2
    assert f"{trace}:3: arrival: 'soon' is not a time in seconds" in outcome.err.replace(": : ", ": ")


def test_a_model_is_divided_over_a_system(tmp_path: Path) -> None:
    timeline = tmp_path / "t.json"
    words = ("model", "llama3_8b", "8xh100", "tp=2", "pp=2", "dp=2", "batch=8", "prompt=256", "phase=train")
    outcome = hwsim(*words, "--timeline", str(timeline))
    assert outcome.code == 0, outcome.err
    assert "answers as the whole one" in outcome.out
    head = outcome.out[outcome.out.index("speed-up") : outcome.out.index("training step")]
    assert {"exposed", "talk", "bubble", "compute"} <= set(head.split())
    lanes = {
        event["args"]["name"]
        for event in json.loads(timeline.read_text())["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert {"h100[0]", "h100[3]", "links of stage 0", "link 0 to 1"} <= lanes


def test_a_divided_pass_has_as_many_images_or_tokens_in_a_second_as_its_batch_over_its_time() -> None:
    """64 images on four devices; 8 prompts of 64 tokens, then a token of each in a step."""
    for words, unit_of_work, counts in (
        (("model", "resnet18", "4xl40s", "dp=4", "batch=64"), "image/s", {"pass": 64}),
        (("model", "gpt2", "2xh100", "tp=2", "batch=8", "prompt=64", "generate=4"), "token/s",
         {"prompt": 8 * 64, "token": 8}),
    ):  # fmt: skip
        outcome = hwsim(*words, "--no-math")
        assert outcome.code == 0, outcome.err
        lines = [re.split(r" {2,}", line.strip()) for line in outcome.out.splitlines()]
        assert next(line for line in lines if line[0] == "phase")[2] == "throughput"
        for name, count in counts.items():
            row = next(line for line in lines if line[0] == name)
            amount, unit, mark = row[1].split()
            assert mark == "?", "nobody compared a divided step with hardware"
            time_s = float(amount) * {"ms": 1e-3, "µs": 1e-6}[unit]
            speed, prefixed = row[2].split()
            assert prefixed.removeprefix("k") == unit_of_work
            factor = 1000 if prefixed.startswith("k") else 1
            assert float(speed) * factor == pytest.approx(count / time_s, rel=0.01)


def test_a_divided_model_says_what_it_rests_on_what_bounds_it_what_it_gained_and_what_to_try() -> None:
    words = ("gpt2", "prompt=64", "generate=4", "batch=8")
    outcome = hwsim("model", words[0], "4xh100", "tp=4", *words[1:])
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert "? never compared with hardware (steps of a model on several devices)" in said
    assert re.search(r"the devices compute, bound by \d+\.\d % [a-z]", said)
    assert "next hwsim model gpt2 4xh100 tp=4 prompt=64 generate=4 batch=32" in said
    many = json.loads(hwsim("model", words[0], "4xh100", "tp=4", *words[1:], "--json", "-").out)
    one = json.loads(hwsim("model", words[0], "1xh100", *words[1:], "--json", "-").out)
    assert many["compared"].startswith("never compared with hardware")
    assert many["speed_up"] == pytest.approx(one["seconds"] / many["seconds"])
    assert many["efficiency"] == pytest.approx(many["speed_up"] / 4)
    assert "speed-up over one h100; efficiency is speed-up over 4 devices" in said


def test_layouts_are_searched() -> None:
    outcome = hwsim("tune", "2xh100", "llama3_8b", "batch=4", "prompt=128", "generate=4")
    assert outcome.code == 0, outcome.err
    assert "Best for time: tp=2" in outcome.out


@pytest.mark.parametrize(("metric", "cost"), [("time", "seconds"), ("energy", "joules")])
def test_the_best_layout_is_the_first_and_its_command_gives_it_again(metric: str, cost: str) -> None:
    """What the last of the screen says of the least and the most, and what the command that it names comes to."""
    asked = ("tune", "2xh100", "gpt2", "batch=4", "prompt=64", "generate=2", "--for", metric)
    found = [each for each in json.loads(hwsim(*asked, "--json", "-").out) if not each["why_not"]]
    costs = [each[cost] for each in found]
    assert costs == sorted(costs) and len(costs) > 2
    text = " ".join(hwsim(*asked).out.split())
    assert f"{len(found)} layouts, {len(found)} fit" in text
    (told,) = re.findall(rf"Best for {metric}: .*, the last of {len(found)} layouts", text)
    (ratio,) = re.findall(r"([\d.]+) times as (?:fast|much)", text)
    assert float(ratio) == pytest.approx(costs[-1] / costs[0], rel=0.01), told
    command = text.partition("next: hwsim ")[2].split()
    again = json.loads(hwsim(*command, "--json", "-").out)
    assert again["layout"] == found[0]["layout"]
    assert again[cost] == pytest.approx(costs[0])


def test_systems_and_engines_are_listed_shown_and_checked() -> None:
    assert "dgx_h100" in hwsim("list", "systems").out
    assert "sglang" in hwsim("list", "engines").out
    assert "devices: 4 x h100" in hwsim("show", "4xh100").out
    outcome = hwsim("check", "dgx_h100", "vllm")
    assert (outcome.code, outcome.out) == (0, "dgx_h100: ok, a system\nvllm: ok, an engine\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("topology: switch", "topology: bus"), "a bus says with `shared`"),
        (("devices: 8 x h100", "devices: eight"), "write it as '8 x h100'"),
        (("devices: 8 x h100", "devices: 8 x h100\nnode: 4"), "`between` is for systems of several nodes"),
        (("start: 5.29 us", "start: 5 cycles"), "a link has no clock"),
        (("share: 0.301", "share: 3"), "must be at most 1.5, found 3"),
    ],
)  # fmt: skip
def test_a_wrong_system_file_is_told_with_its_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    text = Path(__file__).resolve().parents[2].joinpath("systems", "dgx_h100.yaml").read_text(encoding="utf-8")
    assert change[0] in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(*change, 1), encoding="utf-8")
    outcome = hwsim("check", str(file))
    assert outcome.code == 2
    assert "mine.yaml:" in outcome.err
    assert said in outcome.err


def test_a_model_file_says_how_it_is_divided_and_a_command_line_may_say_otherwise(tmp_path: Path) -> None:
    text = find("model", "gpt2").read_text(encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(
        text.replace("name: gpt2", "name: mine", 1) + "\nparallel: {tp: 2, pp: 2, sp: 1}\n", encoding="utf-8"
    )
    asked = ("model", str(file), "4xh100", "phase=prefill", "prompt=64", "--json", "-")
    layouts = [json.loads(hwsim(*asked, *more).out)["layout"] for more in ((), ("pp=1", "sp=0"))]
    assert [(each["tp"], each["pp"], each["sp"]) for each in layouts] == [(2, 2, 1), (2, 1, 0)]
    refused = hwsim("model", str(file), "h100")
    assert refused.code == 2
    assert "parallel: {tp: 2, pp: 2, sp: 1}" in refused.err and "hwsim model mine 8xh100" in refused.err


def test_a_collective_and_its_system_come_in_any_order_and_a_typo_is_named() -> None:
    given = hwsim("collective", "8xh100", "all_reduce", "bytes=1MB")
    assert hwsim("collective", "all_reduce", "8xh100", "bytes=1MB").out == given.out
    wrong = hwsim("collective", "allreduce", "8xh100")
    assert wrong.code == 2
    assert "'allreduce' is not one of" in wrong.err
    assert "did you mean 'all_reduce'?" in wrong.err


def test_a_picture_of_serving_has_a_colour_for_each_kind_of_step() -> None:
    """Numbers of tokens differ from step to step: with a colour for each name, most steps were grey."""
    names = ("0 decoding, 8192 of prompts", "4 decoding, 31 of prompts", "8 decoding", "9 decoding")
    kinds = [span.name for span in _by_kind([Span("vllm", name, 0, 1) for name in names])]
    assert kinds == ["prompts", "prompts and tokens of answers", "tokens of answers", "tokens of answers"]
