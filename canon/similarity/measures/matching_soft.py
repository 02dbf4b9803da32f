"""Soft matching: how well each unit's nearest unit on the other side correlates with it.

    1/2 (mean over i of max_j r(x_i, y_j)  +  mean over j of max_i r(x_i, y_j))

Several units may share a partner. Constant units take no part.

Range -1 to 1, 1 the same. Invariant to relabelling, to a positive factor and to a constant for each unit.

Source: Li et al., "Convergent Learning", ICLR 2016, section 3.2 (semi-matching); averaged over both directions as in
Klabunde et al., "ReSi: A Comprehensive Benchmark for Representational Similarity Measures", 2024.
"""

from __future__ import annotations

import numpy as np

from canon.similarity.measures.base import MATCHED, Measure
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    r = pair.correlations[np.ix_(pair.a.live, pair.b.live)]
    return float(r.max(axis=1).mean() + r.max(axis=0).mean()) / 2


SOFT = Measure("matching_soft", "correlation with the nearest unit", _of, 1.0, -1.0, MATCHED)
