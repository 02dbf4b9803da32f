"""Representational similarity analysis: do both sides find the same samples unlike each other?

    d_ij = 1 - r(x_i, x_j),   r Pearson's correlation of two samples over units, as they came and not centred over samples

The two lists of d_ij, i < j, are compared by Pearson's r (rsa_pearson), Spearman's rank correlation (rsa_spearman) or their
cosine (rsa_cosine). A sample that is the same in all units correlates with none. Of more than 1024 rows a seeded choice
is used.

Range -1 to 1 (cosine 0 to 1), 1 the same. Invariant to relabelling, to one factor for all units and to a number added to
all units of a sample. Not to constants, signs or rotations: taking off a sample's mean singles out one direction.

Source: Kriegeskorte, Mur, Bandettini, "Representational similarity analysis: connecting the branches of systems
neuroscience", 2008.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from canon.errors import NumericError
from canon.similarity.layer import Floats, Layer
from canon.similarity.measures.base import Measure
from canon.similarity.measures.kernels import unit
from canon.similarity.pair import Pair

_ALLOWED = frozenset({"permutation", "isotropic", "shift"})
_WHAT = "dissimilarities between samples"


def dissimilarities(layer: Layer) -> Floats:
    """d, (n, n)."""
    layer.check_live()
    x = layer.seen
    if x.shape[1] < 2:
        raise NumericError("", "samples of a single unit have no correlation with each other")
    x = x - x.mean(axis=1, keepdims=True)
    sizes = np.linalg.norm(x, axis=1)
    flat = sizes <= 4 * layer.rounding * np.abs(layer.seen).max(axis=1) * np.sqrt(x.shape[1])
    x /= np.where(flat, 1.0, sizes)[:, None]
    x[flat] = 0.0
    found: Floats = 1 - np.clip(x @ x.T, -1.0, 1.0)
    np.fill_diagonal(found, 0.0)
    return found


def _off_diagonal(values: Floats) -> Floats:
    """Centred over all i != j, with zeros on the diagonal."""
    n = len(values)
    found: Floats = values - values.sum() / (n * (n - 1))
    np.fill_diagonal(found, 0.0)
    return found


def _ranked(values: Floats) -> Floats:
    from scipy.stats import rankdata

    at = np.triu_indices(len(values), 1)
    found = np.zeros_like(values)
    found[at] = rankdata(values[at])
    return _off_diagonal(found + found.T)


def _as_is(values: Floats) -> Floats:
    return values


def _compared(how: Callable[[Floats], Floats]) -> Callable[[Pair], float]:
    def compute(layer: Layer) -> Floats:
        found: Floats = layer.once(dissimilarities, dissimilarities)
        return unit(how(found), _WHAT)

    def of(pair: Pair) -> float:
        if len(pair.a.few) < 3:
            raise NumericError("", "two samples have a single dissimilarity; it takes three to compare")
        u, v = (side.once(how, compute) for side in (pair.a, pair.b))
        return float(np.vdot(u, pair.beside(v)))

    return of


PEARSON = Measure(
    "rsa_pearson", "dissimilarity of samples, Pearson's r", _compared(_off_diagonal), 1.0, -1.0, _ALLOWED, work="samples"
)
SPEARMAN = Measure(
    "rsa_spearman", "dissimilarity of samples, rank correlation", _compared(_ranked), 1.0, -1.0, _ALLOWED, work="samples"
)
COSINE = Measure("rsa_cosine", "dissimilarity of samples, cosine", _compared(_as_is), 1.0, 0.0, _ALLOWED, work="samples")
