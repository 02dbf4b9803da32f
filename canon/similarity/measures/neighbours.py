"""Nearest neighbours of samples: shared by the measures that compare them."""

from __future__ import annotations

import numpy as np

from canon.errors import NumericError
from canon.similarity.layer import Floats, Indices, Layer
from canon.similarity.pair import Pair

K = 10
"""Neighbours of each sample."""


def nearest(layer: Layer) -> Indices:
    """The K samples with the largest cosine to each sample, itself apart, (n, K). Ties go to the earlier sample.

    Activations are taken as they came, not centred; a sample that is zero has cosine 0 with all.
    """
    layer.check_live()
    x = layer.seen
    if len(x) <= K:
        raise NumericError("", f"{K} nearest neighbours need more than {K} samples, and there are {len(x)}")
    sizes = np.linalg.norm(x, axis=1, keepdims=True)
    x /= np.where(sizes > 0, sizes, 1.0)
    cosines = x @ x.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :K]


def shared(pair: Pair) -> Floats:
    """How many neighbours each sample has in common on both sides."""
    a, b = (side.once(nearest, nearest) for side in (pair.a, pair.b))

    def table(layer: Layer) -> np.ndarray:
        found = np.zeros((len(a), len(a)), bool)
        np.put_along_axis(found, a, True, axis=1)
        return found

    here = pair.a.once("neighbourhood", table)
    if pair.few_order is not None:
        back = np.argsort(pair.few_order)
        b = back[b[pair.few_order]]
    return np.asarray(np.take_along_axis(here, b, axis=1).sum(axis=1), np.float64)
