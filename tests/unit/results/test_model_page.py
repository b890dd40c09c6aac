"""The page of a whole model: every operation is in its table, and phases and layers add up to the run."""

from __future__ import annotations

import pytest

from hwsim.catalog import load_machine
from hwsim.models.load import load_model
from hwsim.models.run import run
from hwsim.results.html import _memory, render_page, run_page
from hwsim.spec.variant import with_parameters
from hwsim.units import data


def test_the_page_of_a_model_has_every_operation_with_its_time_and_energy() -> None:
    model = with_parameters(load_model("gpt2").model, {"prompt": "32", "generate": "2"})
    result = run(load_machine("h100").spec, model, math=False)  # type: ignore[arg-type]
    page = run_page(result)
    phases = result.work.use["model"]["phases"]
    assert len(page.lines) == sum(len(phase["operations"]) for phase in phases)
    assert sum(line.values["time_s"] for line in page.lines) == pytest.approx(result.time_s, rel=1e-9)
    assert sum(line.values["energy_j"] for line in page.lines) == pytest.approx(result.energy_j, rel=1e-6)
    assert [title for title, _ in page.sections][:3] == ["Phases", "Layers", "Memory"]
    layers = dict(page.sections)["Layers"]
    assert all(f">{name}</td>" in layers for name in ("prefill", "decode", "embedding", "layer", "head"))
    text = render_page(page)
    assert "layer.qkv" in text and "124 M parameters" in text


def test_the_memory_of_a_model_is_drawn_part_by_part() -> None:
    model = with_parameters(load_model("gpt2").model, {"prompt": "32", "generate": "2"})
    result = run(load_machine("h100").spec, model, math=False)  # type: ignore[arg-type]
    text = dict(run_page(result).sections)["Memory"]
    memory = result.work.use["model"]["memory"]
    assert f"{data(memory['total'])} in all" in text
    assert all(name.replace("_", " ") in text for name, size in memory.items() if size and name != "total")
    about = result.work.use["model"]
    each = about["kv_bytes_per_token"]
    assert each == 2 * 12 * 768 * 2  # a key and a value in each of 12 layers, bf16 or fp16
    most = about["fit"]["largest_batch"]
    assert f"; {data(each)} of the cache for each token; a batch of up to {most:,} fits." in text
    used, about["fit"]["largest_batch"] = dict(memory), 0
    assert f"{data(used['total'])} in all; {data(each)} of the cache for each token.</p>" in _memory(about)
