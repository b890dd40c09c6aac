"""A host that keeps or computes layers of a model: what is copied hides behind what is computed (mission row P8)."""

from __future__ import annotations

import pytest

from hwsim.errors import CapacityError, InputError
from hwsim.models.load import load_model
from hwsim.models.memory import memory_use
from hwsim.ops.model import ModelWorkload
from hwsim.spec.variant import with_parameters
from hwsim.systems.host import Hosted, formula_fs
from hwsim.systems.spec import SystemSpec, load_system

DESKTOP = load_system("desktop")


def asked(name: str = "gpt2", **parameters: object) -> ModelWorkload:
    found = with_parameters(load_model(name).model, {"phase": "decode", "prompt": 64, **parameters})
    assert isinstance(found, ModelWorkload)
    return found


def slower(times: int) -> SystemSpec:
    """The same computer, its link so many times slower."""
    return DESKTOP.model_copy(update={"host": DESKTOP.host.model_copy(update={"bandwidth": _slow(times)})})  # type: ignore[union-attr]


def _slow(times: int) -> object:
    from hwsim.units import parse_bandwidth

    return parse_bandwidth(f"{25 // times} GB/s")


@pytest.mark.parametrize("times", [1, 25])
def test_layers_that_are_copied_in_are_a_pipeline_of_copying_and_computing(times: int) -> None:
    """copy + (n-1) max(copy, compute) + compute for twelve layers with two rooms, to the femtosecond; then the rest."""
    system = slower(times)
    assert system.host is not None
    hosted = Hosted(system, asked(), 0, 12)
    step = hosted.step(hosted.phases[0][0])
    cost = hosted.price.step(hosted.phases[0][0])
    layer = round(sum(each.seconds for each in cost.operations if each.block == "layer") / 12 * 10**15)
    pipeline = formula_fs(system.host, 12 * hosted.layer_bytes, 12, layer, 2)
    assert step.elapsed_fs == pipeline + step.device_fs - 12 * layer
    assert step.elapsed_fs < step.copied_fs + step.device_fs


def test_what_the_host_computes_comes_first_and_is_handed_on() -> None:
    hosted = Hosted(DESKTOP, asked(), 3, 0)
    step = hosted.step(hosted.phases[0][0])
    handed = 10 * 10**9 + 768 * 2 * 10**15 // (25 * 10**9)  # a start, and a row of 768 numbers of two bytes
    assert step.copied_fs == pytest.approx(handed, rel=1e-6)
    assert step.elapsed_fs == step.host_fs + step.copied_fs + step.device_fs
    alone = Hosted(DESKTOP, asked(), 0, 0)
    assert step.device_fs < alone.step(alone.phases[0][0]).device_fs


def test_as_many_layers_are_copied_as_do_not_fit() -> None:
    """Llama 3 70B in 4 bits: 35 GB and more, of which a card of 24 GB keeps what it has room for beside two layers."""
    hosted = Hosted(DESKTOP, asked("llama3_70b", weights="w4a16"), 0, None)
    has = 24 * 2**30
    assert 20 < hosted.streamed < 50
    assert has - hosted.layer_bytes < hosted.memory.total <= has
    with pytest.raises(CapacityError, match="copy more"):
        Hosted(DESKTOP, asked("llama3_70b", weights="w4a16"), 0, hosted.streamed - 1)


@pytest.mark.parametrize(
    ("system", "model", "host_layers", "said"),
    [
        ("2xh100", {}, 0, "feeds one, such as 1xh100"),
        ("1xh100", {}, 2, "does not say which machine its host is"),
        ("desktop", {"phase": "train"}, 0, "is for inference"),
        ("desktop", {}, 12, "has 12 layers; leave one to the device"),
    ],
)
def test_what_cannot_be_is_refused(system: str, model: dict[str, object], host_layers: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Hosted(load_system(system), asked(**model), host_layers, None)


def test_room_is_kept_for_what_lies_between_layers_while_a_prompt_is_read() -> None:
    """64 tokens at once need more of it than the single ones that follow."""
    hosted = Hosted(DESKTOP, asked(phase="all", generate=4), 0, 0)
    (prompt, _), *_, (token, _) = hosted.phases
    needed, later = (
        memory_use(hosted.graph, hosted.numbers, phase, hosted.price.kernels, context=68).activations
        for phase in (prompt, token)
    )
    assert hosted.memory.activations == needed > later
