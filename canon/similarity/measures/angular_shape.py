"""Angular shape distance: the angle that is left between the two clouds of samples once one is rotated onto the other.

    arccos( ||X^T Y||_* / (||X||_F ||Y||_F) )

Range 0 (the same) to pi/2, in radians. A metric. Invariant to rotations, to one factor for all units and to a constant for
each; not to a factor for each unit. It orders as `procrustes` does.

Source: Williams, Kunz, Kornblith, Linderman, "Generalized Shape Metrics on Neural Representations", NeurIPS 2021, (5).
"""

from __future__ import annotations

import math

from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.measures.procrustes import cosine
from canon.similarity.pair import Pair


def _of(pair: Pair) -> float:
    return math.acos(cosine(pair))


ANGULAR = Measure("angular_shape", "angle after rotation", _of, 0.0, math.pi / 2, NORMED, work="spectral")
