"""The canonical order of a network's units: an anchored lexicographic sort, ties broken by what follows.

Spaces are ordered front to back, each by its incoming vectors, whose other ends are ordered already. Units that tie are
told apart by everything around them, round after round, as colours are refined; what still ties then is taken apart one
unit at a time. Dead units come last. How narrowly each order was decided is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from canon.ops.base import Array
from canon.pieces import Piece, cut
from canon.symmetry import Indices, Symmetry

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Order:
    """perms: space -> (size,), new unit i is old unit perm[i]; margins: per space, the smallest gap between neighbours at
    the entry that decided between them, relative to the largest entry there (inf where one unit or all tie); tied: per
    space, how many units had to be told apart without any difference to go by.
    """

    perms: Mapping[str, Indices]
    margins: Mapping[str, float]
    tied: Mapping[str, int]


def canonical_order(symmetry: Symmetry, tensors: Mapping[str, Array], dead: Mapping[str, Bools]) -> Order:
    """Order the units of a network whose tensors are in a gauge (and rounded as they will be stored)."""
    return _Refinement(symmetry, tensors, dead).order()


class _Refinement:
    def __init__(self, symmetry: Symmetry, tensors: Mapping[str, Array], dead: Mapping[str, Bools]) -> None:
        self.symmetry, self.tensors = symmetry, {n: symmetry.whole(n, t) for n, t in tensors.items()}
        self.inner = {s.over: s.name for s in symmetry.spaces.values() if s.over}
        self.free = [s.name for s in symmetry.spaces.values() if s.over is None]
        self.perms: dict[str, Indices] = {}
        self.pieces = [p for p in cut(symmetry) if any(a.space for a in p.axes)]
        self.classes: dict[str, Indices] = {
            s: np.asarray(dead[s], np.intp) if s in dead else np.zeros(symmetry.spaces[s].size, np.intp) for s in self.free
        }
        self.margins: dict[str, float] = dict.fromkeys(self.free, np.inf)
        self.tied: dict[str, int] = dict.fromkeys(self.free, 0)

    def order(self) -> Order:
        self._sort_inner()
        for space in self.free:  # front to back on what is anchored
            self._refine(space, anchored=True)
        while True:
            while [s for s in (*self.free, *reversed(self.free)) if self._refine(s, anchored=False)]:
                pass
            open_ = next((s for s in self.free if len(np.unique(self.classes[s])) < len(self.classes[s])), None)
            if open_ is None:
                break
            self._individualise(open_)
        for space in self.free:
            self.perms[space] = np.argsort(self.classes[space], kind="stable")
        for outer, inner in self.inner.items():
            self.perms[inner] = self.perms[inner][self.perms[outer or ""]]
        return Order(self.perms, self.margins, self.tied)

    def _sort_inner(self) -> None:
        """Order the copies inside each unit by what comes in: they have labels of their own.

        Where what comes in has labels as well, which are not ordered yet, its entries are sorted among themselves.
        """
        for outer, inner in self.inner.items():
            n, m = self.symmetry.spaces[outer or ""].size, self.symmetry.spaces[inner].size
            rows = np.zeros((n, m, 0))
            for p in self.pieces:
                names = [a.space for a in p.axes]
                if inner in names and p.axes[names.index(inner)].role == "in":
                    t = np.moveaxis(p.view(self.tensors[p.tensor]), (names.index(outer or ""), names.index(inner)), (0, 1))
                    entries = np.asarray(t, np.float64).reshape(n, m, -1)
                    if any(name not in ("", inner, outer) for name in names):
                        entries = np.sort(entries, axis=2)
                    rows = np.concatenate([rows, entries], axis=2)
            self.perms[inner] = np.stack([np.lexsort(rows[i].T[::-1]) for i in range(n)])

    def _view(self, piece: Piece) -> Array:
        """The block with every inner space put in its order."""
        t = piece.view(self.tensors[piece.tensor])
        names = [a.space for a in piece.axes]
        for outer, inner in self.inner.items():
            if inner in names and outer in names:
                shape = [1] * t.ndim
                shape[names.index(outer or "")], shape[names.index(inner)] = self.perms[inner].shape
                t = np.take_along_axis(t, self.perms[inner].reshape(shape), axis=names.index(inner))
        return t

    def _single(self, space: str) -> bool:
        if self.symmetry.spaces[space].over is not None:
            return True
        c = self.classes[space]
        return len(np.unique(c)) == len(c)

    def _refine(self, space: str, anchored: bool) -> bool:
        """Split the classes of a space by the parameters around it; whether anything was split."""
        before = self.classes[space]
        if len(np.unique(before)) == len(before):
            return False
        for role in ("in", "out", "label"):
            for piece in self.pieces:
                for i in piece.dims(space, role):
                    if anchored and not all(not a.space or k == i or self._single(a.space) for k, a in enumerate(piece.axes)):
                        continue
                    self._split(space, self._rows(piece, i))
                    if self._single(space):
                        return True
        return len(np.unique(self.classes[space])) > len(np.unique(before))

    def _rows(self, piece: Piece, i: int) -> Array:
        """(units, entries): other units in the order of their classes, entries of one class sorted among themselves."""
        t = self._view(piece)
        for k, a in enumerate(piece.axes):
            if k == i or not a.space or self.symmetry.spaces[a.space].over is not None:
                continue
            c = self.classes[a.space]
            at = np.argsort(c, kind="stable")
            t = np.take(t, at, axis=k)
            starts = np.flatnonzero(np.r_[True, np.diff(c[at]) > 0, True])
            for lo, hi in pairwise(starts):
                if hi - lo > 1:
                    among = (slice(None),) * k + (slice(lo, hi),)
                    t[among] = np.sort(t[among], axis=k)
        rows = np.moveaxis(t, i, 0)
        return rows.reshape(len(rows), -1)

    def _split(self, space: str, rows: Array) -> None:
        c = self.classes[space]
        values, counts = np.unique(c, return_counts=True)
        shared = np.isin(c, values[counts > 1])
        units = np.flatnonzero(shared)
        if not len(units):
            return
        keys = np.column_stack([c[units], rows[units]]) + 0.0  # + 0.0: minus zero counts as zero
        _, rank = np.unique(keys, axis=0, return_inverse=True)
        rank = rank.reshape(-1)
        self._note_margin(space, keys, rank)
        full = np.zeros(len(c), np.intp)
        full[units] = rank
        order = np.lexsort((full, c))
        fresh = np.r_[False, (np.diff(c[order]) > 0) | (np.diff(full[order]) > 0)]
        out = np.empty_like(c)
        out[order] = np.cumsum(fresh)
        self.classes[space] = out

    def _note_margin(self, space: str, keys: Array, rank: Indices) -> None:
        ordered = keys[np.unique(rank, return_index=True)[1]]
        if len(ordered) < 2:
            return
        gaps = np.abs(np.diff(ordered, axis=0))
        same_class = gaps[:, 0] == 0
        deciding = (gaps > 0).argmax(axis=1)
        scale = np.maximum(np.abs(keys).max(axis=0), np.finfo(float).tiny)
        found = (gaps[np.arange(len(gaps)), deciding] / scale[deciding])[same_class]
        if len(found):
            self.margins[space] = min(self.margins[space], float(found.min()))

    def _individualise(self, space: str) -> None:
        """Set one unit of the first class that ties apart: nothing tells which, so the first stored one."""
        c = self.classes[space]
        values, counts = np.unique(c, return_counts=True)
        chosen = values[counts > 1][0]
        member = np.flatnonzero(c == chosen)[0]
        c = 2 * c + (c == chosen)
        c[member] -= 1
        _, self.classes[space] = np.unique(c, return_inverse=True)
        self.tied[space] += 1
