"""``key=value`` for sizes, schedule and precision."""

from __future__ import annotations

import pytest

from hwsim.errors import OverrideError
from hwsim.spec.variant import with_parameters
from hwsim.sweep.grid import make_axis
from tests.unit.kernels.helpers import workload

MATMUL = workload("matmul", {"n": 256})
CHASE = workload("pointer_chase", {})
FORMULA = workload("formula", {"i": 3, "k": 4}, formula="C[i] += A[i,k]")


def test_sizes_schedule_and_precision_have_plain_names():
    changed = with_parameters(MATMUL, {"n": "64", "tile": "32", "order": "ikj", "precision": "fp64", "vector": "true"})
    assert (changed.sizes.n, changed.schedule.tile, changed.schedule.order) == (64, 32, "ikj")
    assert (changed.precision, changed.schedule.vector) == ("fp64", True)
    assert MATMUL.sizes.n == 256


def test_values_may_be_python_values():
    assert with_parameters(MATMUL, {"n": 64, "vector": True}).sizes.n == 64


def test_null_takes_a_value_away():
    tiled = with_parameters(MATMUL, {"tile": "32"})
    assert with_parameters(tiled, {"tile": "null"}).schedule.tile is None


def test_sizes_with_units():
    assert with_parameters(CHASE, {"bytes": "2 MiB"}).sizes.bytes == 2 * 1024 * 1024


def test_a_whole_number_may_be_written_with_an_exponent():
    assert with_parameters(MATMUL, {"n": "1e3"}).sizes.n == 1000
    assert make_axis("n", "1e3,1000,2e3").values == (1000, 2000)


def test_indices_of_a_formula_are_keys():
    changed = with_parameters(FORMULA, {"i": "32", "tile.i": "4", "order": "k,i"})
    assert changed.sizes == {"i": 32, "k": 4}
    assert changed.schedule.tile == {"i": 4}
    assert changed.schedule.order == ("k", "i")


@pytest.mark.parametrize(
    ("spec", "parameters", "message"),
    [
        (
            MATMUL,
            {"tiel": "3"},
            r"^tiel: matmul has no such parameter; did you mean 'tile'\?; hwsim show matmul lists all$",
        ),
        (MATMUL, {"n": "abc"}, "n=abc: must be a whole number$"),
        (MATMUL, {"n": "0"}, "n=0: must be a whole number of at least 1"),
        (MATMUL, {"size": "3"}, "^size: matmul has no such parameter; its sizes are n, m, k; hwsim show matmul lists"),
        (MATMUL, {"N": "3"}, "N: matmul has no such parameter; did you mean 'n'"),
        (MATMUL, {"n": "1.5e0"}, "n=1.5: must be a whole number$"),
        (MATMUL, {"n": "64,128"}, "n=64,128: one value is needed; hwsim sweep takes several$"),
        (MATMUL, {"n": "64..128:x2"}, "one value is needed; hwsim sweep takes several$"),
        (MATMUL, {"precision": "fp16,bf16"}, "one value is needed; hwsim sweep takes several$"),
        (MATMUL, {"order": "ijkk"}, r"order=ijkk: must be ijk \| ikj.*did you mean 'ijk'"),
        (MATMUL, {"v1": "0", "v2": "0"}, "v1=0.*\nv2=0"),
        (MATMUL, {"tile": "4", "b1": "3"}, "either tile .* or b1 and b2"),
        (MATMUL, {"packed": "true"}, "packed needs tiles"),
        (MATMUL, {"packed": "true", "tile": "4", "ld": "300"}, "no leading dimension"),
        (MATMUL, {"ld": "255"}, "ld 255 is less than the 256 elements"),
        (MATMUL, {"m": "300", "k": "400", "ld": "399"}, "ld 399 is less than the 400 elements"),
        (MATMUL, {"precision": "fp31"}, "precision=fp31: .*did you mean 'fp32'"),
        (CHASE, {"bytes": "32"}, "bytes=32: .*no unit"),
        (CHASE, {"stride": "1 MiB"}, "stride must be between"),
        (MATMUL, {"n": "[1"}, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_explained(spec, parameters, message):
    with pytest.raises(OverrideError, match=message):
        with_parameters(spec, parameters)


def test_a_leading_dimension_of_exactly_a_row_is_accepted():
    assert with_parameters(MATMUL, {"ld": "256"}).schedule.ld == 256
