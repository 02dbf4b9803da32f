"""Linear regression: the share of b's variance that the best linear map from a accounts for.

    R^2 = ||Q^T Y||_F^2 / ||Y||_F^2,   Q an orthonormal basis of X's columns

Not symmetric: a predicts b. Fitted and measured on the same samples, so that chance alone reaches about d/n and, with no
more samples than units, 1.

Range 0 to 1, 1 where b is a linear function of a. Invariant to any invertible linear map of a, to rotations of b and one
factor for all its units, and to a constant for each unit of either.

Source: Kornblith, Norouzi, Lee, Hinton, "Similarity of Neural Network Representations Revisited", ICML 2019, table 1.
"""

from __future__ import annotations

import numpy as np

from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    pair.b.check_live()
    explained = pair.a.whitener.T @ pair.core.cross
    return min(float(np.vdot(explained, explained)) / pair.core.b.norms[0], 1.0)


REGRESSION = Measure(
    "regression",
    "R2 of b predicted from a",
    _of,
    1.0,
    0.0,
    NORMED,
    predictor=frozenset({"scale", "linear"}),
    work="spectral",
)
