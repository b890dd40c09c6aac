"""The latencies of a machine file are read: in chains of hand-written kernels, and where blocks end."""

from __future__ import annotations

import pytest

from hwsim.ops.attention_shape import AttentionShape
from hwsim.program.contraction import GemmShape
from hwsim.spec.workload import ThreadSchedule
from hwsim.targets.gpu.hand_written import MatmulProblem, ProgramCost, find_tiles, make_program, program_cost
from tests.unit.hardware.gpu.made import device, model

SLOW = 400


def by_hand(kernel: str, fmt: str = "fp32", bits: int = 32, *overrides: str) -> ProgramCost:
    asked = ThreadSchedule.model_validate({"kernel": kernel})
    return program_cost(device("a100_40", *overrides), make_program(MatmulProblem(256, 256, 256, fmt, bits), asked))


@pytest.mark.parametrize(
    ("kernel", "fmt", "bits", "field"), [("shared", "fp32", 32, "fma"), ("tensor", "fp16", 16, "tensor")]
)
def test_sums_that_wait_for_each_other_hold_up_a_block(kernel: str, fmt: str, bits: int, field: str) -> None:
    plain, slow = by_hand(kernel, fmt, bits), by_hand(kernel, fmt, bits, f"sm.latency.{field}={10 * SLOW}")
    assert slow.step.wait > plain.step.wait
    assert slow.cost.seconds > 1.5 * plain.cost.seconds


def test_sums_side_by_side_hide_the_latency_of_the_shipped_machine() -> None:
    """64 sums of a thread and 8 warps: a chain of 8 products waits for nothing."""
    assert by_hand("register_2d").step.wait == by_hand("register_2d", "fp32", 32, "sm.latency.fma=1").step.wait


@pytest.mark.parametrize(("field", "precision"), [("fma", "fp32"), ("tensor", "fp16")])
def test_a_block_of_the_library_ends_when_its_last_result_is_there(field: str, precision: str) -> None:
    shape = GemmShape(256, 256, 256)
    slow = model("a100_40", f"sm.latency.{field}={SLOW}").gemm(shape, precision).seconds
    assert slow > model("a100_40").gemm(shape, precision).seconds


def test_special_functions_end_softmax_and_attention_later() -> None:
    plain, slow = model("a100_40"), model("a100_40", f"sm.latency.special={SLOW}")
    shape = AttentionShape(512, 512, 64, 4, 4)
    assert slow.attention(shape, "fp16").seconds > plain.attention(shape, "fp16").seconds
    assert slow.softmax(512, 512, "fp16").seconds > plain.softmax(512, 512, "fp16").seconds
    assert slow.layernorm(512, 512, "fp16").seconds == plain.layernorm(512, 512, "fp16").seconds


def test_a_warp_issues_a_tensor_core_instruction_for_each_16_by_8_results_and_16_terms() -> None:
    """PTX, mma.m16n8k16: a warp tile of 64 x 64 is 4 x 8 of them for each 16 of k, beside 16 others."""
    asked = ThreadSchedule.model_validate({"kernel": "tensor"})
    program = make_program(MatmulProblem(256, 256, 256, "fp16", 16), asked)
    assert program.other == (64 // 16) * (64 // 8) * (32 // 16) + 16
    assert program.fma == 64 * 64 * 32 // 32


@pytest.mark.parametrize(
    ("kernel", "fmt", "bits", "l2_hits", "barriers"),
    [("shared", "fp32", 32, 7 / 8, 2), ("register_2d", "fp32", 32, 1 / 2, 2), ("tensor", "fp16", 16, 1 / 2, 1)],
)
def test_a_block_with_one_buffer_waits_for_memory_for_barriers_and_for_the_first_operand(
    kernel: str, fmt: str, bits: int, l2_hits: float, barriers: int
) -> None:
    """Cycles of the shipped file: 33 to the first level, 206 to the second, 550 to memory, 23 to shared memory. Each
    byte comes once; of eight tiles in a row seven find what they need in the second level, of two one does."""
    found = by_hand(kernel, fmt, bits, "shared.buffers=1")
    assert found.traffic.l1_hit_rate == 0 and found.traffic.l2_hit_rate == l2_hits
    far = 206 + (1 - l2_hits) * (550 - 206)
    assert found.step.wait == pytest.approx(far + 20 * barriers + 23)


def test_two_buffers_leave_the_barrier_to_wait_for_where_a_kernel_loads_ahead() -> None:
    assert by_hand("tensor", "fp16", 16).step.wait == 20
    assert by_hand("shared").step.wait == by_hand("shared", "fp32", 32, "shared.buffers=1").step.wait


@pytest.mark.parametrize(
    ("kernel", "fmt", "bits"), [("naive", "fp32", 32), ("shared", "fp32", 32), ("tensor", "fp16", 16)]
)
def test_the_formula_of_a_small_product_moves_each_matrix_once(kernel: str, fmt: str, bits: int) -> None:
    """Both operands of 256 x 256 fit the second level, and the result leaves."""
    found = by_hand(kernel, fmt, bits)
    assert found.cost.closed.dram_bytes == 3 * 256**2 * bits // 8
    assert found.cost.dram_bytes == pytest.approx(found.cost.closed.dram_bytes)


@pytest.mark.parametrize("kernel", ["register_1d", "register_2d", "vectorised", "warp_tiled"])
def test_a_thread_reads_the_operands_of_its_results_from_shared_memory_and_all_load_the_tiles_once(kernel: str) -> None:
    """Rows of A and columns of B for each of bk terms: their product are the results, whose terms are the products."""
    asked = ThreadSchedule.model_validate({"kernel": kernel})
    tiles, program = find_tiles(asked), make_program(MatmulProblem(1024, 1024, 1024), asked)

    def words(tensor: str, space: str, *, write: bool) -> int:
        each = [a for a in program.loop if (a.tensor, a.space, a.write) == (tensor, space, write)]
        return sum(a.times * a.nbytes // 4 for a in each)

    rows, columns = (words(tensor, "shared", write=False) / tiles.bk for tensor in ("As", "Bs"))
    assert rows * columns * tiles.bk == program.fma
    assert rows * columns * tiles.threads == tiles.bm * tiles.bn
    for tensor, extent in (("A", tiles.bm), ("B", tiles.bn)):
        assert words(tensor, "global", write=False) * tiles.threads == extent * tiles.bk
        assert words(f"{tensor}s", "shared", write=True) * tiles.threads == extent * tiles.bk
