"""Convolutions by transforms: the answer of the definition, with as many products as the theory says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwsim.errors import InputError
from hwsim.ops.conv import ConvWorkload
from hwsim.ops.conv_transform import Fourier, Winograd, find_transform, transformed_products
from hwsim.program.contraction import ConvShape
from hwsim.program.loop_kernel import OperatorKernel, build_kernel
from hwsim.program.loops import all_loops, walk
from tests.unit.kernels.helpers import workload


def made(sizes: dict[str, Any], **schedule: Any) -> OperatorKernel:
    spec = workload("conv2d", sizes, **schedule)
    assert isinstance(spec, ConvWorkload)
    kernel = build_kernel(spec)
    assert isinstance(kernel, OperatorKernel)
    return kernel


def test_the_matrices_are_those_of_lavin_and_gray() -> None:
    """arXiv 1509.09308, section 4.1, F(2x2,3x3); signs of a point may move from B to G."""
    found = Winograd(2, 3)
    b = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    a = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    ours = np.einsum("mp,pr,pt->mrt", found.results, found.filters, found.images)
    assert np.array_equal(ours, np.einsum("mp,pr,pt->mrt", a, g, b))


@pytest.mark.parametrize("transform", [Winograd(2, 3), Winograd(4, 3), Winograd(4, 5)])
def test_a_tile_is_a_correlation(transform: Winograd) -> None:
    """Σ_p A[m,p] G[p,r] B[p,t] is 1 where t = m + r and 0 elsewhere: the definition of what it computes."""
    made = np.einsum("mp,pr,pt->mrt", transform.results, transform.filters, transform.images)
    m, r, t = np.indices(made.shape)
    assert np.allclose(made, t == m + r, atol=1e-12)


@settings(max_examples=12, deadline=None)
@given(
    algorithm=st.sampled_from(["winograd", "winograd_nonfused", "fft"]),
    layout=st.sampled_from(["nchw", "nhwc"]),
    w_layout=st.sampled_from(["oihw", "hwio"]),
    sizes=st.fixed_dictionaries(
        {
            "batch": st.integers(1, 2), "ci": st.sampled_from([2, 4]), "co": st.sampled_from([2, 6]),
            "groups": st.sampled_from([1, 2]), "height": st.integers(3, 17), "width": st.integers(3, 17),
            "padding": st.integers(0, 2),
        }
    ),
    epilogue=st.sampled_from([(), ("bias", "relu")]),
)  # fmt: skip
def test_any_shape_gives_the_reference(
    algorithm: str, layout: str, w_layout: str, sizes: dict[str, int], epilogue: tuple[str, ...]
) -> None:
    kernel = made(sizes, algorithm=algorithm, layout=layout, w_layout=w_layout, epilogue=epilogue, precision="fp64")
    for phase in kernel.program:
        for loop, ranges, _ in walk(phase.items, {}):
            loop.compute(ranges)
    ((_, computed, reference),) = kernel.answers()
    assert np.abs(computed - reference).max() < 1e-10 * max(1.0, float(np.abs(reference).max()))


@pytest.mark.parametrize(("algorithm", "fewer"), [("winograd", 2.25), ("winograd_nonfused", 4.0)])
def test_products_are_as_many_as_the_theory_says(algorithm: str, fewer: float) -> None:
    """Lavin and Gray: (m r)² / (m + r - 1)² fewer, 2.25 for F(2x2,3x3) and 4 for F(4x4,3x3)."""
    sizes = {"ci": 3, "co": 5, "height": 8, "padding": 1}
    kernel = made(sizes, algorithm=algorithm)
    (products,) = [each for phase in kernel.program for each in all_loops(phase.items) if each.name == "products"]
    assert products.macs(products.ranges({})) * fewer == 3 * 5 * 64 * 9


def test_a_complex_product_is_four_of_real_numbers() -> None:
    shape = ConvShape(3, 5, (14, 14), (3, 3), 2, padding=(1, 1))
    found = find_transform("fft", shape)
    assert found == Fourier(16, 3)  # 14 outputs and a window of 3 fill a tile of 16
    assert transformed_products(found, shape) == 4 * 2 * 16 * 9 * 3 * 5


@pytest.mark.parametrize(
    ("algorithm", "sizes", "message"),
    [
        ("winograd", {"kernel": 5}, "filters of 3x3 that move by one, found 5x5"),
        ("winograd_nonfused", {"stride": 2}, "3x3 or 5x5 that move by one, found 3x3 with stride 2"),
        ("fft", {"kernel": 9}, "filters of 1x1 to 8x8"),
    ],
)
def test_what_no_transform_is_for_is_refused(algorithm: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made({"ci": 2, "height": 12, **sizes}, algorithm=algorithm)
    with pytest.raises(InputError, match="int8"):
        made({"ci": 2, "height": 12}, algorithm="fft", precision="int8")
