"""Minibatch CKA: HSIC_1 is unbiased whatever the number of samples, so that its sum over small batches estimates CKA.

    sum_b HSIC_1(K_b, L_b) / sqrt(sum_b HSIC_1(K_b, K_b)  sum_b HSIC_1(L_b, L_b))

over batches of 256 samples in their order; what is left over at the end is dropped, for batches are to be of one size
(fewer than 256 samples are one batch). With every sample in one batch it is `cka`. Its null orders samples anew within
their batch. cka_minibatch has a linear kernel, cka_rbf_minibatch the Gaussian one of cka_rbf.py.

Range -1 to 1, 1 the same. Invariances as those of cka and cka_rbf. Canon needs no batches to keep memory down: it is here
to compare with figures from elsewhere.

Source: Nguyen, Raghu, Kornblith, "Do Wide and Deep Networks Learn the Same Things?", ICLR 2021, (2) to (4).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from canon.similarity.layer import Floats, Indices, Layer, expanded
from canon.similarity.measures.base import NORMED, Measure
from canon.similarity.measures.cka import ratio
from canon.similarity.measures.kernels import bandwidth, hollow, rbf
from canon.similarity.pair import Pair, ranks

BATCH = 256
Kernel = Callable[[Floats, Layer], Floats]


def _linear(x: Floats, layer: Layer) -> Floats:
    return x @ x.T


def _rbf(x: Floats, layer: Layer) -> Floats:
    return rbf(x, bandwidth(layer))


def minibatch(pair: Pair, kernel: Kernel, batch: int = BATCH) -> float:
    """Minibatch CKA with a kernel and a size of batch, in samples."""
    per = max(min(batch // pair.a.positions, pair.a.samples), 1)
    starts = range(0, pair.a.samples - per + 1, per)

    def compute(layer: Layer) -> list[Floats]:
        layer.check_live()
        size = per * layer.positions
        return [hollow(kernel(layer.rows[i * layer.positions : i * layer.positions + size], layer)) for i in starts]

    ks, ls = (side.once((kernel, per), compute) for side in (pair.a, pair.b))
    both = sum(float(np.vdot(k, _within(m, pair, i, per))) for k, m, i in zip(ks, ls, starts, strict=True))
    return ratio(both, *(sum(float(np.vdot(k, k)) for k in side) for side in (ks, ls)))


def _within(matrix: Floats, pair: Pair, start: int, size: int) -> Floats:
    """A batch's matrix, its samples ordered among themselves as the pair orders them."""
    if pair.order is None:
        return matrix
    at: Indices = expanded(ranks(pair.order[start : start + size]), pair.a.positions)
    return matrix[np.ix_(at, at)]


def _of_linear(pair: Pair) -> float:
    return minibatch(pair, _linear)


def _of_rbf(pair: Pair) -> float:
    return minibatch(pair, _rbf)


MINIBATCH = Measure("cka_minibatch", "linear CKA over minibatches", _of_linear, 1.0, -1.0, NORMED, work="samples")
RBF_MINIBATCH = Measure("cka_rbf_minibatch", "RBF CKA over minibatches", _of_rbf, 1.0, -1.0, NORMED, work="samples")
