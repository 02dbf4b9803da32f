"""Pair: two layers on the same samples, with a pairing of the samples, and what measures ask of both.

A measure is a function of a Pair. Its null is the same function of the same Pair with the samples of b in another
order: `permuted` makes that one; all that belongs to a layer alone is shared, and what is left is one product X^T P Y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canon.errors import MismatchError, NumericError
from canon.similarity.layer import BLOCK, Floats, Indices, Layer, Scaled, expanded, in_places

WIDEST = 1 << 30
"""Bytes that a matrix of all units by all units may take."""


@dataclass(frozen=True)
class Match:
    """Units paired one to one: a[i] with b[i], both as numbered in their layers, and the correlation r[i] of the two."""

    a: Indices
    b: Indices
    r: Floats


class Pair:
    """Two layers and how their samples are paired.

    order: which sample of b, among those held, stands beside each of a (None: the same one);
    cross: computes X^T Y, where it is known from elsewhere (a stream's sums); products: sum of p q over all rows, likewise.
    """

    def __init__(
        self,
        a: Layer,
        b: Layer,
        order: Indices | None = None,
        *,
        cross: Callable[[], Floats] | None = None,
        products: float | None = None,
        scaled_products: float | None = None,
    ) -> None:
        if (a.count, a.positions) != (b.count, b.positions):
            raise MismatchError(f"{a.name} and {b.name}", unlike(a, b))
        self.a, self.b, self.order = a, b, order
        self._cross, self._products, self._scaled = cross, products, scaled_products
        self._core: Pair | None = None

    def permuted(self, order: Indices) -> Pair:
        """The same two layers with the samples of b in another order."""
        return Pair(self.a, self.b, order)

    @cached_property
    def index(self) -> Indices | None:
        """`order` over rows."""
        return None if self.order is None else expanded(self.order, self.b.positions)

    @cached_property
    def cross(self) -> Floats:
        """X^T Y, (d1, d2). Of a stream's permuted samples: estimated from the rows held.

        E + sqrt(n/m) (S - E'), with S the product of the m rows held, E' its mean over all permutations (what the positions of
        a sample have in common over samples) and E that of all n rows: the same mean and spread as over all rows.
        """
        if self._cross is not None:
            return self._cross()
        a, b, n = self.a, self.b, self.a.count
        if 8 * a.units * b.units > WIDEST:
            raise NumericError(f"{a.name} and {b.name}", f"{a.units:,} by {b.units:,} units are too many to pair one by one")
        found = product(a.rows, b.rows, self.index)
        if a.held == n:
            return found
        spread = np.sqrt(n / a.held)
        if a.positions == 1:
            return np.asarray(spread * found)
        mean = a.places.T @ b.places / (n // a.positions)
        here = in_places(a.rows, a.positions).T @ in_places(b.rows, b.positions) / a.samples
        return np.asarray(mean + spread * (found - here))

    @cached_property
    def products(self) -> float:
        """Sum of p q over all rows."""
        if self._products is not None:
            return self._products
        q = self.b.squares if self.index is None else self.b.squares[self.index]
        return float(self.a.squares @ q) * (self.a.count / self.a.held)

    @property
    def core(self) -> Pair:
        """The pair of cores, for measures that allow rotations. Kept where it is not this pair itself."""
        a, b = self.a.core, self.b.core
        if a is self.a and b is self.b:
            return self
        if self._core is None:
            self._core = Pair(a, b, self.order)
        return self._core

    @property
    def standardised(self) -> Pair:
        """The pair with standardised units. Not kept: it refers to this one, and a ring of large arrays is freed late."""
        a, b = self.a.standardised, self.b.standardised
        if a is self.a:
            return self

        assert isinstance(a, Scaled)
        assert isinstance(b, Scaled)
        scales = a.factor[:, None], b.factor
        return Pair(a, b, self.order, cross=lambda: self.cross * scales[0] * scales[1], products=self._scaled)

    @cached_property
    def correlations(self) -> Floats:
        """Pearson's r of every unit of a with every unit of b, (d1, d2); zero where one is constant.

        Raises NumericError where all units of one side are constant.
        """
        self.a.check_live()
        self.b.check_live()
        return np.clip(self.standardised.cross, -1.0, 1.0)

    @cached_property
    def matching(self) -> Match:
        """The one-to-one match of min(d1, d2) live units with the largest sum of correlations."""
        return self.match(self.correlations)

    def match(self, gain: Floats) -> Match:
        """The one-to-one match of live units with the largest sum of a (d1, d2) gain."""
        rows, columns = np.flatnonzero(self.a.live), np.flatnonzero(self.b.live)
        i, j = assigned(gain[np.ix_(rows, columns)])
        a, b = rows[i], columns[j]
        return Match(a, b, self.correlations[a, b])

    def nuclear(self, matrix: Floats) -> float:
        """The sum of a matrix's singular values. Of permuted samples: to half the digits, at a third of the time."""
        return float(self.singular(matrix).sum())

    def singular(self, matrix: Floats) -> Floats:
        """A matrix's singular values, in any order; no vectors are computed."""
        if self.order is None:
            return np.asarray(np.linalg.svd(matrix, compute_uv=False))
        small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
        return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(small), 0.0)))

    # of samples by samples

    @cached_property
    def few_order(self) -> Indices | None:
        """The order of the rows of `few`: as `order` has those samples among themselves."""
        if self.order is None:
            return None
        return expanded(ranks(self.order[self.a.few_samples]), self.a.positions)

    def beside(self, matrix: Floats) -> Floats:
        """A samples by samples matrix of b, in this pair's order."""
        at = self.few_order
        return matrix if at is None else matrix[np.ix_(at, at)]


def ranks(order: Indices) -> Indices:
    """The order that some samples of a permutation have among themselves: a permutation of as many, and as likely as any."""
    return np.argsort(np.argsort(order))


def product(x: Floats, y: Floats, index: Indices | None = None) -> Floats:
    """x^T y, with the rows of y in another order; these are gathered a block at a time."""
    if index is None:
        return x.T @ y
    out = np.zeros((x.shape[1], y.shape[1]))
    for i in range(0, len(x), BLOCK):
        out += x[i : i + BLOCK].T @ y[index[i : i + BLOCK]]
    return out


def assigned(gain: Floats) -> tuple[Indices, Indices]:
    """The one-to-one match of rows and columns with the largest total; of a rectangle, the longer side is left over.

    Best columns of all rows that are distinct are the optimum, at a fraction of the cost of the solver.
    """
    if gain.shape[0] > gain.shape[1]:
        j, i = assigned(gain.T)
        return i, j
    best = gain.argmax(axis=1)
    if len(np.unique(best)) == len(best):
        return np.arange(len(best)), best
    from scipy.optimize import linear_sum_assignment

    i, j = linear_sum_assignment(gain, maximize=True)
    return np.asarray(i, np.intp), np.asarray(j, np.intp)


def unlike(a: Layer, b: Layer) -> str:
    """Why two layers cannot be paired, in words."""
    if a.positions == b.positions:
        return f"{a.count // a.positions:,} samples and {b.count // b.positions:,}"
    return f"{a.positions:,} positions a sample and {b.positions:,}"
