"""Freedoms of the stored architecture that folding takes away, fixed next to another network.

In front of a batch norm each unit has a scale of its own, and a linear space can be turned by any matrix: neither shows
once folded, both do in the stored tensors. An aligned network takes them from the one it is aligned to.
"""

from __future__ import annotations

import numpy as np

from canon.compare.pairing import pair
from canon.errors import MismatchError
from canon.network import Network
from canon.ops import Op
from canon.ops.base import Array

_TURN = 1e4
"""A linear space is turned by least squares up to this condition number, by a rotation beyond."""


def follow(a: Network, b: Network) -> Network:
    """b with the scales in front of its batch norms, and the bases of its linear spaces, next to a's; same function."""
    try:
        found = pair(a, b, ignore=("eps",))
    except MismatchError:
        return b
    theirs = {op.name: op for op in a.ops}
    tensors: dict[str, Array] = dict(b.tensors)
    for op in b.ops:
        other = theirs[found.ops[op.name]]
        reader = _only_reader(b, op)
        if reader is None or op.kind not in ("dense", "conv", "depthwise_conv"):
            continue
        if reader.kind == "batch_norm" and _unshared(b, op) and _unshared(b, reader):
            _rescale(a, other, theirs[found.ops[reader.name]], op, reader, tensors)
        elif op.kind == reader.kind == "dense" and _unshared(b, op) and _unshared(b, reader):
            _turn(a, other, theirs[found.ops[reader.name]], op, reader, tensors)
    return b.with_tensors(tensors)


def _only_reader(network: Network, op: Op) -> Op | None:
    value = op.output
    while True:
        readers = network.readers[value]
        if len(readers) != 1 or value in network.outputs:
            return None
        if readers[0].kind not in ("linear", "dropout"):
            return readers[0]
        value = readers[0].output


def _unshared(network: Network, op: Op) -> bool:
    return all(len(network.uses[t]) == 1 for t in op.params.values())


def _rescale(a: Network, other: Op, other_bn: Op, op: Op, bn: Op, tensors: dict[str, Array]) -> None:
    """Kernel, bias and mean by r; either the variance by the rule with eps, to r^2 (variance + eps) - eps, or gamma by
    1 / r, whichever leaves the variance nearer to A's.
    """
    x = np.asarray(a.tensors[other.params["kernel"]], np.float64)
    y = np.asarray(tensors[op.params["kernel"]], np.float64)
    rows = [t.reshape(len(t), -1) for t in (x, y)]
    dot, square = np.einsum("ij,ij->i", *rows), np.einsum("ij,ij->i", rows[1], rows[1])
    r = np.divide(dot, square, out=np.ones_like(dot), where=(square > 0) & (dot != 0))
    eps = float(bn.attrs["eps"])
    variance = np.asarray(tensors[bn.params["variance"]], np.float64)
    moved = r * r * (variance + eps) - eps
    if "gamma" not in bn.params:
        r = np.where((moved >= 0) & (r > 0), r, 1.0)
        moved, by_variance = r * r * (variance + eps) - eps, np.ones(len(r), bool)
    else:
        goal = np.asarray(a.tensors[other_bn.params["variance"]], np.float64) + eps
        closer = np.abs(np.log(np.maximum(moved, 0) + eps) - np.log(goal)) <= np.abs(np.log(variance + eps) - np.log(goal))
        by_variance = (moved >= 0) & closer
        gain = np.where(by_variance, np.sign(r), 1.0 / r)
        tensors[bn.params["gamma"]] = np.asarray(tensors[bn.params["gamma"]], np.float64) * gain
    tensors[bn.params["variance"]] = np.where(by_variance, moved, variance)
    tensors[bn.params["mean"]] = np.asarray(tensors[bn.params["mean"]], np.float64) * r
    tensors[op.params["kernel"]] = y * r.reshape(-1, *[1] * (y.ndim - 1))
    if "bias" in op.params:
        tensors[op.params["bias"]] = np.asarray(tensors[op.params["bias"]], np.float64) * r


def _turn(a: Network, other: Op, other_reader: Op, op: Op, reader: Op, tensors: dict[str, Array]) -> None:
    """A matrix M for the linear space between two dense maps, so that M W_b is next to W_a and V_b M^-1 next to V_a."""
    x, v = (np.asarray(a.tensors[o.params["kernel"]], np.float64) for o in (other, other_reader))
    y, w = (np.asarray(tensors[o.params["kernel"]], np.float64) for o in (op, reader))
    if len(y) <= y.shape[1]:  # what comes in determines the matrix
        m = np.linalg.lstsq(y.T, x.T, rcond=None)[0].T
    elif len(y) <= len(w):  # what goes out does
        back = np.linalg.lstsq(w, v, rcond=None)[0]
        m = np.linalg.inv(back) if np.linalg.cond(back) < _TURN else np.full(back.shape, np.inf)
    else:
        return
    if not np.isfinite(m).all() or np.linalg.cond(m) > _TURN:
        u, _, vt = np.linalg.svd(x @ y.T + v.T @ w)
        m = u @ vt
    tensors[op.params["kernel"]] = m @ y
    if "bias" in op.params:
        tensors[op.params["bias"]] = m @ np.asarray(tensors[op.params["bias"]], np.float64)
    tensors[reader.params["kernel"]] = np.linalg.solve(m.T, w.T).T
