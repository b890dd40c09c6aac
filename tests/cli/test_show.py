"""`hwsim show` prints what will be simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command_line import hwsim

from hwsim.catalog import load_machine, machine_names


def test_a_machine_at_a_glance_names_every_level_and_its_latency() -> None:
    outcome = hwsim("show", "course_cpu")
    assert outcome.code == 0
    for text in ("regs", "l1", "32 KiB", "0.5 ns", "l2", "256 KiB", "7 ns", "dram", "200 ns", "2 GHz"):
        assert text in outcome.out


@pytest.mark.parametrize("name", machine_names())
def test_resolved_yaml_loads_again_to_the_same_machine(tmp_path: Path, name: str) -> None:
    first = hwsim("show", name, "--resolved")
    assert first.code == 0
    file = tmp_path / "again.yaml"
    file.write_text(first.out)
    assert load_machine(file).spec == load_machine(name).spec
    assert hwsim("show", str(file), "--resolved").out == first.out


def test_resolved_yaml_fills_in_defaults() -> None:
    resolved = yaml.safe_load(hwsim("show", "course_cpu", "--resolved").out)
    l1 = next(level for level in resolved["memory"] if level["name"] == "l1")
    assert l1["write"] == "back"
    assert l1["prefetch"] == {"kind": "none", "degree": 1, "streams": 16}


def test_a_setting_changes_the_field_and_nothing_else() -> None:
    before = json.loads(hwsim("show", "course_cpu", "--json").out)
    after = json.loads(hwsim("show", "course_cpu", "--json", "--set", "core.l1.size=64 KiB").out)
    level = next(level for level in after["memory"] if level["name"] == "l1")
    assert level.pop("size") == "64 KiB"
    assert level["source"].pop("size") == "set on the command line"
    original = next(level for level in before["memory"] if level["name"] == "l1")
    original.pop("size")
    original["source"].pop("size")
    for data in (before, after):  # the price of an access follows the size
        del data["energy"]["actions"]["l1.read"], data["energy"]["actions"]["l1.write"]
    assert after == before


def test_a_perfect_cache_is_a_legal_setting() -> None:
    for word in ("inf", ".inf"):
        after = json.loads(hwsim("show", "course_cpu", "--json", "--set", f"l2.size={word}").out)
        assert next(level for level in after["memory"] if level["name"] == "l2")["size"] == "inf"


def test_a_workload_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text("format: 1\nname: small\ndescription: Small.\nop: matmul\nsizes: {m: 4, n: 8, k: 2}\n")
    outcome = hwsim("show", str(file), "--set", "sizes.n=16")
    assert outcome.code == 0
    assert "matmul" in outcome.out
    assert "n 16" in outcome.out


def test_a_system_is_shown_with_its_devices_links_libraries_and_what_it_was_compared_with() -> None:
    words = " ".join(hwsim("show", "dgx_h100").out.split())
    for fact in (
        "devices: 8 x h100, one node",
        "687 GB of memory, 7.92 PFLOP/s in bf16",  # eight of 80 GiB and of 989.4 TFLOP/s: NVIDIA's data sheet
        "inside switch 450 GB/s",
        "host of each device 64 GB/s",
        "nccl ring, low latency 30 % 5.29 us 746 ns all_reduce, all_gather, reduce_scatter",
        "collectives, measured on h100 and not fitted to",
    ):
        assert fact in words, fact
    assert "format: 1" not in words
    assert hwsim("show", "dgx_h100", "--resolved").out.startswith("format: 1")


def test_of_several_nodes_a_bus_and_a_device_alone_the_screen_says_what_is_theirs() -> None:
    words = " ".join(hwsim("show", "two_nodes_h100").out.split())
    assert "devices: 16 x h100, 2 nodes of 8" in words and "between switch 50 GB/s step 5 us" in words
    assert "collectives inside a node" in words
    assert "100 MB/s for 4 together" in hwsim("show", "four_phones").out
    assert "never compared" in hwsim("show", "four_phones").out
    alone = hwsim("show", "desktop").out
    assert "25 GB/s" in alone and "inside" not in alone and "library" not in alone


def test_an_engine_is_shown_in_words() -> None:
    words = " ".join(hwsim("show", "vllm").out.split())
    assert "at most 8,192 tokens of 1,024 requests" in words
    assert "are read in pieces, and share a step with decoding" in words
    assert "step 600 us" in words and "on top of the devices' time" in words


def test_a_format_that_stands_in_for_another_says_for_what() -> None:
    """The first TPU has integers of 8 and 16 bits; bf16 is there so that fractions can run."""
    assert "bf16 (for 16-bit integers)" in hwsim("show", "tpu_v1").out
    assert "bf16 (for" not in hwsim("show", "tpu_v4").out
    ran = hwsim("run", "tpu_v1", "matmul", "n=64", "precision=bf16", "--no-math").out
    assert "tpu_v1 computes in 16-bit integers: bf16 stands in for them" in ran
    assert "stands in" not in hwsim("run", "tpu_v1", "matmul", "n=64", "precision=int8", "--no-math").out


def test_show_alone_says_where_names_are() -> None:
    alone = hwsim("show")
    assert (alone.code, alone.out) == (2, "")
    assert "hwsim list" in alone.err


@pytest.mark.parametrize("words", [("show", "course_cpu"), ("list", "systems"), ("check", "course_cpu")])
def test_json_stands_alone_takes_a_dash_or_a_file(words: tuple[str, ...], tmp_path: Path) -> None:
    bare = hwsim(*words, "--json")
    assert bare.code == 0, bare.err
    data = json.loads(bare.out)
    assert json.loads(hwsim(*words, "--json", "-").out) == data
    assert json.loads(hwsim(words[0], "--json", *words[1:]).out) == data
    file = tmp_path / "told.json"
    both = hwsim(*words, "--json", str(file))
    assert both.code == 0, both.err
    assert json.loads(file.read_text()) == data
    assert both.out == hwsim(*words).out


def test_a_changed_machine_says_what_was_changed_beside_its_description() -> None:
    screen = hwsim("show", "zen4", "--set", "l1.size=64 KiB").out
    assert "32 KiB L1" in screen, "the file's own words"
    assert "changed: l1.size 64 KiB; the words above are those of the file" in screen
    assert "changed:" not in hwsim("show", "zen4").out
