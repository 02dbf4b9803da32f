"""The balanced gauge of blocks: of all ways to write a head, the one with the least sum of squares.

Notation: X (units, n) collects the rows on which a matrix G acts, Y those on which G^-T does (of a
query-key block the queries' and the keys' projections); the function knows X^T Y alone. X^T = Q_x R_x, Y^T = Q_y R_y,
R_x R_y^T = U S V^T on a core of units x units, so that G X = S^1/2 U^T Q_x^T, G^-T Y = S^1/2 V^T Q_y^T: unique up to a sign (a
phase) for each singular value, and up to a rotation among equal ones, which a comparison takes out (Block.nearest).
Singular values under 1e-12 of the largest are raised to that: no matrix of the group is singular.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from canon.ops.base import Array
from canon.symmetry import Block, Class, Floats, Symmetry, factor
from canon.symmetry.blocks import put_complex
from canon.turns import stacked

_FLOOR = 1e-12
_ROUNDED = 1e-6
_PLAIN = 1e-6
"""Smallest over largest eigenvalue of X X^H from which its Cholesky factor is accurate enough."""


def heads(tensors: Mapping[str, Array], symmetry: Symmetry, values: Mapping[str, Floats]) -> dict[str, Floats]:
    """The matrices that balance every block: block -> (outer, size, size). values: factors of the other gauges."""
    rows: dict[str, tuple[list[Array], list[Array]]] = {b: ([], []) for b in symmetry.blocks}
    for block, inverse, stack in _rows(tensors, symmetry, values):
        rows[block][inverse].append(stack)
    return {name: _balanced(block, *rows[name]) for name, block in symmetry.blocks.items() if any(rows[name])}


def _rows(tensors: Mapping[str, Array], symmetry: Symmetry, values: Mapping[str, Floats]) -> Iterator[tuple[str, bool, Array]]:
    """(block, whether the inverse transpose acts, rows (outer, size, n)) for every axis that carries a block."""
    for name, axes in symmetry.axes.items():
        for dim, side in enumerate(axes):
            found = list(stacked(side.axis, {b.name: b.outer for b in symmetry.blocks.values()}))
            if not found:
                continue
            t = np.asarray(tensors[name], np.float64)
            for i, other in enumerate(axes):
                if (f := factor(other.axis, values)) is not None:
                    t = t * f.reshape([-1 if k == i else 1 for k in range(t.ndim)])
            for turn, take in found:
                yield turn.block, (side.role == "out") != turn.dual, take(np.moveaxis(t, dim, 0))


def _balanced(block: Block, direct: list[Array], inverse: list[Array]) -> Floats:
    n = block.size
    x, y = (np.concatenate(p, axis=2) if p else np.zeros((block.outer, n, 0)) for p in (direct, inverse))
    out = np.zeros((block.outer, n, n))
    for c in block.classes:
        f, s = list(c.first), list(c.second)
        if c.kind == "orthogonal":  # lengths say nothing about it: a comparison turns one side into the other
            out[:, f, f] = 1.0
            continue
        if c.kind == "sign":
            cubes = sum(((x[:, i] ** 3).sum(axis=-1) for i in f), start=np.zeros(block.outer))
            for i in f:
                out[:, i, i] = np.where(cubes < 0, -1.0, 1.0)
            continue
        for k in range(block.outer):
            g = _class(*(_units(t[k], c) for t in (x, y)))
            if c.kind == "real":
                out[k][np.ix_(f, f)] = g
            else:
                put_complex(out[k], g, f, s)
    return out


def _units(t: Array, c: Class) -> Array:
    """The rows of a class, as complex numbers where it has pairs."""
    return np.asarray(t[list(c.first)] + 1j * t[list(c.second)] if c.kind == "complex" else t[list(c.first)])


def _class(x: Array, y: Array) -> Array:
    """G for rows X, Y (units, n), real or complex, with the signs or phases that make sums of cubes positive."""
    n = len(x)
    if not x.any() or not y.any():
        return np.eye(n, dtype=x.dtype)
    if _is_balanced(x, y):
        return np.eye(n, dtype=x.dtype)  # what was balanced once stays as it is: rounded singular vectors would drift
    rx, ry = _root(x), _root(y)
    u, s, _ = np.linalg.svd(rx @ ry.conj().T)
    s = np.maximum(s, _FLOOR * s[0])
    # X = R_x^H Q^H: G = S^1/2 U^H R_x^-H
    g = np.sqrt(s)[:, None] * np.linalg.solve(rx, u).conj().T
    rows = g @ x
    cubes = (rows * np.abs(rows) ** 2).sum(axis=1)
    size = np.abs(cubes)
    turn = np.divide(cubes.conj(), size, out=np.ones_like(cubes), where=size > 0)
    return np.asarray(turn[:, None] * g)


def _is_balanced(x: Array, y: Array) -> bool:
    """Whether X X^H = Y Y^H is diagonal and sorted, and sums of cubes are positive, up to rounding of the stored numbers."""
    p, q = x @ x.conj().T, y @ y.conj().T
    size = np.abs(np.diag(p))
    gap = _ROUNDED * size.max()
    off = max(np.abs(p - np.diag(np.diag(p))).max(), np.abs(p - q).max())
    cubes = (x * np.abs(x) ** 2).sum(axis=1)
    turned = np.abs(cubes - np.abs(cubes))
    return bool(off <= gap and (np.diff(size) <= gap).all() and (turned <= _ROUNDED * (np.abs(x) ** 3).sum(axis=1)).all())


def _root(x: Array) -> Array:
    """An invertible R (units, units) with X = R^H Q^H and Q orthonormal, nearly, where X has full rank."""
    n = len(x)
    gram = x @ x.conj().T
    values = np.linalg.eigvalsh(gram)
    if values[0] > _PLAIN * values[-1]:
        return np.asarray(np.linalg.cholesky(gram).conj().T)  # well conditioned: no need to touch all rows again
    if x.shape[1] < n:
        x = np.concatenate([x, np.zeros((n, n - x.shape[1]), x.dtype)], axis=1)
    r = np.linalg.qr(x.conj().T, mode="r")
    u, s, vh = np.linalg.svd(r)
    if s[-1] > _FLOOR * s[0]:
        return np.asarray(r)
    return np.asarray((u * np.maximum(s, _FLOOR * s[0])) @ vh)
