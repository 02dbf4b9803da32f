"""PWCCA: canonical correlations weighted by how much of a side each direction accounts for.

    PWCCA(X -> Y) = sum_i a_i rho_i / sum_i a_i,   a_i = sum_j |<h_i, x_j>|,   h_i = X w_i the canonical variates of X

with <h_i, h_j> = [i = j], over min(rank X, rank Y) variates. The value is the mean of both directions, so that it does not
depend on which side is named first.

Range 0 to 1, 1 the same span. Invariant to relabelling, to signs, to one factor for all units and to a constant for each;
the weights, not the correlations, see rotations and factors of single units.

Source: Morcos, Raghu, Bengio, "Insights on representational similarity in neural networks with canonical correlation",
NeurIPS 2018, section 3 (its text; its published code projects onto directions that are not whitened).
"""

from __future__ import annotations

import numpy as np

from canon.similarity.layer import Floats, Layer
from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    wa, wb = pair.a.whitener, pair.b.whitener
    u, rho, vt = np.linalg.svd(wa.T @ pair.core.cross @ wb, full_matrices=False)
    rho = np.minimum(rho, 1.0)
    weights = _weights(pair.a, wa @ u), _weights(pair.b, wb @ vt.T)
    return float(np.mean([w @ rho / w.sum() for w in weights]))


def _weights(layer: Layer, directions: Floats) -> Floats:
    """a, for the variates X w: of units, not of the core's columns."""
    if layer.core is layer:
        return np.asarray(np.abs(directions.T @ layer.scatter).sum(axis=1))
    return np.asarray(np.abs((layer.core.rows @ directions).T @ layer.rows).sum(axis=1))


PWCCA = Measure("pwcca", "weighted mean canonical correlation", _of, 1.0, 0.0, NORMED - {"orthogonal"}, work="spectral")
