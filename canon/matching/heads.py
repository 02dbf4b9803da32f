"""Heads matched as blocks: a head's likeness to another is what is left once its inner freedom is taken out.

In the balanced gauge of heads (gauge/heads.py) the inner freedom is orthogonal (unitary for rotary pairs, a sign under a
norm), so the best <A, T B> over it is a nuclear norm of the cross product of their rows, on cores of head size. Queries that
share a key-value head are ordered inside it at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from canon.ops.base import Array
from canon.pieces import Piece
from canon.symmetry import Block, Floats, Indices

if TYPE_CHECKING:
    from canon.matching.problem import Problem, State

_ALL = 4
"""Up to this many queries a key-value head, all their orders are tried."""
_ROUNDS = 8


class Heads:
    """Similarities of the units of a space that blocks hang on. blocks; plain: block -> (n, n, d, d) cross products of what
    has no queries' axis; inner: block -> (n, n, m, m, d, d) of what has; rest, rest_inner: of what no block turns.
    """

    def __init__(self, n: int, m: int, blocks: Sequence[Block]) -> None:
        self.n, self.m, self.blocks = n, m, {b.name: b for b in blocks}
        self.plain: dict[str, Array] = {b.name: np.zeros((n, n, b.size, b.size)) for b in blocks}
        self.inner: dict[str, Array] = {}
        self.rest = np.zeros((n, n))
        self.rest_inner: Array | None = None
        self._found: tuple[Floats, Indices | None] | None = None

    def add(self, turn: str, grouped: bool, x: Array, y: Array) -> None:
        """Add a piece of both networks: (n, [m], [d], entries) each, the second in the first one's frame but for these axes."""
        front = x.shape[:-1]
        cross = (x.reshape(-1, x.shape[-1]) @ y.reshape(-1, y.shape[-1]).T).reshape(*front, *front)
        k = len(front)
        # (i, a, p, j, b, q) -> (i, j, a, b, p, q)
        cross = cross.transpose([i for pair in zip(range(k), range(k, 2 * k), strict=True) for i in pair])
        if turn and grouped:
            self.inner[turn] = self.inner[turn] + cross if turn in self.inner else cross
        elif turn:
            self.plain[turn] = self.plain[turn] + cross
        elif grouped:
            self.rest_inner = cross if self.rest_inner is None else self.rest_inner + cross
        else:
            self.rest = self.rest + cross

    def total(self) -> Floats:
        """The best over turns and orders of queries, (n, n)."""
        return self._solved()[0]

    def signs_at(self, partner: Indices) -> dict[str, Floats]:
        """Heads have no signs of their own: those are turns."""
        return {}

    def inner_at(self, partner: Indices) -> Indices | None:
        """The best orders of queries once row i is matched with column partner[i], (n, m)."""
        orders = self._solved()[1]
        return None if orders is None else orders[np.arange(self.n), partner]

    def turns_at(self, partner: Indices, orders: Indices | None = None) -> dict[str, Floats]:
        """The best turns there, block -> (n, d, d), a matrix for each new unit."""
        rows = np.arange(self.n)
        orders = self.inner_at(partner) if orders is None else orders
        out = {}
        for name, block in self.blocks.items():
            cross = self.plain[name][rows, partner]
            if name in self.inner and orders is not None:
                cross = cross + _ordered(self.inner[name][rows, partner], orders)
            out[name] = block.nearest(cross)[0]
        return out

    def _solved(self) -> tuple[Floats, Indices | None]:
        if self._found is None:
            self._found = self._solve()
        return self._found

    def _solve(self) -> tuple[Floats, Indices | None]:
        if not self.inner and self.rest_inner is None:
            return self._value(None), None
        if self.m <= _ALL:
            return self._all_orders()
        orders = np.broadcast_to(np.arange(self.m), (self.n, self.n, self.m)).copy()
        likeness = np.zeros((self.n, self.n, self.m, self.m)) if self.rest_inner is None else self.rest_inner
        scores = likeness + sum(np.linalg.norm(c, axis=(-1, -2)) for c in self.inner.values())
        best = np.full((self.n, self.n), -np.inf)
        for _ in range(_ROUNDS):
            tried = _assigned(scores)
            value = self._value(tried)
            if not (value > best * (1 + 1e-12) + 1e-300).any():
                break
            orders[value > best] = tried[value > best]
            best = np.maximum(best, value)
            scores = likeness + sum(
                np.einsum("ijabpq,ijpq->ijab", c, self.blocks[name].nearest(self._cross(name, tried))[0], optimize=True)
                for name, c in self.inner.items()
            )
        return best, orders

    def _all_orders(self) -> tuple[Floats, Indices]:
        best = np.full((self.n, self.n), -np.inf)
        found = np.zeros((self.n, self.n, self.m), np.intp)
        for order in permutations(range(self.m)):
            tried = np.broadcast_to(np.array(order), found.shape)
            value = self._value(tried)
            better = value > best
            best[better], found[better] = value[better], order
        return best, found

    def _cross(self, name: str, orders: Indices | None) -> Array:
        cross = self.plain[name]
        if orders is not None and name in self.inner:
            cross = cross + _ordered(self.inner[name], orders)
        return cross

    def _value(self, orders: Indices | None) -> Floats:
        value = self.rest
        if orders is not None and self.rest_inner is not None:
            value = value + np.take_along_axis(self.rest_inner, orders[..., None], axis=-1)[..., 0].sum(axis=-1)
        for name, block in self.blocks.items():
            value = value + block.nearest(self._cross(name, orders))[1]
        return np.asarray(value)


def _ordered(inner: Array, orders: Indices) -> Array:
    """Sum over a of inner[..., a, orders[..., a], :, :]."""
    return np.asarray(np.take_along_axis(inner, orders[..., None, None, None], axis=-3)[..., 0, :, :].sum(axis=-3))


def _assigned(scores: Array) -> Indices:
    from scipy.optimize import linear_sum_assignment

    out = np.empty(scores.shape[:-1], np.intp)
    for i in np.ndindex(*scores.shape[:2]):
        out[i] = linear_sum_assignment(scores[i], maximize=True)[1]
    return out


def similarity(problem: Problem, space: str, state: State, use: Sequence[tuple[Piece, int]]) -> Heads:
    """Of every head of A to every head of B as stored, over the given pieces."""
    n, each = problem.symmetry.spaces[space].size, problem.inner.get(space, "")
    m = problem.symmetry.spaces[each].size if each else 1
    found = Heads(n, m, problem.blocks_over(space))
    for piece, i in use:
        block = problem.block(piece)
        moved = problem.moved(block, state, held=i)
        turn = next((a.turn for a in piece.axes if a.turn in found.blocks), "")
        front = [i, *(k for k, a in enumerate(piece.axes) if a.space == each != ""),
                 *(k for k, a in enumerate(piece.axes) if a.turn and a.turn == turn)]  # fmt: skip
        x, y = (np.moveaxis(t, front, range(len(front))) for t in (block.a, moved))
        x, y = (t.reshape(*t.shape[: len(front)], -1) for t in (x, y))
        found.add(turn, any(a.space == each != "" for a in piece.axes), x, y)
    return found


def best_turns(
    problem: Problem, state: State, spaces: Sequence[str] | None = None, settled: Collection[str] | None = None
) -> dict[str, Floats]:
    """The best turns of all blocks (over some spaces; "" for heads that keep their places) under the labels of a state.

    settled: the spaces whose labels are found, where not all are: only what meets no others is looked at.
    """
    out: dict[str, Floats] = {}
    for space in problem.turned_spaces if spaces is None else spaces:
        blocks = problem.blocks_over(space)
        cross = {b.name: np.zeros((b.outer, b.size, b.size)) for b in blocks}
        for piece, axis, x, y in _turned_pieces(problem, state, set(cross)):
            if settled is not None and any(a.space and a.space not in settled for a in piece.axes):
                continue
            name = piece.axes[axis].turn
            front = [np.moveaxis(t, axis, -1) for t in (x, y)]
            outer = problem.outer_axis(piece, axis)
            parts = [np.moveaxis(t, outer, 0) if outer is not None else t for t in front]
            n, d = problem.symmetry.blocks[name].outer, problem.symmetry.blocks[name].size
            flat = [t.reshape(n, -1, d) for t in parts]
            cross[name] += np.einsum("nrp,nrq->npq", *flat, optimize=True)
        out.update({b.name: b.nearest(cross[b.name])[0] for b in blocks})
    return out


def _turned_pieces(problem: Problem, state: State, names: set[str]) -> Iterator[tuple[Piece, int, Array, Array]]:
    """Pieces along which a block acts, with both networks' entries, B's under the state but for these blocks' turns."""
    for piece in problem.pieces:
        for axis, side in enumerate(piece.axes):
            if side.turn in names:
                block = problem.block(piece)
                yield piece, axis, block.a, problem.moved(block, state, unturned=names)
