"""Permutation distance: as Procrustes, but units may only be relabelled, not rotated.

    min over permutations P of ||X - Y P||_F^2 = ||X||_F^2 + ||Y||_F^2 - 2 max_P sum_i (X^T Y)_{i P(i)}

permutation_angle is the angle arccos( max_P sum_i (X^T Y)_{i P(i)} / (||X||_F ||Y||_F) ). Of unequal widths the narrower
side gets units that are zero.

Range 0 (the same) on, in the activations' own unit; of the angle 0 to pi, in radians. Invariant to relabelling and to a
constant for each unit, the angle to one factor for all units as well; not to a factor for each unit, nor to signs.

Source: Williams, Kunz, Kornblith, Linderman, "Generalized Shape Metrics on Neural Representations", NeurIPS 2021, section 3.
"""

from __future__ import annotations

import math

import numpy as np

from canon.similarity.measures.base import Measure
from canon.similarity.measures.procrustes import near_one
from canon.similarity.pair import Pair, assigned


def _matched(pair: Pair) -> tuple[float, float, float]:
    """max_P sum_i (X^T Y)_{i P(i)}, ||X||^2 and ||Y||^2."""
    pair.a.check_live()
    pair.b.check_live()
    gain = pair.cross
    if gain.shape[0] != gain.shape[1]:
        padded = np.zeros((max(gain.shape),) * 2)  # a unit may meet one that is zero
        padded[: gain.shape[0], : gain.shape[1]] = gain
        gain = padded
    return float(gain[assigned(gain)].sum()), pair.a.norms[0], pair.b.norms[0]


def _angle(pair: Pair) -> float:
    best, p, q = _matched(pair)
    return math.acos(max(near_one(best / math.sqrt(p * q)), -1.0))


def _size(pair: Pair) -> float:
    best, p, q = _matched(pair)
    return math.sqrt(max(p + q - 2 * best, 0.0))


ANGLE = Measure(
    "permutation_angle",
    "angle after relabelling",
    _angle,
    0.0,
    math.pi,
    frozenset({"permutation", "isotropic", "translation"}),
    work="assign",
)
SIZE = Measure(
    "permutation_distance",
    "distance after relabelling",
    _size,
    0.0,
    math.inf,
    frozenset({"permutation", "translation"}),
    work="assign",
)
