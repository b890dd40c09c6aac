"""Rank correlation: whether two measurements put things in the same order, whatever their scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rho, ties sharing their mean rank; 0 where one side does not vary."""
    a, b = _ranks(first), _ranks(second)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    data = np.asarray(values, np.float64)
    order = np.argsort(data, kind="stable")
    ranks = np.empty(len(data), np.float64)
    ranks[order] = np.arange(len(data), dtype=np.float64)
    for value in np.unique(data):
        ranks[data == value] = ranks[data == value].mean()
    return ranks
