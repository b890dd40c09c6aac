"""The command under `next` is run: it changes something, is taken, and brings what it is there for."""

from __future__ import annotations

import shlex

import pytest

from hwsim.api import resolve_machine, run_all
from hwsim.cli.app import main
from hwsim.cli.arguments import parse_words
from hwsim.cli.run import next_command
from hwsim.result import RunResult
from hwsim.results.explanation import explain

GAIN = 1.02
"""Less than this is no gain."""
TYPICAL = (
    "a100_40 matmul n=4096 precision=fp16",
    "a100_40 matmul n=4096 precision=fp32",
    "a100_40 matmul n=512 precision=fp16",
    "a100_40 softmax n=4096 precision=fp16",
    "a100_40 attention_naive n=4096 heads=16 precision=fp16",
    "a100_40 attention_fused n=4096 heads=16 precision=fp16",
    "h100 attention_naive n=2048 heads=16",
    "h100 matmul n=2048 precision=fp16",
    "h100 matmul n=8192 precision=fp16",
    "h100 matmul m=1 n=8192 k=8192 precision=fp16",
    "v100 matmul n=2048 precision=fp16",
    "v100 matmul n=2048 precision=fp16 --set sm.count=160",
    "tpu_v1 matmul n=512",
    "tpu_v1 resnet_block",
    "tpu_v3 matmul n=1024 precision=bf16",
    "tpu_v3 matmul m=1 n=1024 k=1024 precision=bf16",
    "tpu_v4 matmul n=1024 precision=bf16 distribution=normal",
    "tpu_v6e softmax n=2048",
    "trainium matmul n=1024 precision=bf16",
    "trainium matmul m=1 n=128 k=128 precision=bf16",
    "gemmini16 conv2d",
    "edge_npu mlp",
    "scalesim_32 matmul n=64",
    "scalesim_32 matmul n=1",
    "gddr6_aim matvec",
    "gddr6_aim matmul n=1024",
    "gddr6_aim add",
    "zen4 matmul_simd n=48",
    "tinytorch_cpu matmul n=7",
    "eyeriss conv2d",
    "eyeriss matmul n=64",
)
"""Products large and small, attention, layers: on GPUs, arrays and a grid."""

Command = tuple[list[str], list[str]]
"""Words and settings."""


def read(command: str) -> Command:
    words = iter(shlex.split(command))
    kept: list[str] = []
    settings: list[str] = []
    for word in words:
        if word == "--set":
            settings.append(next(words))
        else:
            kept.append(word)
    return kept, settings


def simulate(command: Command) -> RunResult:
    given = parse_words(command[0])
    machine = resolve_machine(given.machine, command[1])
    return run_all(machine, given.workload, math=False, parameters=given.parameters).result


def advised(command: Command, result: RunResult) -> Command:
    return read(next_command("run", *command, explain(result).advice).removeprefix("hwsim run "))


def gain(before: RunResult, after: RunResult) -> float:
    """How many times as fast; of a problem of another size, operations in a second."""
    if before.resolved.workload.get("sizes") == after.resolved.workload.get("sizes"):
        return before.time_s / after.time_s
    return after.work.flops_per_s / before.work.flops_per_s


@pytest.mark.parametrize("typed", TYPICAL)
def test_what_a_run_advises_next_is_taken_and_is_faster(typed: str) -> None:
    command = read(typed)
    result = simulate(command)
    following = advised(command, result)
    assert sorted(following[0] + following[1]) != sorted(command[0] + command[1])
    assert gain(result, simulate(following)) >= GAIN


@pytest.mark.parametrize("typed", ["trainium matmul m=1 n=128 k=128 precision=bf16", "tpu_v1 matmul n=512",
                                   "a100_40 matmul n=4096 precision=fp16", "eyeriss matmul n=64"])  # fmt: skip
def test_no_command_is_its_own_advice(typed: str) -> None:
    """Followed four times, each leads to another command."""
    command = read(typed)
    seen = [command]
    for _ in range(4):
        command = advised(command, simulate(command))
        assert command not in seen
        seen.append(command)


def test_memory_that_is_idle_is_not_blamed_for_its_bandwidth() -> None:
    """32 KiB of weights at 410 GB/s take 80 ns of five microseconds; a transfer of trainium takes 2 us to begin."""
    words = explain(simulate(read("trainium matmul m=1 n=128 k=128 precision=bf16"))).bound
    assert (words.kind, words.short) == ("latency", "latency of weights")
    assert "2 us of the DMA engine" in words.words
    endless = simulate(read("trainium matmul m=1 n=128 k=128 precision=bf16 --set dram.bandwidth=inf"))
    assert "dram (no limit)" in explain(endless).bound.words


def test_the_next_command_does_no_math_where_the_run_did_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A product of 8,192 took half a minute after one that took a third of a second."""
    for option in ([], ["--no-math"]):
        assert main(["run", "h100", "matmul", "n=128", "precision=fp16", *option]) == 0
        assert ("--no-math" in capsys.readouterr().out.partition("next ")[2]) == bool(option)


def test_a_chain_in_the_nearest_cache_is_advised_to_be_longer() -> None:
    """A latency of one cycle cannot be halved."""
    command = read("tinytorch_cpu pointer_chase")
    (words, settings) = advised(command, simulate(command))
    assert settings == [] and words[-1] == "bytes=64 KiB"
    simulate((words, settings))


@pytest.mark.parametrize(("typed", "gathers"), [("matmul n=33", False), ("matmul_naive n=64 vector=true", True)])
def test_only_a_loop_whose_operand_lies_across_its_vectors_is_said_to_gather(typed: str, gathers: bool) -> None:
    """The last vector of a row of 33 is short; the others bring what vectors bring."""
    result = simulate(read(f"course_cpu {typed}"))
    assert any("a gather" in warning for warning in result.warnings) == gathers
