"""What two normalised networks have to be matched on: blocks, similarities of units, and the state of a matching.

Notation (after Ainsworth, Hayase, Srinivasa, Git Re-Basin, 2022): maximise sum over blocks <A, g B> over relabellings and
signs g. For one space with the others held, that is a linear assignment on the similarities computed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product

import numpy as np

from canon.matching.heads import Heads
from canon.matching.heads import similarity as similarity_of_heads
from canon.ops.base import Array
from canon.pieces import Piece, cut, is_matched
from canon.symmetry import Block as BlockOfUnits
from canon.symmetry import Floats, Indices, Symmetry

_INNER_ALL = 5
"""Up to this many copies inside a unit, all their orders are tried at once."""


@dataclass
class State:
    """A relabelling, signs and turns for the second network: new unit i of a space is its old unit perms[space][i], and turned
    by turns[block][i].
    """

    perms: dict[str, Indices] = field(default_factory=dict)
    signs: dict[str, Floats] = field(default_factory=dict)
    turns: dict[str, Floats] = field(default_factory=dict)

    def copy(self) -> State:
        """A state that can be changed without changing this one."""
        return State(dict(self.perms), dict(self.signs), dict(self.turns))


@dataclass(frozen=True)
class Block:
    """One piece in both networks."""

    piece: Piece
    a: Array
    b: Array


class Problem:
    """Two networks on one symmetry. a, b: normalised, centred tensors by name, read when they are needed."""

    def __init__(
        self, symmetry: Symmetry, a: Mapping[str, Array], b: Mapping[str, Array], tensors: Sequence[str] | None = None
    ) -> None:
        self.symmetry, self._a, self._b = symmetry, a, b
        self.pieces = [p for p in cut(symmetry, tensors) if any(x.space or x.turn for x in p.axes)]
        self.of: dict[str, list[tuple[Piece, int]]] = {s: [] for s in symmetry.spaces}
        for p in self.pieces:
            for s in dict.fromkeys(x.space for x in p.axes if x.space):
                self.of[s] += [(p, i) for i in p.dims(s)]
        self.inner = {s.over: s.name for s in symmetry.spaces.values() if s.over}
        self.free = [s.name for s in symmetry.spaces.values() if s.over is None]
        """The spaces that are matched; spaces over another are matched with it."""

    @property
    def plain(self) -> list[str]:
        """The spaces that are matched and whose units are single units, no heads."""
        return [s for s in self.free if not self.blocks_over(s)]

    @property
    def turned_spaces(self) -> list[str]:
        """The spaces that blocks hang on, "" for those whose outer units keep their places."""
        return list(dict.fromkeys(b.over for b in self.symmetry.blocks.values()))

    def blocks_over(self, space: str) -> list[BlockOfUnits]:
        """The blocks that have a matrix for each unit of a space."""
        return [b for b in self.symmetry.blocks.values() if b.over == space]

    def outer_axis(self, piece: Piece, axis: int) -> int | None:
        """The axis of a piece along which the outer units of its block at `axis` run, if there is more than one."""
        block = self.symmetry.blocks[piece.axes[axis].turn]
        if block.over:
            return next(j for j, other in enumerate(piece.axes) if other.space == block.over)
        return axis - 1 if block.outer > 1 else None

    @property
    def tensors(self) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """The tensors of both."""
        return self._a, self._b

    # the state

    def identity(self) -> State:
        """The stored labelling."""
        state = State()
        for s in self.symmetry.spaces.values():
            if s.over is None:
                state.perms[s.name] = np.arange(s.size)
            else:
                state.perms[s.name] = np.tile(np.arange(s.size), (self.symmetry.spaces[s.over].size, 1))
        for g in self.symmetry.gauges.values():
            if is_matched(self.symmetry, g.name):
                state.signs[g.name] = np.ones(g.size)
        for b in self.symmetry.blocks.values():
            state.turns[b.name] = np.broadcast_to(np.eye(b.size), (b.outer, b.size, b.size))
        return state

    def moved(self, block: Block, state: State, held: int | None = None, unturned: Collection[str] = ()) -> Array:
        """The second network's block under a state; the axis `held` stays as it is, and so do the units of blocks around it
        and of those `unturned`.
        """
        x = self._relabelled(block, state, held)
        for i, axis in enumerate(block.piece.axes):
            if not axis.turn or axis.turn in unturned:
                continue
            outer = self.outer_axis(block.piece, i)
            if held is None or outer != held or not self.symmetry.blocks[axis.turn].over:
                x = _turned(x, outer, i, state.turns[axis.turn])
        return x

    def _relabelled(self, block: Block, state: State, held: int | None) -> Array:
        x = block.b
        for i, axis in enumerate(block.piece.axes):
            if not axis.space or i == held:
                continue
            over = self.symmetry.spaces[axis.space].over
            if over is None:
                x = np.take(x, state.perms[axis.space], axis=i)
                for g in axis.signs:
                    s = state.signs[g][state.perms[axis.space]]
                    x = x * s.reshape([-1 if j == i else 1 for j in range(x.ndim)])
            elif held is None or block.piece.axes[held].space != over:
                # one order for each new unit of the outer space, whose axis stands in front and has been moved already
                at = next(j for j, other in enumerate(block.piece.axes) if other.space == over)
                shape = [1] * x.ndim
                shape[at], shape[i] = state.perms[axis.space].shape
                x = np.take_along_axis(x, state.perms[axis.space].reshape(shape), axis=i)
        return x

    def block(self, piece: Piece) -> Block:
        """A piece in both networks."""
        return Block(piece, piece.view(self._a[piece.tensor]), piece.view(self._b[piece.tensor]))

    def objective(self, state: State) -> float:
        """Sum over blocks of <A, g B>."""
        return float(sum(np.vdot(b.a, self.moved(b, state)) for b in map(self.block, self.pieces)))

    # similarities

    def similarity(self, space: str, state: State, use: Sequence[tuple[Piece, int]] | None = None) -> Similarity | Heads:
        """Of every unit of A to every unit of B as stored, over the given pieces (all that touch the space)."""
        if self.blocks_over(space):
            return similarity_of_heads(self, space, state, self.of[space] if use is None else use)
        plain: dict[frozenset[str], Floats] = {}
        inner: Floats | None = None
        n = self.symmetry.spaces[space].size
        own = {g for g in state.signs if any(g in x.signs for p, i in self.of[space] for x in [p.axes[i]])}
        for piece, i in self.of[space] if use is None else use:
            block = self.block(piece)
            b = self.moved(block, state, held=i)
            x, y = np.moveaxis(block.a, i, 0), np.moveaxis(b, i, 0)
            each = self.inner.get(space)
            if each is not None and each in {a.space for a in piece.axes}:
                at = 1 + next(k for k, a in enumerate(a for j, a in enumerate(piece.axes) if j != i) if a.space == each)
                x, y = (np.moveaxis(t, at, 1).reshape(n, self.symmetry.spaces[each].size, -1) for t in (x, y))
                found = np.einsum("ikr,jlr->ijkl", x, y, optimize=True)
                inner = found if inner is None else inner + found
                continue
            key = frozenset(piece.axes[i].signs & own)
            found = x.reshape(n, -1) @ y.reshape(n, -1).T
            plain[key] = plain[key] + found if key in plain else found
        return Similarity(n, plain, inner)

    def own_signs(self, space: str, state: State, use: Sequence[tuple[Piece, int]]) -> dict[str, Floats]:
        """The best signs where every unit is matched with the unit of its own number; by gauge."""
        n = self.symmetry.spaces[space].size
        plain: dict[frozenset[str], Floats] = {}
        for piece, i in use:
            block = self.block(piece)
            x, y = (np.moveaxis(t, i, 0).reshape(n, -1) for t in (block.a, self.moved(block, state, held=i)))
            key = frozenset(piece.axes[i].signs & set(state.signs))
            found = np.einsum("ij,ij->i", x, y)
            plain[key] = plain[key] + found if key in plain else found
        return _best_signs(plain, n)

    def norms(self, space: str, use: Sequence[tuple[Piece, int]] | None = None) -> tuple[Floats, Floats]:
        """Norms of the units' stacked blocks in A and in B (B as stored: relabelling elsewhere does not change them)."""
        n = self.symmetry.spaces[space].size
        a, b = np.zeros(n), np.zeros(n)
        for piece, i in self.of[space] if use is None else use:
            block = self.block(piece)
            for t, into in ((block.a, a), (block.b, b)):
                rows = np.moveaxis(t, i, 0).reshape(n, -1)
                into += np.einsum("ij,ij->i", rows, rows)
        return np.sqrt(a), np.sqrt(b)


def _turned(x: Array, outer: int | None, axis: int, turns: Floats) -> Array:
    """A block with a matrix for each unit along `outer` applied along an axis."""
    front = np.moveaxis(x, axis, -1)
    moved = front if outer is None else np.moveaxis(front, outer, 0)
    flat = moved.reshape(len(turns), -1, turns.shape[-1]) @ turns.swapaxes(-1, -2)
    back = flat.reshape(moved.shape)
    return np.moveaxis(back if outer is None else np.moveaxis(back, 0, outer), -1, axis)


@dataclass
class Similarity:
    """Similarities of units: plain, by the sign gauges that would flip them; inner: (n, n, m, m) where each unit holds m
    copies of another space.
    """

    n: int
    plain: dict[frozenset[str], Floats]
    inner: Floats | None

    def total(self) -> Floats:
        """The best over all signs and inner orders, (n, n)."""
        out = np.zeros((self.n, self.n)) + self.plain.get(frozenset(), 0.0)
        for gauges, together in _together(self.plain):
            if len(together) == 1:
                out = out + np.abs(next(iter(together.values())))
            else:
                out = out + np.max([_signed(together, choice, self.n) for choice in _choices(gauges)], axis=0)
        if self.inner is not None:
            out = out + _best_inner(self.inner)[0]
        return out

    def signs_at(self, partner: Indices) -> dict[str, Floats]:
        """The best signs of B's units once row i is matched with column partner[i]; by gauge, in B's labelling."""
        rows = np.arange(self.n)
        found = _best_signs({key: s[rows, partner] for key, s in self.plain.items()}, self.n)
        out = {}
        for g, s in found.items():
            out[g] = np.empty(self.n)
            out[g][partner] = s
        return out

    def inner_at(self, partner: Indices) -> Indices | None:
        """The best inner orders, (n, m), one row for each new unit."""
        if self.inner is None:
            return None
        return _best_inner(self.inner[np.arange(self.n), partner][:, None])[1][:, 0]


def _signed(plain: Mapping[frozenset[str], Floats], choice: Mapping[str, float], n: int) -> Floats:
    total = np.zeros((n, n))
    for key, s in plain.items():
        total = total + s * _sign(key, choice)
    return total


def _best_signs(plain: Mapping[frozenset[str], Floats], n: int) -> dict[str, Floats]:
    """For each unit the signs that make its similarity largest; plain: by the gauges that would flip them, (n,)."""
    out: dict[str, Floats] = {}
    for gauges, together in _together(plain):
        choices = list(_choices(gauges))
        totals = np.array([sum((s * _sign(key, c) for key, s in together.items()), start=np.zeros(n)) for c in choices])
        picked = totals.argmax(axis=0)
        out.update({g: np.array([c[g] for c in choices])[picked] for g in gauges})
    return out


def _together(plain: Mapping[frozenset[str], Floats]) -> list[tuple[list[str], dict[frozenset[str], Floats]]]:
    """The sign gauges that have to be chosen together, with what they would flip: others do not depend on them."""
    groups: list[set[str]] = []
    for key in plain:
        if key:
            met = [g for g in groups if g & key]
            groups = [g for g in groups if not g & key] + [set(key).union(*met)]
    return [(sorted(g), {key: s for key, s in plain.items() if key & g}) for g in groups]


def _choices(gauges: Sequence[str]) -> Iterator[dict[str, float]]:
    for signs in product((1.0, -1.0), repeat=len(gauges)):
        yield dict(zip(gauges, signs, strict=True))


def _sign(key: frozenset[str], choice: Mapping[str, float]) -> float:
    out = 1.0
    for g in key:
        out *= choice[g]
    return out


def _best_inner(s: Floats) -> tuple[Floats, Indices]:
    """For (p, q, m, m) similarities, the best total over permutations and the permutation, (p, q) and (p, q, m)."""
    p, q, m, _ = s.shape
    if m <= _INNER_ALL:
        orders = np.array(list(permutations(range(m))))
        totals = np.stack([s[:, :, np.arange(m), o].sum(axis=-1) for o in orders])
        return totals.max(axis=0), orders[totals.argmax(axis=0)]
    from scipy.optimize import linear_sum_assignment

    best, order = np.empty((p, q)), np.empty((p, q, m), np.intp)
    for i in range(p):
        for j in range(q):
            rows, order[i, j] = linear_sum_assignment(s[i, j], maximize=True)
            best[i, j] = s[i, j, rows, order[i, j]].sum()
    return best, order
