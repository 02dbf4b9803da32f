"""Procrustes distance: how far the two clouds of samples are apart once one is rotated onto the other.

    min over orthogonal Q of ||X Q - Y||_F^2 = ||X||_F^2 + ||Y||_F^2 - 2 ||X^T Y||_*

with the nuclear norm ||.||_*, the sum of singular values; of unequal widths the narrower side gets columns of zeros.
`procrustes` is the distance of X / ||X||_F and Y / ||Y||_F, `procrustes_size` that of X and Y as they are.

Range 0 (the same) to the square root of 2; of procrustes_size from 0 on, in the activations' own unit. Invariant to
rotations and to a constant for each unit, `procrustes` to one factor for all units as well; not to a factor for each unit.

Sources: Schonemann, "A generalized solution of the orthogonal Procrustes problem", 1966; Williams, Kunz, Kornblith,
Linderman, "Generalized Shape Metrics on Neural Representations", NeurIPS 2021; Ding, Denain, Steinhardt, "Grounding
Representation Similarity with Statistical Testing", NeurIPS 2021.
"""

from __future__ import annotations

import math

import numpy as np

from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.pair import Pair


def cosine(pair: Pair) -> float:
    """||X^T Y||_* / (||X||_F ||Y||_F), from 0 to 1."""
    core = pair.core
    core.a.check_live()
    core.b.check_live()
    return near_one(core.nuclear(core.cross) / math.sqrt(core.a.norms[0] * core.b.norms[0]))


def near_one(cosine: float) -> float:
    """A cosine, 1 where it is 1 up to rounding: the distance it stands for goes with its square root, and would be 1e-8."""
    return cosine if cosine < 1 - 64 * np.finfo(np.float64).eps else 1.0


def _normed(pair: Pair) -> float:
    return math.sqrt(2 - 2 * cosine(pair))


def _size(pair: Pair) -> float:
    core = pair.core
    core.a.check_live()
    core.b.check_live()
    p, q = core.a.norms[0], core.b.norms[0]
    return math.sqrt(max(p + q - 2 * core.nuclear(core.cross), 0.0))


PROCRUSTES = Measure(
    "procrustes", "Procrustes distance of normed activations", _normed, 0.0, math.sqrt(2), NORMED, work="spectral"
)
SIZE = Measure("procrustes_size", "Procrustes distance", _size, 0.0, math.inf, NORMED - {"isotropic"}, work="spectral")
