"""Hard matching: the mean correlation of units paired one to one.

    mean over i of r(x_i, y_P(i)),   P the one-to-one match with the largest sum of r

r is Pearson's. Of unequal widths min(d1, d2) pairs are made and the rest of the wider layer does not count
(matching_partial counts it). Constant units have no correlation and take no part. Unsigned: the same with |r|, for tanh
and other odd activations, where a unit and its negative are the same unit.

Range -1 to 1 (0 to 1 unsigned), 1 the same. Invariant to relabelling, to a positive factor and to a constant for each
unit; unsigned, to signs as well. Not to rotations: it is about units.

Source: Li, Yosinski, Clune, Lipson, Hopcroft, "Convergent Learning: Do different neural networks learn the same
representations?", ICLR 2016, section 3.2 (bipartite matching).
"""

from __future__ import annotations

import numpy as np

from canon.similarity.measures.base import MATCHED, Measure
from canon.similarity.pair import Pair


def _signed(pair: Pair) -> float:
    return float(pair.matching.r.mean())


def _unsigned(pair: Pair) -> float:
    sizes = np.abs(pair.correlations)
    found = pair.match(sizes)
    return float(sizes[found.a, found.b].mean())


HARD = Measure("matching_hard", "matched correlation, one to one", _signed, 1.0, -1.0, MATCHED, work="assign")
UNSIGNED = Measure(
    "matching_hard_unsigned",
    "matched correlation, one to one, signs aside",
    _unsigned,
    1.0,
    0.0,
    MATCHED | {"sign"},
    work="assign",
)
