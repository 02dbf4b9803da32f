"""What stands beside every figure: chance, from surrogates with shuffled entries, and a certified lower bound.

Both look at a sample of units of each space unless all are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canon.matching import Problem, State, assign
from canon.ops.base import Array
from canon.pieces import Piece
from canon.symmetry import Floats, Indices

SAMPLE = 256
SURROGATES = 4


@dataclass(frozen=True)
class Chance:
    """Distances and correlations of the surrogates of one space."""

    distances: Floats
    correlations: Floats


def _incoming(problem: Problem, space: str) -> list[tuple[Piece, int]]:
    return [(p, i) for p, i in problem.of[space] if p.axes[i].role == "in"]


def _rows(problem: Problem, space: str, state: State, left: Indices, right: Indices) -> tuple[Array, Array]:
    """Incoming vectors of chosen units: A's `left`, B's `right` (as stored), everything else under the state."""
    xs, ys = [], []
    for piece, i in _incoming(problem, space):
        block = problem.block(piece)
        moved = problem.moved(block, state, held=i)
        xs.append(np.moveaxis(np.take(block.a, left, axis=i), i, 0).reshape(len(left), -1))
        ys.append(np.moveaxis(np.take(moved, right, axis=i), i, 0).reshape(len(right), -1))
    return np.hstack(xs), np.hstack(ys)


def chance(
    problem: Problem, space: str, state: State, live: NDArray[np.bool_], rng: np.random.Generator, full: bool
) -> Chance | None:
    """Match the units of a space with units whose entries are shuffled among them, column by column."""
    units = np.flatnonzero(live)
    if not len(units) or not _incoming(problem, space):
        return None
    if len(units) > SAMPLE and not full:
        units = np.sort(rng.choice(units, SAMPLE, replace=False))
    x, y = _rows(problem, space, state, units, state.perms[space][units])
    signed = any(p.axes[i].signs for p, i in _incoming(problem, space))
    distances, correlations = [], []
    for _ in range(SURROGATES):
        z = rng.permuted(y, axis=0)
        s = x @ z.T
        partner = assign(np.abs(s) if signed else s).partner
        w = z[partner]
        if signed:
            w = w * np.where(s[np.arange(len(s)), partner] < 0, -1.0, 1.0)[:, None]
        total = np.einsum("ij,ij->i", x, x) + np.einsum("ij,ij->i", w, w)
        gap = np.einsum("ij,ij->i", x - w, x - w)
        distances.append(np.sqrt(np.mean(np.divide(gap, total, out=np.zeros_like(gap), where=total > 0))))
        correlations.append(_mean_correlation(x, w))
    return Chance(np.array(distances), np.array(correlations))


def _mean_correlation(x: Array, y: Array) -> float:
    x, y = (t - t.mean(axis=1, keepdims=True) for t in (x, y))
    scale = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", y, y))
    defined = scale > 0
    return float((np.einsum("ij,ij->i", x, y)[defined] / scale[defined]).mean()) if defined.any() else float("nan")


def lower_bound(problem: Problem, space: str, rng: np.random.Generator, full: bool) -> tuple[float, int] | None:
    """A distance that no relabelling and no signs can undercut in this gauge, with the number of units looked at.

    For two units with free labels around them, <a, g b> is at most the product of their sorted entries (rearrangement),
    space by space; the best assignment on these bounds is below any matching. Certified where all units are looked at.
    """
    n = problem.symmetry.spaces[space].size
    if not _incoming(problem, space):
        return None
    rows = np.arange(n) if n <= SAMPLE or full else np.sort(rng.choice(n, SAMPLE, replace=False))
    xs: list[Array] = []
    ys: list[Array] = []
    signed = any(a.signs for p, _ in _incoming(problem, space) for a in p.axes)
    for piece, i in _incoming(problem, space):
        block = problem.block(piece)
        x = np.moveaxis(np.take(block.a, rows, axis=i), i, 0)
        y = np.moveaxis(block.b, i, 0)
        others = [a for k, a in enumerate(piece.axes) if k != i]
        free = [1 + k for k, a in enumerate(others) if a.space]
        fixed = [1 + k for k, a in enumerate(others) if not a.space]
        turned = [1 + k for k, a in enumerate(others) if a.turn]
        for t, into in ((x, xs), (y, ys)):
            for k in turned:  # no turn can make an inner product larger than that of the lengths
                t = np.sqrt((t * t).sum(axis=k, keepdims=True))
            t = t.transpose(0, *fixed, *free).reshape(len(t), int(np.prod([t.shape[k] for k in fixed])), -1)
            t = np.abs(t) if signed else t
            into.append(np.sort(t, axis=-1).reshape(len(t), -1) if free else t.reshape(len(t), -1))
    x, y = np.hstack(xs), np.hstack(ys)
    aa, bb = np.einsum("ij,ij->i", x, x), np.einsum("ij,ij->i", y, y)
    total = aa[:, None] + bb[None, :]
    gap = np.maximum(total - 2 * (x @ y.T), 0.0)
    cost = np.divide(gap, total, out=np.zeros_like(gap), where=total > 0)
    from scipy.optimize import linear_sum_assignment

    i, j = linear_sum_assignment(cost)
    counted = max(int((aa > 0).sum()), 1)
    return float(np.sqrt(cost[i, j].sum() / counted)), len(rows)


def sampled(sizes: Mapping[str, int], full: bool) -> dict[str, int]:
    """The spaces of which only a sample was looked at, with its size."""
    return {} if full else {s: SAMPLE for s, n in sizes.items() if n > SAMPLE}
