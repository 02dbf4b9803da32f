"""Mean canonical correlation: how well the best linear combinations of the two sides' units agree.

    mean over i of rho_i,   rho the singular values of W^T X^T Y V,   W^T X^T X W = 1,  V^T Y^T Y V = 1

over min(rank X, rank Y) of them. Each direction counts alike, however little it varies: with fewer than about ten samples
a unit, chance alone makes it large, and with no more samples than units it is 1 whatever the data.

Range 0 to 1, 1 the same span. Invariant to any invertible linear map and to a constant for each unit.

Sources: Hotelling, "Relations between two sets of variates", 1936; on networks: Raghu, Gilmer, Yosinski, Sohl-Dickstein,
"SVCCA", NeurIPS 2017; Kornblith et al., ICML 2019, (the mean is their rho-bar).
"""

from __future__ import annotations

import numpy as np

from canon.similarity.layer import Floats
from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.pair import Pair


def correlations(pair: Pair) -> Floats:
    """All canonical correlations, min(rank X, rank Y) of them, in any order."""
    core = pair.core
    whitened = pair.a.whitener.T @ core.cross @ pair.b.whitener
    return np.minimum(pair.singular(whitened), 1.0)


def _of(pair: Pair) -> float:
    return float(correlations(pair).mean())


CCA = Measure("cca", "mean canonical correlation", _of, 1.0, 0.0, NORMED | {"scale", "linear"}, work="spectral")
