"""Layers and updates of networks: rotary positions, a cell of an LSTM, routing to experts, a mixture of experts, Adam,
products with pruned weights.

Losses with their gradients: softmax with cross-entropy, and the mean of squared differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from pydantic import Field

from hwsim.errors import ShapeError
from hwsim.numerics.format import Array, Format
from hwsim.ops.norm import RowSchedule, row_by_row
from hwsim.ops.pointwise import MatrixSizes, VectorSchedule, VectorSizes
from hwsim.program.kernel import Formula, Setting
from hwsim.program.operation import Measured, Operator, Parameter, operation


class LayerSchedule(VectorSchedule):
    """Loops one after the other, in vectors."""

    vector: bool = Field(True, description="Use the machine's vector unit.")


@operation(
    "X[n,heads,d] cosine[n,pairs] sine[n,pairs] -> Y[n,heads,d]",
    """
    rotate: x = X[t,g,2*k]
            y = X[t,g,2*k+1]
            Y[t,g,2*k] = x * cosine[t,k] - y * sine[t,k]
            Y[t,g,2*k+1] = x * sine[t,k] + y * cosine[t,k]
    """,
    sizes="X[n, heads, d], with a sine and a cosine for each position and pair of channels.",
    n=(512, "Positions."),
    heads=(8, "Heads."),
    d=(64, "Channels of a head; even."),
    pairs=(32, "Pairs of channels: half of d."),
    schedule=LayerSchedule,
    check=lambda workload: (
        "" if workload.sizes.d == 2 * workload.sizes.pairs else "d must be twice the number of pairs"
    ),
)
def rope(X: Array, cosine: Array, sine: Array) -> Array:
    """Rotary position embedding: pairs of channels turned by an angle that grows with the position (Su and others,
    2021)."""
    turned = (X[..., 0::2] + 1j * X[..., 1::2]) * (cosine + 1j * sine)[:, None]
    return np.stack((turned.real, turned.imag), axis=-1).reshape(X.shape)


@operation(
    "X[batch,d] H[batch,h] C[batch,h] W[4,d,h] U[4,h,h] bias[4,h] -> C1[batch,h] H1[batch,h]",
    """
    inputs: Z[g,b,j] += X[b,k] * W[g,k,j]
    state:  S[g,b,j] += H[b,l] * U[g,l,j]
    cell:   i = 1 / (1 + exp(-(Z[0,b,j] + S[0,b,j] + bias[0,j])))
            f = 1 / (1 + exp(-(Z[1,b,j] + S[1,b,j] + bias[1,j])))
            o = 1 / (1 + exp(-(Z[2,b,j] + S[2,b,j] + bias[2,j])))
            C1[b,j] = f * C[b,j] + i * tanh(Z[3,b,j] + S[3,b,j] + bias[3,j])
            H1[b,j] = o * tanh(C1[b,j])
    """,
    sizes="X[batch, d], and a state of h numbers.",
    batch=(16, "Sequences."),
    d=(128, "Inputs."),
    h=(128, "State."),
    schedule=LayerSchedule,
    formats={"Z": "sums", "S": "sums"},
)
def lstm_cell(X: Array, H: Array, C: Array, W: Array, U: Array, bias: Array) -> tuple[Array, Array]:
    """One step of a long short-term memory: input, forget and output gates, and the new state."""
    z = np.einsum("bk,gkj->gbj", X, W) + np.einsum("bl,glj->gbj", H, U) + bias[:, None]
    i, f, o = ((1 + np.tanh(each / 2)) / 2 for each in z[:3])
    state = f * C + i * np.tanh(z[3])
    return state, o * np.tanh(state)


@operation(
    "W[n] G[n] M[n] V[n] -> M1[n] V1[n] W1[n]",
    """
    adam: M1[i] = beta1 * M[i] + (1 - beta1) * G[i]
          V1[i] = beta2 * V[i] + (1 - beta2) * G[i] ** 2
          W1[i] = W[i] - rate * M1[i] / (sqrt(V1[i]) + epsilon)
    """,
    sizes=VectorSizes,
    schedule=LayerSchedule,
    over={"M1": "M", "V1": "V", "W1": "W"},
    positive=frozenset("V"),
    rate=Parameter(1e-3, "Step width, with the correction of the first steps in it.", limits={"gt": 0}),
    beta1=Parameter(0.9, "How much of the mean of gradients stays.", limits={"ge": 0, "lt": 1}),
    beta2=Parameter(0.999, "How much of the mean of squares stays.", limits={"ge": 0, "lt": 1}),
    epsilon=Parameter(1e-8, "Added to the root.", limits={"gt": 0}),
)
def adam(
    W: Array, G: Array, M: Array, V: Array, rate: float, beta1: float, beta2: float, epsilon: float
) -> tuple[Array, Array, Array]:
    """A step of the optimizer Adam, in place: means of gradients and of their squares, and the new weights."""
    m, v = M + (1 - beta1) * (G - M), V + (1 - beta2) * (G * G - V)
    return m, v, W - rate * m / (np.sqrt(v) + epsilon)


def _routing(shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any], schedule: object) -> str:
    """The k largest scores of a token one after the other, each below the one before."""
    k = parameters["k"]
    if k > shapes["X"][1]:
        raise ShapeError(f"k={k}: there are {shapes['X'][1]} experts")
    later = (f"next: top{j}[t] max= where(X[t,e] < top{j - 1}[t], X[t,e], -inf)" for j in range(2, k + 1))
    total = f"sum: total[t] += where(X[t,e] >= top{k}[t], exp(X[t,e] - top1[t]), 0)"
    gates = f"gates: Y[t,e] = where(X[t,e] >= top{k}[t], exp(X[t,e] - top1[t]) / total[t], 0)"
    return "\n".join(("best: top1[t] max= X[t,e]", *later, total, gates))


@operation(
    "X[tokens,experts] -> Y[tokens,experts]",
    _routing,
    sizes="Scores of each token for each expert.",
    tokens=(256, "Tokens."),
    experts=(8, "Experts."),
    schedule=LayerSchedule,
    formats={"total": "wide"},
    k=Parameter(2, "Experts for each token.", limits={"ge": 1, "le": 16}),
)
def top_k_routing(X: Array, k: int) -> Array:
    """The weight of each expert for each token: a softmax over the k largest scores, zero for the others; equal scores
    go together."""
    least = np.array([np.unique(row)[-k:][0] for row in X])
    kept = least[:, None] <= X
    powers = np.where(kept, np.exp(X - X.max(axis=1, keepdims=True)), 0)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _experts(shapes: Mapping[str, Sequence[int]], parameters: object, schedule: object) -> Measured:
    slots, experts = shapes["token"][0], shapes["W1"][0]
    if slots % experts:
        raise ShapeError(f"{slots} slots cannot be shared evenly among {experts} experts")
    each = slots // experts
    text = f"""
    dispatch: D[s,k] = X[token[s],k]
    up:       U[e,c,j] += D[{each}*e+c,k] * W1[e,k,j]
              U[e,c,j] = U[e,c,j] / (1 + exp(-U[e,c,j]))
    down:     O[{each}*e+c,i] += U[e,c,j] * W2[e,j,i]
    combine:  Y[t,i] = gate1[t] * O[slot1[t],i] + gate2[t] * O[slot2[t],i]
    """
    return Measured(text, sizes={"e": experts, "c": each})


@operation(
    "X[tokens,d] token[slots] slot1[tokens] slot2[tokens] gate1[tokens] gate2[tokens] W1[experts,d,f] W2[experts,f,d] "
    "-> Y[tokens,d]",
    _experts,
    sizes="Tokens of width d, each sent to two of `experts` networks of width f with room for `slots` tokens in all.",
    tokens=(128, "Tokens."),
    d=(64, "Width of a token."),
    f=(128, "Width inside an expert."),
    experts=(4, "Experts."),
    slots=(256, "Places for tokens, shared evenly among the experts: two for each token."),
    schedule=LayerSchedule,
    positive=frozenset(("gate1", "gate2")),
)
def mixture_of_experts(
    X: Array, token: Array, slot1: Array, slot2: Array, gate1: Array, gate2: Array, W1: Array, W2: Array
) -> Array:
    """A layer of experts: tokens are copied to their experts' slots, go through two products there, and come back
    weighted."""
    experts, d, _ = W1.shape
    rows = X[token.astype(np.int64)].reshape(experts, -1, d)
    inside = np.matmul(rows, W1)
    out = np.matmul(inside * (1 + np.tanh(inside / 2)) / 2, W2).reshape(-1, d)
    first, second = out[slot1.astype(np.int64)], out[slot2.astype(np.int64)]
    return np.asarray(gate1[:, None] * first + gate2[:, None] * second)


@operation(
    "A[m,kept] column[kept] B[k,n] -> C[m,n]",
    "product: C[i,j] += A[i,q] * B[column[q],j]",
    sizes="C[m, n] = A[m, k] B[k, n], where A has only `kept` columns that are not zero: n of each m (2 of 4).",
    m=(256, "Rows of A and C."),
    n=(256, "Columns of B and C."),
    k=(256, "Rows of B."),
    kept=(128, "Columns of A that are stored."),
    schedule=LayerSchedule,
    formats={"C": "sums"},
    check=lambda workload: "" if workload.sizes.kept <= workload.sizes.k else "no more columns can be kept than k",
)
def sparse_matmul(A: Array, column: Array, B: Array) -> Array:
    """A product with pruned weights, stored without their zeros: rows of B that meet only zeros are never read.

    The pattern (N of each M columns) is common to all rows of A, so that a machine can really skip the others.
    """
    dense = np.zeros((A.shape[0], B.shape[0]))
    np.add.at(dense.T, column.astype(np.int64), A.T)
    return np.asarray(dense @ B)


def _cross_entropy_counts(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
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


def _mse_counts(operator: Operator, setting: Setting, fmt: Format) -> Sequence[Formula]:
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
