"""Kernel matrices, samples by samples, and their alignment: shared by the measures that need one. Notation of cka.py."""

from __future__ import annotations

import numpy as np

from canon.errors import NumericError
from canon.similarity.layer import Floats, Layer


def distances(x: Floats) -> Floats:
    """Squared Euclidean distances between the rows, (n, n)."""
    x = x - x.mean(axis=0)
    inner = x @ x.T
    squares = np.diagonal(inner)
    found = np.maximum(squares[:, None] + squares - 2 * inner, 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def bandwidth(layer: Layer) -> float:
    """The median distance between two samples, squared."""

    def compute(layer: Layer) -> float:
        found = distances(layer.seen)
        return float(np.median(np.sqrt(found[np.triu_indices(len(found), 1)]))) ** 2

    return float(layer.once("bandwidth", compute))


def rbf(x: Floats, squared_bandwidth: float) -> Floats:
    """exp(-|x_i - x_j|^2 / (2 bandwidth^2)), (n, n)."""
    if not squared_bandwidth > 0:
        raise NumericError("", "half of all pairs of samples coincide, so that the kernel has no width")
    return np.asarray(np.exp(distances(x) / (-2 * squared_bandwidth)))


def centred(kernel: Floats) -> Floats:
    """H K H with H = 1 - 1/n: inner products of such matrices are (n - 1)^2 HSIC_0."""
    rows = kernel.mean(axis=0)
    return np.asarray(kernel - rows - rows[:, None] + rows.mean())


def hollow(kernel: Floats) -> Floats:
    """K without its diagonal, centred so that inner products of such matrices are n(n - 3) HSIC_1.

    Szekely and Rizzo, "Partial distance correlation with methods for dissimilarities", 2014, definition 2.
    """
    n = len(kernel)
    if n < 4:
        raise NumericError("", f"unbiased CKA needs at least 4 samples, and there are {n}")
    found = kernel - np.diag(np.diagonal(kernel))
    rows = found.sum(axis=0) / (n - 2)
    found -= rows + rows[:, None] - rows.sum() / (n - 1)
    np.fill_diagonal(found, 0.0)
    return found


def unit(matrix: Floats, what: str) -> Floats:
    """A matrix divided by its Frobenius norm; NumericError where that is zero up to rounding."""
    norm = float(np.linalg.norm(matrix))
    if not norm > 1e-12 * len(matrix):
        raise NumericError("", f"{what} do not vary")
    return matrix / norm
