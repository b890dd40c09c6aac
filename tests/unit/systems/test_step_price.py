"""What a served step costs where layers or experts are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwsim.errors import InputError
from hwsim.systems.parallel import make_layout
from hwsim.systems.serve_model import Load, PriceCurve, ServedModel, make_service
from hwsim.systems.spec import load_system

chunk = st.tuples(st.integers(1, 4096), st.integers(0, 4096), st.booleans())


def served(model: str, **words: str) -> ServedModel:
    return make_service(model, "8xh100", words).price


@given(decoding=st.integers(0, 300), chunks=st.lists(chunk, max_size=12), count=st.integers(1, 9))
def test_parts_of_a_step_are_the_whole_step(decoding: int, chunks: list[tuple[int, int, bool]], count: int) -> None:
    load = Load(decoding, 100 * decoding, tuple(chunks))
    parts = load.parts(count)
    assert len(parts) <= count
    assert sum(part.rows for part in parts) == load.rows
    assert sum(part.context for part in parts) == load.context
    assert sorted(each for part in parts for each in part.chunks) == sorted(chunks)
    assert max((part.decoding for part in parts), default=0) <= -(-decoding // count)


def test_one_request_goes_through_all_stages_one_after_the_other() -> None:
    """Nothing else is there to fill the pipeline: as on one device, and a message on top."""
    one, two = served("llama3_8b", tp="1"), served("llama3_8b", tp="1", pp="2")
    message = two.network.collective_fs("send", 4096 * 2, (0, 1), "bf16") / 1e15
    assert two.price(1, 500).seconds == pytest.approx(one.price(1, 500).seconds + message, rel=1e-9)


def test_a_full_pipeline_takes_as_long_as_a_stage_takes_for_all_parts() -> None:
    """64 requests in four parts of 16: each stage has a quarter of the layers and all four parts."""
    one, four = served("llama3_8b", tp="1"), served("llama3_8b", tp="1", pp="4")
    message = four.network.collective_fs("send", 16 * 4096 * 2, (0, 1), "bf16") / 1e15
    assert four.price(64, 64 * 500).seconds == pytest.approx(one.price(16, 16 * 500).seconds + 3 * message, rel=1e-9)
    assert four.blocks_of(16) > 4 * one.blocks_of(16)


def test_devices_of_experts_each_read_their_own() -> None:
    """Mixtral's experts are 45.1 of its 46.7 G parameters: each of eight devices has an eighth, and all the rest."""
    price = served("mixtral_8x7b", tp="1", ep="8")
    (stage,) = price.stages
    from hwsim.models.memory import weight_bytes

    assert weight_bytes(stage, price.numbers) == pytest.approx(2 * (45.1e9 / 8 + 1.6e9), rel=0.01)
    talk = price.price(64, 64 * 500).communication
    sent = 8 * 4096 * 2 * 2  # eight rows of a device, two experts each, two bytes a number
    each = 2 * price.network.collective_fs("all_to_all", sent, range(8), "bf16") / 1e15
    assert talk == pytest.approx(32 * each, rel=1e-6)


def test_a_model_without_experts_has_none_to_divide() -> None:
    with pytest.raises(InputError, match="ep=2: llama3_8b has no experts"):
        served("llama3_8b", ep="2")


@pytest.mark.parametrize(
    ("asked", "tp", "pp", "dp", "ep", "micro"),
    [
        ({}, 8, 1, 1, 1, 1), ({"pp": 2}, 4, 2, 1, 1, 2), ({"dp": 4}, 2, 1, 4, 1, 1), ({"ep": 8}, 1, 1, 1, 8, 1),
        ({"pp": 2, "dp": 2, "ep": 2}, 1, 2, 2, 2, 2), ({"tp": 2}, 2, 1, 1, 1, 1),
        ({"pp": 4, "micro": 16}, 2, 4, 1, 1, 16), ({"dp": 3}, 2, 1, 3, 1, 1),
    ],
)  # fmt: skip
def test_heads_are_divided_among_the_devices_that_nothing_else_divides(
    asked: dict[str, int], tp: int, pp: int, dp: int, ep: int, micro: int
) -> None:
    found = make_layout(load_system("dgx_h100"), asked)
    assert (found.tp, found.pp, found.dp, found.ep, found.micro, found.sp) == (tp, pp, dp, ep, micro, 0)
    assert found.devices == tp * pp * dp * ep <= 8


def test_layouts_that_do_not_fit_the_system_are_refused_and_tokens_are_divided_only_with_heads() -> None:
    system = load_system("dgx_h100")
    for asked, says in (({"tp": 9}, "9 devices"), ({"dp": 0}, "dp=0: at least 1"), ({"sp": 2}, "sp=2")):
        with pytest.raises(InputError, match=says):
            make_layout(system, asked)
    assert make_layout(system, {"tp": 8, "sp": 1}).sp == 1
    assert make_layout(system, {"tp": 1, "sp": 1}).sp == 0


def test_a_price_between_two_points_lies_on_the_line_between_them_and_nothing_costs_nothing() -> None:
    asked: list[int] = []

    def price(rows: int) -> tuple[float, float]:
        asked.append(rows)
        return rows**2, 10.0 * rows

    curve = PriceCurve(price)
    assert curve.at(0) == (0.0, 0.0) and not asked
    assert curve.at(64) == (64**2, 640.0)
    assert curve.at(80) == pytest.approx(((64**2 + 96**2) / 2, 800.0))
    assert curve.at(0.25) == pytest.approx((0.25, 2.5))
    assert sorted(asked) == [1, 64, 96]
