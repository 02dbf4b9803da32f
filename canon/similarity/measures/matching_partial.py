"""Partial matching: hard matching in which a unit may stay without a partner, and then counts nothing.

    1/max(d1, d2)  max over partial one-to-one matches M of  sum over (i, j) in M of r(x_i, y_j)

d1, d2 count the units that vary. A pair is made only where r is positive, and the units of the wider layer that are left
over lower the value, which is therefore 1 only for equal widths; of equal widths without negative pairs it is hard matching.

Range 0 to 1, 1 the same. Invariant to relabelling, to a positive factor and to a constant for each unit.

Source: the bipartite matching of Li et al., "Convergent Learning", ICLR 2016, with unmatched units counted; the linear
assignment problem with r replaced by max(r, 0) solves it.
"""

from __future__ import annotations

import numpy as np

from canon.similarity.measures.base import MATCHED, Measure
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    gain = np.maximum(pair.correlations, 0.0)
    found = pair.match(gain)
    return float(gain[found.a, found.b].sum()) / max(int(pair.a.live.sum()), int(pair.b.live.sum()))


PARTIAL = Measure(
    "matching_partial", "matched correlation, units without a partner counted", _of, 1.0, 0.0, MATCHED, work="assign"
)
