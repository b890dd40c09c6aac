"""Units at banks: counts and times by hand for a GDDR6 chip with 32 of them, 32 bytes in a cycle of 1 ns each."""

from __future__ import annotations

import json

import pytest

import hwsim
from hwsim.api import run_all
from hwsim.catalog import load_machine
from hwsim.errors import CapacityError, InputError, SpecError
from hwsim.results.plot.run import level_bandwidths
from hwsim.targets.pim.lower import Banks, _share, lower
from tests.cli.command_line import hwsim as command
from tests.unit.mapping.test_product import formula

BANKS, WIDTH_BYTES, ROW_NS = 32, 32, 28
"""The units of the chip, a column, and precharge + activate (14 ns each in its file)."""


def test_a_matrix_times_a_vector_reads_the_matrix_once_inside_the_banks() -> None:
    """1024 x 1024 bf16 values are 2 MiB: 64 KiB in each bank, 2048 columns of 32 B and 32 rows of 2 KiB."""
    run = run_all("gddr6_aim", "matvec", parameters={"n": 1024, "m": 1024})
    outcome = run.outcome
    assert outcome.dram.bytes_read == 2 * 1024 * 1024
    assert outcome.parts["mac"] == 2048 * 10**6
    assert outcome.parts["row activation"] == 32 * ROW_NS * 10**6
    assert run.result.verified


def test_only_the_vector_and_the_results_pass_the_channel() -> None:
    """2 KiB of the vector to each of two channels, 2 KiB of results."""
    used = run_all("gddr6_aim", "matvec", parameters={"n": 1024, "m": 1024}).result.work["pim"]
    assert used["passes"][0]["channel_bytes"] == 2 * 2048 + 2048


def test_the_roof_is_that_of_the_banks_and_no_run_lies_above_it() -> None:
    """512 GB/s inside each of two channels (SK hynix at Hot Chips 35); the 64 GB/s of the pins made 977 % of a run."""
    machine = load_machine("gddr6_aim").spec
    assert level_bandwidths(machine, machine.compute[0].count)["dram"] == 2 * 512e9
    outcome = command("roofline", "gddr6_aim", "matvec", "n=1024", "--json", "-")
    (spot,) = json.loads(outcome.out)["spots"]
    assert 0.3 * spot["intensity"] * 1.024e12 < spot["flops_per_s"] <= spot["intensity"] * 1.024e12


def test_every_vector_of_a_product_reads_the_matrix_again() -> None:
    """Nothing is reused between vectors: n of them take n times as long, but for the first and the last bytes."""
    one, many = (run_all("gddr6_aim", "matmul", parameters={"n": 256, "m": m}).outcome for m in (1, 64))
    assert many.dram.bytes_read == 64 * one.dram.bytes_read
    assert many.parts["mac"] == 64 * one.parts["mac"]


def test_the_operand_stays_in_the_banks_whose_outputs_fill_them() -> None:
    """Four rows would leave 28 of 32 banks idle: a thin first operand is told, a thin second one too."""
    rows = run_all("gddr6_aim", "matmul", parameters={"n": 256, "m": 4}).result.work["pim"]
    column = run_all("gddr6_aim", "matvec", parameters={"n": 256, "m": 256}).result.work["pim"]
    assert [used["passes"][0]["stays"] for used in (rows, column)] == ["ws", "is"]


def test_a_wider_problem_than_the_buffer_is_told_in_stretches() -> None:
    """The buffer holds 1024 values of bf16: 2048 of them come in two stretches, each with its own partial results."""
    used = [run_all("gddr6_aim", "matvec", parameters={"n": n, "m": 64}).result.work["pim"] for n in (1024, 2048)]
    assert [use["passes"][0]["commands"] for use in used] == [1, 2]


def test_what_banks_cannot_do_is_refused_with_what_they_can() -> None:
    with pytest.raises(InputError, match=r"softmax|max is neither a matrix product nor an element-wise loop"):
        hwsim.run("gddr6_aim", "softmax", n=64)


def test_a_format_that_the_units_lack_is_refused() -> None:
    with pytest.raises(InputError, match=r"has no rate for fp32; its formats are bf16"):
        hwsim.run("gddr6_aim", "matvec", n=64, precision="fp32")


@pytest.mark.parametrize(
    ("setting", "words"),
    [("bank.count=24", "do not share 32 banks evenly"), ("buffer.holds=[output]", "no scratchpad holds 'input'")],
)
def test_a_chip_that_does_not_fit_together_is_refused(setting: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_machine("gddr6_aim", [setting])


def test_the_timeline_has_banks_channel_and_power() -> None:
    outcome = run_all("gddr6_aim", "matmul", timeline=True, parameters={"n": 128}).outcome
    assert {span.lane for span in outcome.spans} == {"bank[0..31]", "channel in"}
    spent = sum(pulse.ledger.counts().get("bank.mac.bf16", 0) for pulse in outcome.pulses)
    assert spent == pytest.approx(128**3, rel=0.01)


def test_results_arrive_after_columns_refreshes_and_an_access_over_the_pins() -> None:
    """One command: 14 ns to its first column, refreshes of 120 ns in each 1.9 us, 100 ns until the host has results."""
    outcome = run_all("gddr6_aim", "matvec", math=False, parameters={"n": 1024, "m": 1024}).outcome
    assert outcome.parts["first column"] == 14 * 10**6
    worked = sum(outcome.parts[name] for name in ("mac", "row activation", "first column"))
    assert outcome.parts["refresh"] == pytest.approx(worked * 120 / (1900 - 120), rel=1e-6)
    assert outcome.parts["outputs"] >= 100 * 10**6


def test_a_row_stays_open_as_long_as_the_device_demands() -> None:
    """64 columns take 64 ns of a row: 32 ns is no limit, 100 ns adds 36 - 14 ns to each of 32 rows."""
    slow = load_machine("gddr6_aim", ["dram.timing.tras=100 ns"]).spec
    outcome = run_all(slow, "matvec", math=False, parameters={"n": 1024, "m": 1024}).outcome
    assert outcome.parts["row activation"] == 32 * (36 + 14) * 10**6


def test_a_second_bank_for_each_unit_hides_that_rows_open() -> None:
    """While one opens a row for 28 ns, 64 columns of the other are read."""
    two = load_machine("gddr6_aim", ["dram.banks=32"]).spec
    outcome = run_all(two, "matvec", math=False, parameters={"n": 1024, "m": 1024}).outcome
    assert outcome.parts.get("row activation", 0) == 0


def test_latches_hold_a_column_for_each_unit() -> None:
    with pytest.raises(CapacityError, match=r"needs 1 KiB in latch, which has 512 B"):
        hwsim.run("gddr6_aim", "matvec", n=64, set={"latch.size": "512 B"})


@pytest.mark.parametrize(("total", "count"), [(32, 5), (5, 32), (7, 7), (1, 1), (1000, 3)])
def test_shares_of_a_total_differ_by_one_at_most_and_are_the_total(total: int, count: int) -> None:
    shares = [_share(total, number, count) for number in range(count)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_sum_of_arrays_opens_the_rows_that_hold_them_and_reads_all_their_columns() -> None:
    """Two arrays of 2^18 bf16 come and one goes: 1.5 MiB, of which a bank has 48 KiB in 24 rows of 2 KiB."""
    run = run_all("gddr6_aim", "add", parameters={"n": 1 << 18})
    used = run.result.work["pim"]["passes"][0]
    moved = 3 * 2 * (1 << 18)
    assert run.outcome.dram.bytes_read + run.outcome.dram.bytes_written == moved
    assert run.outcome.parts["row activation"] == moved // BANKS // 2048 * ROW_NS * 10**6
    assert run.outcome.parts["elementwise"] == moved // BANKS // WIDTH_BYTES * 10**6
    assert used["stays"] == "" and run.result.verified


@pytest.mark.parametrize(("bits", "lanes"), [(16, 16), (32, 8), (8, 32), (12, 21), (512, 1)])
def test_a_unit_works_on_as_many_values_as_a_column_of_32_bytes_holds(bits: int, lanes: int) -> None:
    assert Banks.of(load_machine("gddr6_aim").spec).lanes(bits) == lanes


def test_columns_and_rows_are_counted_whole() -> None:
    banks = Banks.of(load_machine("gddr6_aim").spec)
    assert [banks.columns(nbytes) for nbytes in (0, 1, 32, 33)] == [0, 1, 1, 2]
    assert [banks.rows(nbytes) for nbytes in (0, 1, 2048, 2049)] == [0, 1, 1, 2]


def test_an_operand_that_was_computed_before_is_put_into_the_banks_only_where_it_stays_there() -> None:
    """B is 8 x 64 bf16, 1 KiB: told where the weights stay, 128 B for each of 8 rows to each of two channels; put away
    first where it stays, and then 64 x 32 weights are told in 32 columns."""
    kernel = formula("B[i,j] = A[i,j] + A[i,j]; C[i,k] += B[i,j] * W[j,k]", precision="bf16", i=8, j=64, k=32)
    banks = Banks.of(load_machine("gddr6_aim").spec, "bf16")
    weights, inputs = (lower(banks, kernel, dataflow)[1] for dataflow in ("ws", "is"))
    assert (weights.written_bytes, inputs.written_bytes) == (0, 1024)
    assert sum(step.repeat * step.told_bytes for step in weights.steps) == 8 * 2 * 128
    assert sum(step.repeat * step.out_bytes for step in weights.steps) == 8 * 32 * 2
    first, *others = inputs.steps
    assert (first.repeat, first.told_bytes, first.out_bytes) == (1, 1024, 0)
    assert sum(step.repeat * step.told_bytes for step in others) == 32 * 2 * 128
    assert sum(step.repeat * step.out_bytes for step in others) == 8 * 32 * 2
    assert weights.macs == inputs.macs == 8 * 64 * 32
