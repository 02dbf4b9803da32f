"""SVCCA: the mean canonical correlation of each side's largest principal components.

The fewest components that hold 99% of the variance are kept on each side; then as in cca.py, over the smaller number.

Range 0 to 1, 1 the same. Invariant to rotations, to one factor for all units and to a constant for each; not to a factor
for each unit, which changes what is kept.

Source: Raghu, Gilmer, Yosinski, Sohl-Dickstein, "SVCCA: Singular Vector Canonical Correlation Analysis for Deep Learning
Dynamics and Interpretability", NeurIPS 2017, section 2.
"""

from __future__ import annotations

import numpy as np

from canon.similarity.layer import Floats, Layer
from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.pair import Pair

SHARE = 0.99


def svcca(pair: Pair, share: float = SHARE) -> float:
    """Mean canonical correlation of the components that hold a share of the variance."""
    whitened = _kept(pair.a, share).T @ pair.core.cross @ _kept(pair.b, share)
    return float(np.minimum(pair.singular(whitened), 1.0).mean())


def _kept(layer: Layer, share: float) -> Floats:
    """W with W^T X^T X W = 1 that spans those components, of the core."""

    def compute(layer: Layer) -> Floats:
        layer.check_live()
        values, vectors = layer.principal
        held = np.cumsum(values) / values.sum()
        # a sum that should reach the share and rounds below it has reached it
        count = min(int(np.searchsorted(held, share - 1e-12)) + 1, len(values))
        return np.asarray(vectors[:, :count] / np.sqrt(values[:count]))

    found: Floats = layer.once(("principal components", share), compute)
    return found


SVCCA = Measure("svcca", "mean canonical correlation of principal components", svcca, 1.0, 0.0, NORMED, work="spectral")
