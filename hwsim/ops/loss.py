"""Losses with their gradients: softmax with cross-entropy, and the mean of squared differences."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hwsim.numerics.format import Array, Format
from hwsim.ops.norm import RowSchedule, row_by_row
from hwsim.ops.pointwise import MatrixSizes, VectorSchedule
from hwsim.program.kernel import Formula, Setting
from hwsim.program.operation import StatementOperator, operation


def _cross_entropy_counts(operator: StatementOperator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    examples, classes = operator.inputs[1].shape
    return (Formula("operations", "m(6n + 4)", examples * (6 * classes + 4), "operations", "flops"),)


@operation(
    "labels[m] X[m,n] -> loss[m] dX[m,n]",
    """
    maximum:      max[r0] max= X[r0,c]
    exponentials: dX[r0,c] = exp(X[r0,c] - max[r0])
    sum:          scale[r0] += dX[r0,c]
                  scale[r0] = reciprocal(scale[r0])
    loss:         loss[r0] = max[r0] - X[r0,labels[r0]] - log(scale[r0])
    gradient:     dX[r0,c] = dX[r0,c] * scale[r0] - (c == labels[r0])
    """,
    sizes=MatrixSizes,
    schedule=RowSchedule,
    layout=row_by_row,
    formulas=_cross_entropy_counts,
)
def cross_entropy(labels: Array, X: Array) -> tuple[Array, Array]:
    """Softmax and cross-entropy of each row against its label, and the gradient y - t.

    By the logarithm of the sum of exponentials, folded element by element: large logits do no harm.
    """
    log_sum = np.logaddexp.reduce(X, axis=1)
    t = np.eye(X.shape[1])[labels.astype(np.int64)]
    return log_sum - (X * t).sum(axis=1), np.exp(X - log_sum[:, None]) - t


def _mse_counts(operator: StatementOperator, setting: Setting, fmt: Format) -> Sequence[Formula]:
    return (Formula("operations", "5n + 1", 5 * prod(operator.inputs[0].shape) + 1, "operations", "flops"),)


@operation(
    "Y[m,n] T[m,n] -> loss[1] dY[m,n]",
    """
    loss:     loss[0] += (Y[i,j] - T[i,j]) ** 2
              loss[0] = loss[0] / (|i| * |j|)
    gradient: dY[i,j] = (Y[i,j] - T[i,j]) * (2 / (|i| * |j|))
    """,
    sizes=MatrixSizes,
    schedule=VectorSchedule,
    floats=True,
    formulas=_mse_counts,
)
def mse(Y: Array, T: Array) -> tuple[Array, Array]:
    """The mean squared difference of two tensors, and its gradient."""
    difference = (Y - T).reshape(-1)
    return np.array([difference @ difference / difference.size]), (difference * 2 / difference.size).reshape(Y.shape)
