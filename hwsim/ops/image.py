"""Further operations on images and fields: separable, transposed and three-dimensional convolution, a stencil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array
from hwsim.program.operation import Measured, Parameter, operation
from hwsim.spec.base import Extent, ParallelSchedule, Spec


class FieldSchedule(ParallelSchedule):
    """Loops in the order of the statements."""

    vector: bool = Field(True, description="Use the machine's vector unit.")


class SeparableSizes(Spec):
    """Images, and filters that see one channel or one pixel."""

    batch: Extent = Field(1, description="Images.")
    ci: Extent = Field(32, description="Input channels.")
    co: Extent = Field(64, description="Output channels.")
    height: Extent = Field(28, description="Rows of an image.")
    width: Extent = Field(28, description="Columns of an image.")
    kernel: Extent = Field(3, description="Rows and columns of a filter.")
    stride: Extent = Field(1, description="Rows and columns from one output to the next.")
    padding: int = Field(1, ge=0, description="Rows and columns of zeros on each side.")


@operation(
    "x[batch,ci,height,width] d[ci,kernel,kernel] p[co,ci] -> y[batch,co,height,width]",
    """
    depthwise: m[n,c,h,w] += x[n,c,stride*h+u-padding,stride*w+v-padding] * d[c,u,v]
    pointwise: y[n,o,h,w] += m[n,c,h,w] * p[o,c]
    """,
    sizes=SeparableSizes,
    schedule=FieldSchedule,
    formats={"y": "sums"},
    floats="separable_conv, whose second product takes the sums of the first without a scale,",
    stride=Parameter(1, "Rows and columns from one output to the next."),
    padding=Parameter(1, "Rows and columns of zeros on each side."),
)
def separable_conv(x: Array, d: Array, p: Array, stride: int, padding: int) -> Array:
    """A filter for each channel alone, then a product over the channels of each pixel: a separable convolution."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, d.shape[1:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.asarray(np.einsum("nchwuv,cuv,oc->nohw", seen, d, p, optimize=True))


class TransposedSizes(Spec):
    """Images, filters, and how far apart their prints lie."""

    batch: Extent = Field(1, description="Images.")
    ci: Extent = Field(32, description="Input channels.")
    co: Extent = Field(16, description="Output channels.")
    height: Extent = Field(14, description="Rows of an image.")
    width: Extent = Field(14, description="Columns of an image.")
    kernel: Extent = Field(4, description="Rows and columns of a filter; a multiple of the stride.")
    stride: Extent = Field(2, description="Rows and columns from one print of a filter to the next.")


def _transposed(
    shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: FieldSchedule
) -> Measured:
    """Output row s h + r sees input rows h, h - 1, … through the rows r, s + r, … of a filter."""
    (_, _, height, width), (_, _, rows, columns), stride = shapes["x"], shapes["w"], int(parameters["stride"])
    if rows % stride or columns % stride:
        raise ShapeError(f"a filter of {rows}x{columns} is no multiple of the stride {stride}: take a larger one")
    sizes = {"t": rows // stride, "v": columns // stride, "r": stride, "q": stride}
    sizes |= {"h": height + sizes["t"] - 1, "j": width + sizes["v"] - 1}
    return Measured("y[n,o,stride*h+r,stride*j+q] += x[n,c,h-t,j-v] * w[c,o,stride*t+r,stride*v+q]", sizes=sizes)


@operation(
    "x[batch,ci,height,width] w[ci,co,kernel,kernel] -> y[batch,co,height,width]",
    _transposed,
    sizes=TransposedSizes,
    schedule=FieldSchedule,
    formats={"y": "sums"},
    stride=Parameter(2, "Rows and columns from one print of a filter to the next."),
)
def transposed_conv(x: Array, w: Array, stride: int) -> Array:
    """Every pixel prints its filters on a larger image: a transposed convolution, as in decoders."""
    (n, _, height, width), (_, o, rows, columns) = x.shape, w.shape
    y: Array = np.zeros((n, o, stride * (height - 1) + rows, stride * (width - 1) + columns))
    for i, j in np.ndindex(height, width):
        y[..., i * stride : i * stride + rows, j * stride : j * stride + columns] += np.einsum(
            "nc,couv->nouv", x[:, :, i, j], w
        )
    return y


class VolumeSizes(Spec):
    """Volumes, and cubes of weights."""

    batch: Extent = Field(1, description="Volumes.")
    ci: Extent = Field(8, description="Input channels.")
    co: Extent = Field(16, description="Output channels.")
    depth: Extent = Field(10, description="Planes of a volume.")
    height: Extent = Field(12, description="Rows of a plane.")
    width: Extent = Field(14, description="Columns of a plane.")
    kernel: Extent = Field(3, description="Planes, rows and columns of a filter.")
    stride: Extent = Field(1, description="From one output to the next, along each axis.")
    padding: int = Field(1, ge=0, description="Zeros on each side of each axis.")


@operation(
    "x[batch,ci,depth,height,width] w[co,ci,kernel,kernel,kernel] -> y[batch,co,depth,height,width]",
    "y[n,o,d,h,w] += x[n,c,stride*d+t-padding,stride*h+u-padding,stride*w+v-padding] * w[o,c,t,u,v]",
    sizes=VolumeSizes,
    schedule=FieldSchedule,
    formats={"y": "sums"},
    stride=Parameter(1, "From one output to the next, along each axis."),
    padding=Parameter(1, "Zeros on each side of each axis."),
)
def conv3d(x: Array, w: Array, stride: int, padding: int) -> Array:
    """Convolution of volumes: of films, or of scans."""
    padded = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * 3))
    seen = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3, 4))
    return np.asarray(np.einsum("ncdhwtuv,octuv->nodhw", seen[:, :, ::stride, ::stride, ::stride], w, optimize=True))


class FieldSizes(Spec):
    """A field of points."""

    m: Extent = Field(256, description="Rows.")
    n: Extent = Field(256, description="Columns.")


@operation(
    "x[m,n] -> y[m,n]",
    "y[i,j] = centre * x[i,j] + side * (x[i-1,j] + x[i+1,j] + x[i,j-1] + x[i,j+1])",
    sizes=FieldSizes,
    schedule=FieldSchedule,
    formats={"y": "sums"},
    centre=Parameter(-4.0, "Weight of the point itself."),
    side=Parameter(1.0, "Weight of its four neighbours."),
)
def stencil(x: Array, centre: float, side: float) -> Array:
    """Each point of a field with its four neighbours, zeros around it: one step of a diffusion, or a Laplacian."""
    y: Array = centre * x
    for axis in (0, 1):
        for step in (1, -1):
            moved = np.roll(x, step, axis=axis)
            edge = [slice(None)] * 2
            edge[axis] = slice(0, 1) if step == 1 else slice(-1, None)
            moved[tuple(edge)] = 0
            y = y + side * moved
    return y
