"""Linear assignment: the permutation of least cost, or of most similarity, with the proof of optimality where it is cheap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from canon.symmetry import Floats, Indices


@dataclass(frozen=True)
class Assignment:
    """partner[i]: the column assigned to row i; proved: whether every row has its own best column, all distinct, which
    proves the optimum without a solver.
    """

    partner: Indices
    proved: bool


def assign(similarity: Floats) -> Assignment:
    """The permutation with the largest total similarity. similarity: (n, n), finite.

    If the best columns of all rows are distinct they are the optimum, at a fraction of the cost of a solver; otherwise
    scipy's modified Jonker-Volgenant (Crouse 2016) decides.
    """
    best = similarity.argmax(axis=1)
    if len(np.unique(best)) == len(best):
        return Assignment(best, True)
    from scipy.optimize import linear_sum_assignment

    return Assignment(np.asarray(linear_sum_assignment(similarity, maximize=True)[1], np.intp), False)


def runners_up(similarity: Floats, partner: Indices) -> tuple[Indices, Floats, Floats]:
    """For each row: its best column other than the partner, the similarity there, and the best of row or column.

    Returns (runner-up, its similarity, similarity of the best rival in the row or in the partner's column).
    """
    n = len(similarity)
    if n < 2:
        return np.full(n, -1), np.full(n, -np.inf), np.full(n, -np.inf)
    rows = np.arange(n)
    rest = similarity.copy()
    rest[rows, partner] = -np.inf
    second = rest.argmax(axis=1)
    in_row = rest[rows, second]
    in_column = rest.max(axis=0)[partner]
    return second, in_row, np.maximum(in_row, in_column)
