"""Units that look alike, told apart by their smallest entries.

Trained networks have units decayed to 1e-33 beside their bias: normalised, they are one and the same to rounding, and no
assignment on inner products sees a difference. Among such units the partner is the one whose entries agree one by one,
each relative to its own size, incoming and outgoing.
"""

from __future__ import annotations

import numpy as np

from canon.matching.problem import Problem, State
from canon.ops.base import Array
from canon.symmetry import Floats, Indices

_ALIKE = 1e-5
"""Distance of sketches of normalised incoming vectors under which units are taken to look alike."""
_AGREE = 1e-4
"""Relative difference under which two entries agree."""
_MOST = 64
"""Groups larger than this are left as they are."""


def settle(problem: Problem, state: State, rounds: int = 3) -> State:
    """The state with units that look alike matched by their entries; the same object where no units look alike."""
    groups = {s: _groups(problem, s) for s in problem.free}
    groups = {s: g for s, g in groups.items() if g}
    if not groups:
        return state
    state = state.copy()
    for _ in range(rounds):
        changed = False
        for space, found in groups.items():
            for group in found:
                changed |= _settle_group(problem, state, space, group)
        if not changed:
            break
    return state


def _groups(problem: Problem, space: str) -> list[Indices]:
    """Groups of units of A whose normalised incoming vectors are alike."""
    n = problem.symmetry.spaces[space].size
    rng = np.random.default_rng(0)
    marks, squares = np.zeros((n, 3)), np.zeros(n)
    for piece, i in problem.of[space]:
        if piece.axes[i].role == "in":
            rows = np.moveaxis(problem.block(piece).a, i, 0).reshape(n, -1)
            marks += rows @ rng.standard_normal((rows.shape[1], 3))
            squares += np.einsum("ij,ij->i", rows, rows)
    marks /= np.sqrt(np.maximum(squares, np.finfo(float).tiny))[:, None]
    order = np.argsort(marks[:, 0], kind="stable")
    apart = np.flatnonzero(np.diff(marks[order, 0]) > _ALIKE) + 1
    out: list[Indices] = []
    for run in np.split(order, apart):
        while len(run) > 1:
            near = np.abs(marks[run] - marks[run[0]]).max(axis=1) <= _ALIKE
            if 1 < near.sum() <= _MOST:
                out.append(np.sort(run[near]))
            run = run[~near]
    return out


def _settle_group(problem: Problem, state: State, space: str, group: Indices) -> bool:
    from scipy.optimize import linear_sum_assignment

    partners = state.perms[space][group]
    cost = np.zeros((len(group), len(group)))
    for piece, i in problem.of[space]:
        block = problem.block(piece)
        moved = problem.moved(block, state, held=i)
        x = np.moveaxis(np.take(block.a, group, axis=i), i, 0).reshape(len(group), -1)
        y = np.moveaxis(np.take(moved, partners, axis=i), i, 0).reshape(len(group), -1)
        for g in piece.axes[i].signs:
            y = y * state.signs[g][partners][:, None]
        cost += _disagreement(x, y)
    rows, columns = linear_sum_assignment(cost)
    if cost[rows, columns].sum() >= np.trace(cost):
        return False
    perm = state.perms[space].copy()
    perm[group] = partners[columns]
    state.perms[space] = perm
    return True


def _disagreement(x: Array, y: Array) -> Floats:
    """(k, k): how many entries of a row of x and a row of y differ by more than rounding, relative to their size."""
    out = np.empty((len(x), len(y)))
    for i, row in enumerate(x):
        size = np.maximum(np.abs(row), np.abs(y))
        out[i] = (np.abs(row - y) > _AGREE * size).sum(axis=1)
    return out
