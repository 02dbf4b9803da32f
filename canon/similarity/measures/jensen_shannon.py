"""Jensen-Shannon divergence of the outputs: how far apart the two networks' probabilities over the classes are.

    mean over i of H((p_i + q_i)/2) - (H(p_i) + H(q_i))/2,   H the entropy in bits

Outputs that are probabilities (none negative, each sample's sum 1) are taken as they are; others as logits, of which the
softmax is taken.

Range 0 (the same) to 1. Invariant, for logits, to a number added to all units of a sample. Not to relabelling: a class is a
class. What hidden units are called and how they are scaled does not change outputs.

Source: Lin, "Divergence Measures Based on the Shannon Entropy", 1991.
"""

from __future__ import annotations

import numpy as np

from canon.similarity.layer import Floats, Layer
from canon.similarity.measures.base import Measure
from canon.similarity.measures.disagreement import check
from canon.similarity.pair import Pair


def _probabilities(layer: Layer) -> Floats:
    x = layer.rows + layer.mean
    off = np.abs(x.sum(axis=1) - 1).max()
    if x.min() >= -1e-12 and off <= max(1e-6, 4 * layer.rounding):
        return np.maximum(x, 0.0)
    x = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(x / x.sum(axis=1, keepdims=True))


def _entropy(p: Floats) -> Floats:
    return np.asarray(-(p * np.log2(np.where(p > 0, p, 1.0))).sum(axis=1))


def _of(pair: Pair) -> float:
    check(pair)
    p, q = (side.once(_probabilities, _probabilities) for side in (pair.a, pair.b))
    if pair.index is not None:
        q = q[pair.index]
    return max(float((_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2).mean()), 0.0)


JENSEN_SHANNON = Measure(
    "jensen_shannon", "Jensen-Shannon divergence of outputs, bits", _of, 0.0, 1.0, frozenset({"shift"}), outputs=True
)
