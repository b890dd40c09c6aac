"""A model on several devices against formulas of the textbooks: pipelines, overlap, and one device that is a system."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hwsim.catalog import load_machine
from hwsim.models.count import Formats, Pass
from hwsim.models.graph import ModelGraph
from hwsim.models.load import load_model
from hwsim.models.price import StepPrice
from hwsim.ops.model import ModelWorkload
from hwsim.systems.communicate import Network
from hwsim.systems.parallel import Parallel, ParallelLayout
from hwsim.systems.spec import SystemSpec, load_system

H100 = load_machine("h100").spec
FORWARD, TRAIN = Pass("forward", 8, 64), Pass("train", 8, 64)


def gpt2() -> ModelWorkload:
    return load_model("gpt2").model


def system(bandwidth: str = "inf", start: str = "0 s") -> SystemSpec:
    """Eight devices with one ring, and a constant for everything."""
    ops = (("ring", ("all_reduce", "all_gather", "reduce_scatter")), ("direct", ("all_to_all", "send")))
    kernels: Any = tuple({"algorithm": a, "ops": done, "start": start, "step": "0 s", "share": 1.0} for a, done in ops)
    inside = {"topology": "switch", "bandwidth": bandwidth, "source": "made up"}
    libraries = {"lib": {"kernels": kernels, "source": "made up"}}
    fields = {"format": 1, "name": "made_up", "description": "", "devices": "8 x h100", "inside": inside}
    return SystemSpec.model_validate({**fields, "libraries": libraries})


def parallel(layout: ParallelLayout, **links: str) -> Parallel:
    return Parallel(H100, gpt2(), Network(system(**links)), layout)


def test_one_device_takes_what_the_model_takes_on_its_machine() -> None:
    model = gpt2()
    alone = StepPrice(H100, ModelGraph.of(model), Formats.of(model)).step(FORWARD)
    found = parallel(ParallelLayout()).step(FORWARD)
    assert found.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert (found.share("exposed"), found.share("waiting")) == (0, 0)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_energy_is_that_of_the_work_and_of_devices_that_wait(stages: int) -> None:
    """One batch through a line of devices: the same kernels as on one, and static power of all that have nothing to do;
    two such lines with half of the batch each take twice what one of them takes."""
    model, half = gpt2(), Pass("forward", 4, 64)
    work = StepPrice(H100, ModelGraph.of(model), Formats.of(model)).step(FORWARD).joules
    step = parallel(ParallelLayout(pp=stages, micro=1)).step(FORWARD)
    waited_s = sum(step.elapsed_fs - stage.compute_fs for stage in step.stages) / 1e15
    assert (waited_s > 0) == (stages > 1)
    watts = sum(float(each.power) for each in H100.energy.static.values())
    assert step.joules == pytest.approx(work + watts * waited_s, rel=1e-6)
    both, one = (
        parallel(ParallelLayout(pp=stages, dp=dp, micro=1)).step(given) for dp, given in ((2, FORWARD), (1, half))
    )
    assert both.joules == pytest.approx(2 * one.joules, rel=1e-6)


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline_is_as_slow_as_its_slowest_stage(stages: int, micro: int) -> None:
    """Equal jobs through a line: the sum of all stages once, and the slowest for every further job (Johnson, 1954)."""
    found = parallel(ParallelLayout(pp=stages, micro=micro))
    step = found.step(FORWARD)
    times = [stage.compute_fs // micro for stage in step.stages]
    assert step.elapsed_fs == sum(times) + (micro - 1) * max(times)


@pytest.mark.parametrize("micro", [4, 8])
def test_one_forward_one_backward_loses_no_more_than_the_formula_of_the_bubble(micro: int) -> None:
    """(m+p-1) / m times the slowest stage if all were as slow; less here, where the head makes one stage slower."""
    step = parallel(ParallelLayout(pp=4, micro=micro)).step(Pass("train", 8, 512))
    longest = max(stage.compute_fs for stage in step.stages)
    assert longest < step.elapsed_fs <= longest * (micro + 3) / micro
    assert step.share("waiting") > 3 / (micro + 3)


def test_sums_inside_a_layer_are_never_hidden() -> None:
    free, paid = (parallel(ParallelLayout(tp=4), start=start).step(FORWARD) for start in ("0 s", "10 us"))
    assert free.share("exposed") == 0
    exchanges = sum(2 for _ in range(12)) + 2  # two in each layer, one behind the table of words, one of the logits
    assert paid.elapsed_fs - free.elapsed_fs == exchanges * 10 * 10**9


def test_gradients_hide_behind_the_way_back() -> None:
    """Neither the sum of both nor less than the longer one (mission row P8)."""
    free = parallel(ParallelLayout(dp=8)).step(TRAIN)
    paid = parallel(ParallelLayout(dp=8), bandwidth="20 GB/s").step(TRAIN)
    (stage,) = paid.stages
    assert free.stages[0].gradients_fs == 0
    assert stage.gradients_fs > 0
    assert max(stage.gradients_fs, free.elapsed_fs) < paid.elapsed_fs < stage.gradients_fs + free.elapsed_fs


def test_two_copies_take_as_long_as_one_with_half_the_batch() -> None:
    one, two = parallel(ParallelLayout()).step(Pass("forward", 4, 64)), parallel(ParallelLayout(dp=2)).step(FORWARD)
    assert one.elapsed_fs == two.elapsed_fs


def test_memory_of_a_device_is_divided_and_checked() -> None:
    model = load_model("llama3_70b").model
    network = Network(load_system("8xh100"))
    whole, half, quarter = (
        Parallel(H100, model, network, ParallelLayout(tp=tp)).step(Pass("prefill", 1, 128)) for tp in (1, 2, 4)
    )
    assert not whole.fits and half.fits and quarter.fits
    assert quarter.memory.weights == pytest.approx(whole.memory.weights / 4, rel=0.01)


def test_sequence_parallelism_scatters_every_sum_and_gathers_it_before_the_next_product() -> None:
    """A ring's all-reduce is a reduce-scatter and an all-gather: the same bytes, so the same time on links alone; what
    norms and sums read is a quarter (Korthikanti and others, 2022)."""
    plain, divided = (ModelGraph.of(gpt2(), tp=4, sp=sp) for sp in (0, 1))
    counted = [Counter(each.collective for each in graph.exchanges) for graph in (plain, divided)]
    assert counted[0]["all_reduce"] == counted[1]["reduce_scatter"] == counted[1]["all_gather"] - 1
    assert {name for _, name in divided.scattered} >= {"norm1", "norm2"}
    links = {"bandwidth": "100 GB/s"}
    with_sums, with_parts = (parallel(ParallelLayout(tp=4, sp=sp), **links).step(TRAIN) for sp in (0, 1))
    assert with_parts.stages[0].exposed_fs == pytest.approx(with_sums.stages[0].exposed_fs, rel=1e-3)
    assert with_parts.stages[0].compute_fs < with_sums.stages[0].compute_fs
    assert with_parts.memory.activations < 0.7 * with_sums.memory.activations
    assert with_parts.memory.weights == with_sums.memory.weights


def test_a_host_that_starts_kernels_slowly_is_as_slow_on_several_devices() -> None:
    """Small steps, kernel by kernel: each of two devices waits for its host as one device does."""
    model = gpt2()
    eager = Parallel(H100, model, Network(system()), ParallelLayout(dp=2), kernels="eager").step(Pass("forward", 2, 8))
    alone = StepPrice(H100, ModelGraph.of(model), Formats.of(model), "eager").step(Pass("forward", 1, 8))
    assert alone.host_seconds == alone.seconds
    assert eager.seconds == pytest.approx(alone.seconds, rel=1e-6)


def test_a_stage_keeps_activations_of_as_many_microbatches_as_there_are_stages_behind_it() -> None:
    """Narayanan and others, 2021, one forward, one backward: the first of p stages has at most p microbatches under
    way, however many there are; a forward pass keeps one at a time."""
    for stages in (2, 4):
        kept = {}
        for micro in (1, 2, stages, 4 * stages):
            step = parallel(ParallelLayout(pp=stages, micro=micro)).step(Pass("train", 4 * micro, 64))
            kept[micro] = step.memory.activations
            parts = step.memory
            assert parts.weights and parts.gradients and parts.optimizer and not parts.kv_cache
        assert kept == {micro: min(micro, stages) * kept[1] for micro in kept}
        forward = {
            micro: parallel(ParallelLayout(pp=stages, micro=micro)).step(Pass("forward", 4 * micro, 64)).memory
            for micro in (1, 4)
        }
        assert forward[4].activations == forward[1].activations
        assert forward[4].kv_cache == 4 * forward[1].kv_cache


def test_keys_and_values_of_all_microbatches_are_kept() -> None:
    """Cut or not, as many sequences keep as much."""
    phase = Pass("decode", 8, 1, 64)
    whole, cut = (parallel(ParallelLayout(pp=2, micro=micro)).step(phase, grown=100).memory for micro in (1, 4))
    assert whole.kv_cache == cut.kv_cache > 0
    assert cut.activations < whole.activations
    grown = parallel(ParallelLayout(pp=2, micro=1)).step(phase, grown=200).memory
    assert grown.kv_cache == 2 * whole.kv_cache
