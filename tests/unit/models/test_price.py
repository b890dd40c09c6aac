"""What a step costs: kernels are simulated once, layers are counted, phases behave as their bytes and products say."""

from __future__ import annotations

from collections import Counter
from math import ceil, prod
from types import SimpleNamespace

import pytest

import hwsim
from hwsim.catalog import load_machine, model_names
from hwsim.errors import InputError
from hwsim.models.count import Formats, Pass, decode, forward, kept_of, macs_of, prefill
from hwsim.models.graph import ModelGraph, ModelNode
from hwsim.models.kernels import SERVING, Heads, KernelCall, KernelLowering, _passes, joined_adds
from hwsim.models.load import load_model, model_from_data
from hwsim.models.price import (
    HOST,
    MOST_ELEMENTS,
    StepPrice,
    _attention,
    _convolution,
    _product,
    _rows,
    _tile_rows,
    simulated_on,
)
from hwsim.models.run import advise, decode_lengths, model_timeline, run_phases
from hwsim.models.total import kernel_bound
from hwsim.ops.model import Attention, ModelWorkload
from hwsim.results.metrics import energy_split
from hwsim.results.plot.timeline import assign_lanes
from hwsim.target import Bound, Target, find_target
from hwsim.validation.table import shipped


def small(**changes: object) -> ModelWorkload:
    data = {
        "format": 1, "name": "small", "description": "", "op": "model", "precision": "bf16", "sizes": {"layers": 4},
        "blocks": [
            {"name": "words", "operations": [{"name": "words", "op": "embedding", "rows": 512, "width": 256}]},
            {"name": "layer", "repeat": "layers", "operations": [
                {"name": "norm", "op": "rmsnorm"},
                {"name": "qkv", "op": "linear", "out": [256, 128, 128], "split": "out"},
                {"name": "mixed", "op": "attention", "heads": 4, "kv_heads": 2, "head_dim": 64},
                {"name": "out", "op": "linear", "out": 256, "split": "in"},
                {"name": "sum", "op": "add", "inputs": ["out", "input"]}]},
            {"name": "head", "operations": [{"name": "logits", "op": "linear", "out": 512, "rows_of": "last"}]},
        ],
    }  # fmt: skip
    return model_from_data({**data, **changes}, "small")


def prices(model: ModelWorkload, machine: str = "h100", **more: object) -> StepPrice:
    return StepPrice(load_machine(machine).spec, ModelGraph.of(model), Formats.of(model), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 8])
def test_a_decode_step_of_a_few_sequences_is_not_bound_by_arithmetic(batch: int) -> None:
    """Each weight is used for `batch` multiply-adds and takes 2 bytes: an A100 would need 150 of them to be kept busy.

    Its attention computes 4 of the 64 queries of a tile, which is overhead; that of a prompt is arithmetic.
    """
    price = prices(load_model("llama3_8b").model, "a100_80")
    step = price.decode(batch=batch, context=512)
    bounds = {(each.name, kernel_bound(one.result)) for each in step.operations for _, one, _ in each.kernels}
    assert "arithmetic" not in {bound for _, bound in bounds}
    assert {bound for name, bound in bounds if name in ("qkv", "out", "up", "down", "logits")} == {"bandwidth of dram"}
    prompt = next(each for each in price.prefill(tokens=2048).operations if each.name == "mixed")
    assert kernel_bound(prompt.kernels[-1][1].result) == "arithmetic"


def test_eighty_layers_take_the_kernels_of_one_and_twenty_times_the_time_of_four() -> None:
    told: list[str] = []
    four = prices(small(), told=told.append).decode(batch=2, context=64)
    first = len(told)
    eighty = prices(small(sizes={"layers": 80}), told=told.append).decode(batch=2, context=64)
    assert len(told) == 2 * first
    layers = [sum(each.seconds for each in step.operations if each.block == "layer") for step in (four, eighty)]
    assert layers[1] == pytest.approx(20 * layers[0])


def test_a_step_of_generating_takes_at_least_as_long_as_memory_needs_for_the_weights() -> None:
    """Llama-3.1-8B: 8.03 G parameters but the table of the embedding, 2 bytes each, at 3.35 TB/s."""
    step = prices(load_model("llama3_8b").model).decode(batch=1, context=1)
    least = 2 * 7_504_924_672 / 3.35e12
    assert least < step.seconds < 1.45 * least
    assert step.joules is not None
    assert 100 < step.joules / step.seconds < 700


def test_a_prompt_takes_at_least_as_long_as_its_products() -> None:
    """2 x 58.3e12 multiply-adds at 989 TFLOP/s, the peak of an H100 in bf16."""
    step = prices(load_model("llama3_8b").model).prefill(tokens=1024, batch=8)
    least = 2 * 58.3e12 / 989e12
    assert least < step.seconds < 1.7 * least


def test_tokens_that_were_read_before_cost_only_their_keys() -> None:
    cost = prices(small())
    assert cost.prefill(64, cached=0).seconds < cost.prefill(64, cached=4096).seconds < cost.prefill(4160).seconds


def test_eager_kernels_are_more_and_their_scores_go_through_memory() -> None:
    model = small(precision="fp32")
    eager = prices(model, "a100_80", kernels="eager").forward(512, 4)
    fused = prices(model, "a100_80", kernels="compiled").forward(512, 4)
    assert eager.starts > fused.starts
    assert eager.seconds > fused.seconds
    mixed = next(each for each in eager.operations if each.name == "mixed")
    assert [call.op for call, _, _ in mixed.kernels].count("softmax") == 1


def test_a_backward_pass_has_two_products_for_each_of_the_forward_pass() -> None:
    step = prices(small(), optimizer="adam").train(128, 2)
    parts = {each.part for each in step.operations}
    assert parts == {"forward", "backward", "update"}
    products = {
        part: sum(count for each in step.operations if each.part == part and each.word == "linear"
                  for call, _, count in each.kernels if call.product)
        for part in ("forward", "backward")
    }  # fmt: skip
    assert products["backward"] == 2 * products["forward"] == 2 * (2 * 4 + 1)
    again = prices(small(), recompute=True).train(128, 2)
    assert again.parts["backward"] > step.parts["backward"]


def test_narrow_weights_are_read_sooner_and_the_head_stays_wide() -> None:
    model = load_model("llama3_8b").model
    wide, narrow = (
        StepPrice(load_machine("h100").spec, ModelGraph.of(model), Formats(weights, "bf16", "bf16")).decode(1, 128)
        for weights in ("bf16", "w4a16")
    )
    assert 1.8 < wide.seconds / narrow.seconds < 4
    heads = [next(each.seconds for each in step.operations if each.name == "logits") for step in (wide, narrow)]
    assert heads[0] == heads[1]


@pytest.mark.parametrize("machine", ["cortex_a78", "tpu_v4", "h100"])
def test_every_class_of_machines_prices_a_model(machine: str) -> None:
    step = prices(small(), machine).decode(batch=1, context=32)
    assert step.seconds > 0
    assert {each.name for each in step.operations} >= {"qkv", "out", "mixed", "logits"}


def test_what_an_array_without_a_vector_unit_leaves_to_a_host_is_said() -> None:
    blocks = [{"name": "net", "operations": [
        {"name": "conv", "op": "conv", "channels": 8, "kernel": 3}, {"name": "pool", "op": "maxpool", "kernel": 2},
        {"name": "point", "op": "conv", "channels": 8, "kernel": 1}]}]  # fmt: skip
    model = small(blocks=blocks, input=[3, 16, 16], sizes={})
    numbers = Formats("int16", "int16", "int16")
    step = StepPrice(load_machine("eyeriss").spec, ModelGraph.of(model), numbers, "compiled").forward(1, 1)
    assert any("left to a host" in note for note in step.notes)
    assert not any("left to a host" in note and note.startswith("conv") for note in step.notes)


def test_a_format_that_a_machine_does_not_have_is_refused_by_name() -> None:
    model = small(use={"weights": "fp8"})
    with pytest.raises(InputError, match=r"linear: a100_80 has no .* rate for fp8_e4m3; it multiplies bf16"):
        prices(model, "a100_80").decode(1, 16)


def test_a_timeline_has_every_layer_and_the_seconds_and_joules_of_its_steps() -> None:
    """Lanes are filled without gaps; where the host is slower than the kernels, only that of kernels has some."""
    machine = load_machine("h100").spec
    for kernels in ("serving", "eager"):
        found = run_phases(machine, small(use={"prompt": 64, "generate": 2, "kernels": kernels}))
        made = model_timeline(found)
        lanes = assign_lanes(made.spans)
        filled = {lane: sum(span.end_fs - span.start_fs for span in held) / 1e15 for lane, held in lanes.items()}
        assert list(filled) == ["1 phase", "2 layer", "3 operation", "4 kernel"]
        for lane in ("1 phase", "2 layer", "3 operation"):
            assert filled[lane] == pytest.approx(found.seconds, rel=1e-6)
        at_work = sum(each.seconds for phase in found.phases for each in phase.step.operations)
        assert filled["4 kernel"] == pytest.approx(at_work, rel=1e-6)
        assert [span.name for span in lanes["1 phase"]] == ["prefill", "decode at 66 tokens"]
        layers = [span.name for span in lanes["2 layer"]]
        assert layers == 2 * ["words", "layer 1", "layer 2", "layer 3", "layer 4", "head"]
        drawn = sum(each.watts * (each.end_fs - each.start_fs) for each in made.power) / 1e15
        assert drawn == pytest.approx(sum(phase.step.joules or 0.0 for phase in found.phases), rel=1e-6)


def served_kernels(model: ModelWorkload, rows: int, tp: int = 1) -> dict[str, list[dict[str, int]]]:
    """Sizes of the products of each operation of a layer, for a step that makes a token for each of so many."""
    low = KernelLowering(Formats("bf16", "bf16", "bf16"), SERVING, decode(rows, 1000))
    graph = ModelGraph.of(model, tp)
    return {
        node.name: [dict(call.sizes) for call in calls if call.product]
        for block, node, calls in low.calls(graph)
        if block.name == "layer"
    }


def multiply_adds(call: KernelCall) -> float:
    """Of a kernel, from its sizes alone."""
    z = dict(call.sizes)
    if not call.product:
        return 0.0
    if call.op == "attention":
        return call.count * 2 * z["batch"] * z["heads"] * z["queries"] * z["n"] * z["d"]
    if call.op.startswith("matmul"):
        return call.count * prod(z.values())
    high, wide = ((z[side] + 2 * z["padding"] - z[window]) // z["stride"] + 1
                  for side, window in (("height", "kernel"), ("width", "kernel_w")))  # fmt: skip
    window = z["kernel"] * z["kernel_w"] * z["ci"] // z["groups"]
    return call.count * z["batch"] * high * wide * z["co"] * window


@pytest.mark.parametrize("name", [name for name in model_names() if name != "unet"])  # grows by transposed convolutions
@pytest.mark.parametrize("phase", [forward(2, 64, 64), decode(3, 65)], ids=["forward", "decode"])
def test_kernels_multiply_what_the_operations_of_a_model_do(name: str, phase: Pass) -> None:
    """However they are put together. A prompt's attention computes the hidden half of its scores, too, and a kernel
    of a latent one pads; experts are as full as the fullest."""
    graph = ModelGraph.of(load_model(name).model)
    for kernels in ("eager", "compiled", "serving"):
        low = KernelLowering(Formats("bf16", "bf16", "bf16"), kernels, phase)
        done: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        for block, node, calls in low.calls(graph):
            kind = node.word if node.word in ("experts", "latent_attention") else block.name
            z, pairs = node.sizes, phase.queries(node) * phase.context
            scores = isinstance(node.op, Attention) and node.op.causal and not node.op.cross
            done[kind] += sum(map(multiply_adds, calls))
            wanted[kind] += phase.batch * z["heads"] * pairs * 2 * z["head_dim"] if scores else macs_of(node, phase)
        for kind, found in done.items():
            most = 2 if kind == "experts" else 1.12 if kind == "latent_attention" and phase.tokens > 1 else 1
            assert wanted[kind] <= found <= most * wanted[kind], kind


@pytest.mark.parametrize("name", ["gpt2", "llama3_8b", "deepseek_v3", "whisper_small"])
def test_an_engine_writes_to_its_cache_what_it_keeps(name: str) -> None:
    """Keys and values, or latent vectors, of new tokens: a pass before the attention itself."""
    for phase in (decode(5, 200), prefill(3, 40)):
        low = KernelLowering(Formats("bf16", "bf16", "bf16"), SERVING, phase)
        for _, node, calls in low.calls(ModelGraph.of(load_model(name).model)):
            if kept_of(node):
                assert prod(dict(calls[0].sizes).values()) == phase.batch * phase.tokens * kept_of(node)


def test_a_sum_runs_with_the_norm_that_reads_it_and_nothing_else_does() -> None:
    """Llama: each layer's first norm reads the last sum of the layer before, its second the sum of attention."""
    blocks = {block.name: joined_adds(block) for block in ModelGraph.of(load_model("llama3_8b").model).blocks}
    names = {node.name: node.word for node in ModelGraph.of(load_model("llama3_8b").model).blocks[1].nodes}
    assert sorted(names[each] for each in blocks["layer"]) == ["add", "add", "rmsnorm", "rmsnorm"]
    assert blocks["embedding"] == blocks["head"] == frozenset()


def test_an_engine_takes_products_of_one_input_together() -> None:
    """DeepSeek's projections to 1536 (queries), 512 (latent) and 64 (positions) read the same rows."""
    kernels = served_kernels(load_model("deepseek_v3").model, 4)
    assert kernels["q_down"] == [{"m": 4, "n": 1536 + 512 + 64, "k": 7168}]
    assert kernels["kv_down"] == kernels["k_rope"] == []


def test_shared_experts_of_an_engine_are_further_experts_of_the_same_product() -> None:
    """64 tokens on 8 devices choose 222 of 256 experts on average, E (1 - (1 - 8/256)^64); one more is for all."""
    (router, up, down) = served_kernels(load_model("deepseek_v3").model, 64, tp=8)["down"]
    assert router == {"m": 64, "n": 256, "k": 7168}
    assert (up["n"], up["k"], up["batch"]) == (2 * 2048 // 8, 7168, 222 + 1)
    assert (down["n"], down["k"], down["batch"]) == (7168, 2048 // 8, 222 + 1)


def test_latent_attention_reads_each_latent_vector_once() -> None:
    """61 layers, 64 sequences of 5,000 tokens, 576 numbers of two bytes: 22.5 GB, in 4.7 ms at 4.8 TB/s of an H200;
    read as keys and once more as values it would be twice that."""
    model = load_model("deepseek_v3").model
    price = StepPrice(load_machine("h200").spec, ModelGraph.of(model, 8), Formats.of(model))
    spent = sum(each.seconds for each in price.decode(64, 5000).operations if each.word == "latent_attention")
    least = 61 * 64 * 5000 * 576 * 2 / 4.8e12
    assert least < spent < 1.7 * least


def test_keys_of_a_source_are_made_once() -> None:
    """Whisper reads 1,500 frames before it writes; a step of its decoder looks at their keys and makes none."""
    model = load_model("whisper_small").model
    price = StepPrice(load_machine("h100").spec, ModelGraph.of(model), Formats.of(model))
    made = {each.name for each in price.prefill(4).operations}
    stepped = {each.name for each in price.decode(1, 8).operations}
    assert {"source_k", "source_v", "looked"} <= made
    assert stepped & {"source_k", "source_v", "looked"} == {"looked"}


def test_a_forward_pass_that_python_starts_takes_as_long_as_published() -> None:
    """BERT base, 8 sequences of 8 and of 32 tokens: 6 ms each (Hugging Face Transformers, docs/benchmarks)."""
    for tokens in (8, 32):
        step = prices(load_model("bert_base").model, "t4", kernels="eager").forward(tokens, 8)
        assert step.seconds == pytest.approx(6e-3, rel=0.05)
        assert any("one by one" in note for note in step.notes)


def test_memory_that_was_given_back_makes_a_step_longer_and_nothing_else() -> None:
    model = load_model("gpt2_large").model
    numbers = Formats("fp32", "fp32", "fp32")
    kept, emptied = (
        StepPrice(load_machine("mi210").spec, ModelGraph.of(model), numbers, "eager", optimizer="none", dropout="all",
                  allocator=allocator).train(1024, 4)
        for allocator in ("cached", "emptied")
    )  # fmt: skip
    assert emptied.operations == kept.operations
    assert emptied.parts["backward"] == kept.parts["backward"]
    assert emptied.parts["forward"] > 2.5 * kept.parts["forward"]
    assert any("wiped" in note for note in emptied.notes) and not any("wiped" in note for note in kept.notes)


def test_a_bias_by_distance_is_read_by_sectors() -> None:
    """Heads of the bias lie side by side: 32 bytes are read for each of its fp32 numbers, beside a score read and one
    written; across to a source it is in order."""
    shape = Heads(1, 32, 32, 256, 256, 64, 64, False)
    low = KernelLowering(Formats("fp32", "fp32", "fp32"), "eager", forward(1, 256))
    own, across = (
        sum(call.count * prod(dict(call.sizes).values()) for call in _passes(low, node, shape))
        for node in (biased(cross=False), biased(cross=True))
    )
    assert own == shape.scores * (2 + 8) / 2
    assert across == shape.scores


def biased(*, cross: bool) -> ModelNode:
    graph = ModelGraph.of(load_model(shipped("models/switchxl4.yaml")).model)
    return next(node for _, node in graph.nodes() if isinstance(node.op, Attention) and node.op.cross is cross)


@pytest.mark.parametrize(
    ("name", "cache", "reads"), [("opt_1_3b", 8 << 20, 3), ("opt_1_3b", 64 << 20, 2), ("gpt2", 0, 2)]
)
def test_a_mask_that_does_not_stay_in_the_cache_is_read_for_every_head(name: str, cache: int, reads: int) -> None:
    """2,048 x 2,048 numbers in fp32 are 16 MiB, and scores of a head that are read and written twice that; GPT-2's
    bits are small."""
    graph = ModelGraph.of(load_model(name).model)
    node = next(node for _, node in graph.nodes() if isinstance(node.op, Attention))
    low = KernelLowering(Formats("fp32", "fp32", "fp32"), "eager", forward(2, 2048), cache=cache)
    _, masked = _passes(low, node, Heads(2, 32, 32, 2048, 2048, 64, 64, True))
    assert 2 + len([each for each in dict(masked.more)["stages"] if isinstance(each, dict)]) == reads


@pytest.mark.parametrize("machine", ["cortex_a78", "apple_m2", "zen3", "course_cpu"])
def test_convolutions_of_a_model_run_as_a_good_library_runs_them(machine: str) -> None:
    """More than half of the peak, as oneDNN and XNNPACK reach with channels last and a register tile of places."""
    sizes = {"batch": 1, "ci": 64, "height": 56, "width": 56, "co": 64, "kernel": 3, "kernel_w": 3, "stride": 1,
             "padding": 1, "groups": 1}  # fmt: skip
    price = simulated_on(load_machine(machine).spec).price(KernelCall("conv2d", "fp32", tuple(sizes.items())))
    flops = 2 * 56 * 56 * 64 * 64 * 9
    assert 0.5 < flops / price.seconds / price.result.work.peak_flops_per_s <= 1


def test_cores_are_started_once_for_a_kernel_and_not_for_every_slice_of_it() -> None:
    """Sixteen times the rows take sixteen times as long but for starting four cores, which a slice does as well."""
    kernels = simulated_on(load_machine("apple_m2").spec)
    one, many = (
        kernels.price(KernelCall("matmul", "fp32", (("m", m), ("n", 96), ("k", 16)), product=True))
        for m in (4096, 16 * 4096)
    )
    assert one.starts == many.starts == 1
    assert one.each_s == many.each_s > 0
    assert many.seconds == pytest.approx(16 * one.seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("machine", "phase"), [("h100", "all"), ("h100", "train"), ("course_cpu", "all"), ("tpu_v4", "all")]
)
def test_seconds_of_a_phase_are_those_of_its_operations_and_of_what_bounds_them(machine: str, phase: str) -> None:
    """Kernels and their starts, each put down once to an operation and once to a bound."""
    result = hwsim.run(machine, "gpt2", prompt=16, generate=2, phase=phase, math=False)
    for part in result.work["model"]["phases"]:
        assert sum(part["bounds"].values()) == pytest.approx(part["seconds"], rel=1e-9)
        operations = sum(operation["seconds"] for operation in part["operations"])
        assert 0 < operations <= part["seconds"] * (1 + 1e-9)
        if result.energy_j is not None:
            assert sum(operation["joules"] for operation in part["operations"]) <= part["joules"] * (1 + 1e-9)
        assert {operation["bound"] for operation in part["operations"]} - {""} <= set(part["bounds"])


def test_a_register_tile_of_eight_rows_needs_nineteen_registers() -> None:
    """Two vectors of sums for each of eight rows, two of a row of B, and a number of A."""
    rows = {count: _tile_rows(target_with(count)) for count in (8, 18, 19, 32)}
    assert rows == {8: 4, 18: 4, 19: 8, 32: 8}


def target_with(registers: int) -> Target:
    return find_target(load_machine("course_cpu", [f"regs.count={registers}"]).spec)


def test_tokens_that_are_generated_grow_the_cache_and_nothing_else() -> None:
    """GPT-2 keeps a key and a value of 768 numbers of 2 bytes in each of 12 layers for every token."""
    few, many = (
        hwsim.run("h100", "gpt2", prompt=64, generate=generate, batch=2, math=False).work["model"]["memory"]
        for generate in (1, 201)
    )
    assert many["kv_cache"] - few["kv_cache"] == 200 * 2 * (2 * 768 * 2 * 12)
    for part in ("weights", "activations", "workspace", "gradients", "optimizer"):
        assert many[part] == few[part], part


def attention_kernels(phase: Pass, kv: str, kernels: str = SERVING) -> list[KernelCall]:
    low = KernelLowering(Formats("bf16", "bf16", kv), kernels, phase)
    return next(calls for _, node, calls in low.calls(ModelGraph.of(small())) if node.name == "mixed")


def test_narrow_keys_are_read_by_a_narrow_kernel_while_text_is_generated_and_only_then() -> None:
    """Where no kernel takes them, they are widened first: the same kernel in the format of activations stands by."""
    generated = attention_kernels(decode(2, 100), "fp8_e4m3")[-1]
    assert (generated.precision, [each.precision for each in generated.instead]) == ("fp8_e4m3", ["bf16"])
    for other in (attention_kernels(prefill(2, 100), "fp8_e4m3"), attention_kernels(decode(2, 100), "bf16")):
        assert other[-1].precision == "bf16"
        assert all(each.op != "attention" for each in other[-1].instead)


def test_attention_that_looks_both_ways_keeps_nothing_for_later_tokens() -> None:
    """BERT: an engine writes no cache for it."""
    graph = ModelGraph.of(load_model("bert_base").model)
    low = KernelLowering(Formats("bf16", "bf16", "bf16"), SERVING, forward(2, 64))
    attention = [calls for _, node, calls in low.calls(graph) if isinstance(node.op, Attention)]
    assert attention
    assert all(len(calls) == 1 for calls in attention)


def test_the_cycles_of_an_operation_are_its_seconds_at_the_clock_of_the_machine() -> None:
    machine = load_machine("h100").spec
    result = hwsim.run("h100", "gpt2", prompt=32, math=False)
    clock = machine.clock_hz(machine.compute[0].clock)
    assert result.stages
    for stage in result.stages:
        assert stage.cycles == ceil(stage.time_s * clock) > 1


@pytest.mark.parametrize("generate", [1, 2, 3, 102, 1002])
def test_prices_of_three_lengths_stand_for_all_steps_of_a_text(generate: int) -> None:
    """Steps are as many, and their lengths and the squares of these add up, as if each were priced (to half a step)."""
    lengths = range(101, 100 + generate)
    found = decode_lengths(100, generate)
    assert sum(times for _, times in found) == pytest.approx(len(lengths), rel=1e-12)
    assert sum(times * length for length, times in found) == pytest.approx(sum(lengths), rel=1e-12)
    squares = sum(length**2 for length in lengths)
    assert sum(times * length**2 for length, times in found) == pytest.approx(squares, rel=1e-3)


def test_a_slice_times_its_scale_is_the_work_of_the_whole() -> None:
    """Products of m n k, keys that rows of queries see, places times filters, elements: counted here from the sizes."""
    whole = {"m": 5000, "n": 3000, "k": 4000}
    for sizes in (whole, {**whole, "m": 4}, {"m": 96, "n": 64, "k": 32}):
        found = _product({"op": "matmul"}, sizes, 8, 8)
        assert found.scale * prod(found.data["sizes"].values()) == pytest.approx(prod(sizes.values()))
    heads = {"batch": 3, "heads": 32, "kv_heads": 16, "queries": 500, "n": 3000, "d": 64}
    for causal, pairs in ((False, 500 * 3000), (True, 500 * 3000 - 500 * 499 // 2)):
        found = _attention({"op": "attention"}, {**heads, "causal": causal})
        cut = found.data["sizes"]
        assert (cut["heads"], cut["kv_heads"], cut["queries"], cut["n"]) == (16, 8, 64, 1024)
        assert found.scale * cut["heads"] * cut["queries"] * cut["n"] == pytest.approx(3 * 32 * pairs)
    image = {"batch": 2, "ci": 64, "height": 224, "width": 112, "co": 200, "kernel": 3, "stride": 2, "padding": 1}
    found = _convolution({"op": "conv2d"}, image, 4, 6)
    cut = found.data["sizes"]
    assert (cut["batch"], cut["co"], cut["height"], cut["width"]) == (1, 64, 16 * 2 + 3, 112)
    rows = (35 + 2 - 3) // 2 + 1
    assert found.scale * cut["co"] * rows == pytest.approx(2 * 200 * 112)
    apart = _convolution({"op": "conv2d"}, {**image, "groups": 200, "ci": 200}, 4, 6)
    assert apart.data["sizes"]["co"] == 200
    for sizes in ({"n": 10**7}, {"n": 100}, {"m": 10**5, "n": 4096}, {"m": 3, "n": 5}):
        found = _rows({"op": "add"}, sizes)
        cut = found.data["sizes"]
        assert prod(cut.values()) <= max(MOST_ELEMENTS, sizes["n"] if "m" in sizes else 0)
        assert found.scale * prod(cut.values()) == pytest.approx(prod(sizes.values()))


def lowered(phase: Pass, kernels: str, image: list[int], *operations: dict[str, object]) -> list[list[KernelCall]]:
    """The kernels of each operation of a small network."""
    named = [{"name": f"op{number}", **each} for number, each in enumerate(operations)]
    graph = ModelGraph.of(small(blocks=[{"name": "net", "operations": named}], input=image, sizes={}))
    low = KernelLowering(Formats("bf16", "bf16", "bf16"), kernels, phase)
    return [calls for _, _, calls in low.calls(graph)]


@pytest.mark.parametrize(
    ("conv", "ops", "places", "window"),
    [
        ({"kernel": 1}, ["matmul"], 12 * 10, 8),
        ({"kernel": 1, "stride": 2}, ["conv2d"], 6 * 5, 8),
        ({"kernel": 1, "groups": 2}, ["conv2d"], 12 * 10, 4),
        ({"kernel": 3, "padding": 1}, ["conv2d"], 12 * 10, 8 * 9),
        ({"kernel": [2, 1]}, ["conv2d"], 11 * 10, 8 * 2),
        ({"kernel": [1, 2]}, ["conv2d"], 12 * 9, 8 * 2),
        ({"kernel": 3, "padding": 1, "groups": 4}, ["conv2d"], 12 * 10, 2 * 9),
        ({"kernel": 3, "padding": 1, "stride": [2, 1]}, ["matmul"], 6 * 10, 8 * 9),
        ({"kernel": 3, "padding": 1, "stride": [1, 2], "groups": 2}, ["matmul_batched"], 12 * 5, 4 * 9),
        ({"kernel": 2, "stride": 2, "transposed": True}, ["matmul"], 12 * 10, 8 * 4),
        ({"kernel": 4, "stride": 2, "padding": 1, "transposed": True}, ["matmul", "pointwise"], 12 * 10, 8 * 16),
    ],
)
def test_a_convolution_is_the_kernel_of_its_window(
    conv: dict[str, object], ops: list[str], places: int, window: int
) -> None:
    """Of one place and step a product, over all else a convolution; windows that step unevenly are written out as rows
    of a product. Multiply-adds by hand: two samples, 16 channels, 8 to 12 x 10."""
    (calls,) = lowered(forward(2, 1), "compiled", [8, 12, 10], {"op": "conv", "channels": 16, **conv})
    assert [call.op for call in calls] == ops
    sizes = dict(calls[0].sizes)
    if ops[0] == "conv2d":
        assert multiply_adds(calls[0]) == 2 * places * 16 * window
        assert (sizes["ci"], sizes["co"], sizes["height"], sizes["width"]) == (8, 16, 12, 10)
        assert sizes["stride"] == conv.get("stride", 1) and sizes["padding"] == conv.get("padding", 0)
    else:
        assert prod(sizes.values()) == 2 * places * 16 * window
    other = calls[0].instead
    assert bool(other) == (conv == {"kernel": 1}) and all(multiply_adds(one) == 2 * 120 * 16 * 8 for one in other)
    assert len(calls) == 1 or prod(dict(calls[1].sizes).values()) == 2 * 16 * 24 * 20  # the sums, in their places


def test_a_convolution_over_a_line_is_a_product_of_its_windows() -> None:
    conv = {"op": "conv", "channels": 16, "kernel": [3, 1], "padding": [1, 0]}
    ((call,),) = lowered(forward(2, 1), "compiled", [8, 12, 1], conv)
    assert (call.op, dict(call.sizes)) == ("matmul", {"m": 2 * 12, "n": 16, "k": 8 * 3})


def test_what_only_changes_the_shape_moves_each_number_once_or_not_at_all() -> None:
    """An image of 2 x 4 x 6 in three samples: it is copied where every operation is a kernel of its own; tokens lie in
    their order already."""
    image, tokens = [2, 4, 6], {"op": "to_tokens"}
    numbers = 3 * 48
    for kernels, copied in (("eager", 2 * numbers), ("compiled", 0)):
        cases: list[tuple[list[dict[str, object]], int]] = [
            ([{"op": "flatten"}], copied),
            ([tokens], copied),
            ([tokens, {"op": "flatten"}], 0),
            ([tokens, {"op": "first_token"}], 0),
            ([tokens, {"op": "mean_tokens"}], numbers + 3 * 2),
            ([tokens, {"op": "transpose"}], 2 * numbers),
            ([{"op": "global_avgpool"}], numbers + 3 * 2),
            ([{"op": "upsample"}], numbers + 4 * numbers),
            ([{"op": "maxpool", "kernel": 2, "stride": 2}], numbers + numbers // 4),
        ]
        for operations, moved in cases:
            calls = lowered(forward(3, 1), kernels, image, *operations)[-1]
            assert 2 * sum(prod(dict(call.sizes).values()) for call in calls) == moved, (kernels, operations)


@pytest.mark.parametrize("machine", ["h100", "a100_80", "tpu_v4", "course_cpu", "apple_m2"])
@pytest.mark.parametrize("kernels", ["eager", "compiled", "serving"])
def test_static_power_flows_for_as_long_as_a_step_takes(machine: str, kernels: str) -> None:
    """Its energy is that of every action of its kernels, and watts times its seconds: also while kernels are started,
    one after the other or as a graph, and while a host is waited for, also where a slice of a kernel is simulated."""
    spec = load_machine(machine).spec
    assert spec.energy is not None
    watts = float(sum(each.power + (each.clock or 0) for each in spec.energy.static.values()))
    step = prices(small(), machine, kernels=kernels).forward(16)
    actions = 0.0
    for operation in step.operations:
        for _, price, count in operation.kernels:
            split = energy_split(price.result)
            actions += count * price.scale * (sum(split.values()) - split.get("static", 0.0))
    assert step.joules == pytest.approx(actions + watts * step.seconds, rel=1e-6)


def advised(kind: str, *phases: str, fit: dict[str, object] | None = None, **about: object) -> dict[str, str]:
    """What a screen would advise a run that is bound by something."""
    usual = {"weights": "w4a16", "batch": 3, "allocator": "cached", "kernels": "eager"}
    model = {**usual, **about, "phases": [{"name": name} for name in phases], "fit": {"fits": True, **(fit or {})}}
    made = SimpleNamespace(work=SimpleNamespace(use={"model": model}))
    return dict(advise(made, Bound("a part", kind, 0.9, "")).parameters)  # type: ignore[arg-type]


def test_a_screen_advises_what_its_bound_suggests() -> None:
    """Each with both sides of its condition: what a run has already is never advised."""
    assert advised(HOST, "train", allocator="emptied") == {"allocator": "cached"}
    assert advised(HOST, "train") == advised(HOST, "decode") == {"kernels": "compiled"}
    for allocator in ("cached", "emptied"):
        for kind in ("starting kernels", "overhead inside kernels"):
            assert advised(kind, "forward", allocator=allocator) == {"batch": "12"}
        assert advised("compute", "forward", allocator=allocator, weights="fp32") == {"precision": "bf16"}
        assert advised("compute", "forward", allocator=allocator, weights="bf16") == {"batch": "6"}
        assert advised("bandwidth", "prefill", allocator=allocator, weights="fp32") == {"batch": "6"}
    for weights in ("bf16", "fp16", "fp32"):
        assert advised("bandwidth", "prefill", "decode", weights=weights) == {"weights": "w4a16"}
    for weights in ("w4a16", "w8a16", "fp8_e4m3"):
        assert advised("bandwidth", "prefill", "decode", weights=weights) == {"batch": "12"}
    assert advised("compute", "prefill", "decode", weights="fp32") == {"precision": "bf16"}


def test_what_does_not_fit_is_advised_narrower_weights_then_a_batch_then_more_devices() -> None:
    """As many as a power of two that hold what is needed, and not twice as many."""
    none = {"fits": False, "narrower": None, "largest_batch": 0, "needed": 10, "has": 8}
    assert advised("bandwidth", "decode", fit={**none, "narrower": "w4a16", "largest_batch": 2}) == {"weights": "w4a16"}
    assert advised("bandwidth", "decode", fit={**none, "largest_batch": 2}) == {"batch": "2"}
    for needed in (81, 159, 161, 319, 321, 1000):
        (devices,) = advised(HOST, "train", fit={**none, "needed": needed, "has": 80}).values()
        count = int(devices)
        assert count & (count - 1) == 0 and count * 80 > needed > count * 80 / 2
