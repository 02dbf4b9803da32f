"""RBF centred kernel alignment: CKA with a Gaussian kernel, which weighs near samples more than far ones.

    K_ij = exp(-|x_i - x_j|^2 / (2 s^2)),   s the median distance between two samples

cka_rbf is unbiased (HSIC_1), cka_rbf_biased is not. Of more than 1024 rows a seeded choice is used, for the matrices are
samples by samples.

Range -1 to 1 (0 to 1 biased), 1 the same. Invariant to rotations, to one factor for all units (the bandwidth follows) and
to a constant for each; not to a factor for each unit.

Sources: Kornblith et al., ICML 2019, with the bandwidth rule of section 4; HSIC_1 as in cka.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from canon.similarity.layer import Floats, Layer
from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.measures.kernels import bandwidth, centred, hollow, rbf, unit
from canon.similarity.pair import Pair


def _of(pair: Pair, how: Callable[[Floats], Floats]) -> float:
    def compute(layer: Layer) -> Floats:
        layer.check_live()
        return unit(how(rbf(layer.seen, bandwidth(layer))), "the samples' kernel values")

    k, l = (side.once((_of, how), compute) for side in (pair.a, pair.b))  # noqa: E741
    return float(np.vdot(k, pair.beside(l)))


def _unbiased(pair: Pair) -> float:
    return _of(pair, hollow)


def _biased(pair: Pair) -> float:
    return _of(pair, centred)


RBF = Measure("cka_rbf", "RBF CKA, unbiased", _unbiased, 1.0, -1.0, NORMED, work="samples")
RBF_BIASED = Measure("cka_rbf_biased", "RBF CKA, biased", _biased, 1.0, 0.0, NORMED, work="samples")
