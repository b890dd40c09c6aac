"""A model that was split gives the answer of the whole one; gradients too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hwsim.systems import shards
from hwsim.systems.parallel import ParallelLayout, layouts, make_layout
from hwsim.systems.shards import Small, check_split, gradients, whole
from hwsim.systems.spec import load_system


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tp=2),
        ParallelLayout(tp=4),
        ParallelLayout(tp=3),
        ParallelLayout(pp=2),
        ParallelLayout(pp=4),
        ParallelLayout(dp=4),
        ParallelLayout(ep=2),
        ParallelLayout(ep=4),
        ParallelLayout(tp=2, pp=2, dp=2),
        ParallelLayout(tp=2, ep=2),
        ParallelLayout(tp=2, pp=2, dp=2, ep=2),
        ParallelLayout(tp=2, sp=1),
        ParallelLayout(tp=4, sp=1),
        ParallelLayout(tp=3, pp=2, dp=2, sp=1),
        ParallelLayout(tp=2, ep=2, sp=1),
    ],
    ids=lambda layout: layout.words,
)
def test_every_split_gives_the_answer_of_the_whole(layout: ParallelLayout) -> None:
    found = check_split(layout, seed=3)
    assert found.passed, found
    assert (found.gradients is None) == (layout.dp == 1 or layout.ep > 1)


def test_gradients_are_those_of_central_differences() -> None:
    small = Small.of(ParallelLayout(), seed=5)
    weights, text = small.weights(), small.text()
    found = gradients(small, weights, text, 1)

    def loss() -> float:
        return float(np.sum(whole(small, weights, text) ** 2) / 2)

    for name, weight in weights.items():
        place = tuple(size // 2 for size in weight.shape)
        before = weight[place]
        weight[place] = before + 1e-5
        above = loss()
        weight[place] = before - 1e-5
        below = loss()
        weight[place] = before
        assert found[name][place] == pytest.approx((above - below) / 2e-5, rel=1e-5, abs=1e-6), name


def test_a_sum_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: without the all-reduce every device goes on with its part alone."""
    monkeypatch.setattr(shards, "all_reduce", list)
    assert not check_split(ParallelLayout(tp=2)).passed
    assert not check_split(ParallelLayout(dp=2)).passed


def test_tokens_of_others_that_do_not_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequence parallelism: a device that reads its own tokens in place of all answers something else."""
    monkeypatch.setattr(shards, "gather_tokens", lambda arrays: [np.concatenate(2 * [each], 1) for each in arrays])
    assert not check_split(ParallelLayout(tp=2, sp=1)).passed


def test_tokens_that_stay_at_home_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_exchange = shards._collective

    def lost(op: str, algorithm: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return list(arrays) if op == "all_to_all" else whole_exchange(op, algorithm, arrays)

    monkeypatch.setattr(shards, "_collective", lost)
    assert not check_split(ParallelLayout(ep=2)).passed


@pytest.mark.parametrize("count", [1, 2, 6, 8])
def test_the_words_of_a_layout_give_it_again_and_every_layout_uses_all_devices(count: int) -> None:
    """Typed on a command line; no layout comes twice."""
    system = load_system(f"{count}xh100")
    found = list(layouts(count, experts=True))
    assert len(set(found)) == len(found)
    for layout in found:
        assert layout.devices == count
        for each in (layout, replace(layout, sp=int(layout.tp > 1)), replace(layout, micro=3)):
            numbers = {name: int(value) for name, value in (word.split("=") for word in each.words.split())}
            assert make_layout(system, numbers) == each, each.words
