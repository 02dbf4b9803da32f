"""Linear centred kernel alignment: the correlation of the two matrices of inner products between samples.

    CKA(X, Y) = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)),   K = X X^T, L = Y Y^T

cka_biased     HSIC_0 = ||X^T Y||_F^2 up to a factor. Of independent data it is not 0: with 100 samples of 1000 units 0.91.
cka            HSIC_1, unbiased: the diagonals of K and L are left out. With X, Y centred, p_i = ||x_i||^2, q_i = ||y_i||^2,
               n(n - 3) HSIC_1 = ||X^T Y||_F^2 - n/(n - 2) sum p_i q_i + (sum p_i)(sum q_i) / ((n - 1)(n - 2)),
               the d x d form of Song et al.'s (5), for K has row sums zero and K without its diagonal -p.
cka_standardised   `cka` of units that were divided by their standard deviations: every unit counts alike.

Range 0 to 1 biased, -1 to 1 unbiased; 1 the same. Invariant to rotations, to one factor for all units and to a constant
for each. Not to a factor for each unit: a rescaled copy of a network falls below a stranger. cka_standardised is
invariant to factors and signs, and not to rotations.

Sources: Kornblith, Norouzi, Lee, Hinton, "Similarity of Neural Network Representations Revisited", ICML 2019; HSIC_1: Song,
Smola, Gretton, Bedo, Borgwardt, "Feature Selection via Dependence Maximization", JMLR 2012, (5); in CKA: Nguyen, Raghu,
Kornblith, "Do Wide and Deep Networks Learn the Same Things?", ICLR 2021, (3).
"""

from __future__ import annotations

import numpy as np

from canon.errors import NumericError
from canon.similarity.layer import Floats, Layer
from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.pair import Pair


def ratio(both: float, a: float, b: float) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)); NumericError where a side has no variation to speak of."""
    if not (a > 0 and b > 0):
        raise NumericError("", "a side's samples do not differ enough to be told from its noise")
    return both / float(np.sqrt(a) * np.sqrt(b))


def _squared(matrix: Floats) -> float:
    return float(np.vdot(matrix, matrix))


def _self(layer: Layer) -> float:
    return _squared(layer.scatter)


def _biased(pair: Pair) -> float:
    pair = pair.core
    sizes = [side.once("squared scatter", _self) for side in (pair.a, pair.b)]
    pair.a.check_live()
    pair.b.check_live()
    return min(ratio(_squared(pair.cross), *sizes), 1.0)


def unbiased(cross: float, products: float, p: float, q: float, n: int) -> float:
    """n(n - 3) HSIC_1 from ||X^T Y||_F^2, sum of p q, sum of p and sum of q."""
    return cross - n / (n - 2) * products + p * q / ((n - 1) * (n - 2))


def _unbiased(pair: Pair) -> float:
    pair = pair.core
    a, b, n = pair.a, pair.b, pair.a.count
    if n < 4:
        raise NumericError("", f"unbiased CKA needs at least 4 samples, and there are {n}")
    sizes = [side.once("squared scatter", _self) for side in (a, b)]
    a.check_live()
    b.check_live()
    own = [unbiased(size, side.norms[1], side.norms[0], side.norms[0], n) for size, side in zip(sizes, (a, b), strict=True)]
    both = unbiased(_squared(pair.cross), pair.products, a.norms[0], b.norms[0], n)
    return float(np.clip(ratio(both, *own), -1.0, 1.0))


def _standardised(pair: Pair) -> float:
    return _unbiased(pair.standardised)


CKA = Measure("cka", "linear CKA, unbiased", _unbiased, 1.0, -1.0, NORMED)
BIASED = Measure("cka_biased", "linear CKA, biased", _biased, 1.0, 0.0, NORMED)
STANDARDISED = Measure(
    "cka_standardised",
    "linear CKA of standardised units, unbiased",
    _standardised,
    1.0,
    -1.0,
    NORMED - {"orthogonal"} | {"scale"},
)
