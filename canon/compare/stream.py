"""Two tensors side by side, a block at a time, the second one relabelled and rescaled into the first one's frame.

Blocks run along the axis that lies furthest apart in memory, so that what is read lies together whatever the file's
layout. Large float32 tensors are compared in float32, which adds a known few roundings; everything else in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from canon.action import Action
from canon.ops.base import Array
from canon.symmetry import Floats, Indices, factor, gather

STEP = 1 << 18
"""Entries of a block: small enough for the cache."""
_SINGLE = 1 << 20
"""Tensors with at least this many entries are compared in the type they are stored in."""
ROUNDINGS = 6
"""Roundings that a float32 block may add to an entry of B: two products, their factors, and the difference."""


@dataclass(frozen=True)
class Block:
    """x of A as stored; y of B in A's frame; both with the axis `dim` of the tensor in front, and there the rows `here`.

    single: whether they are in float32.
    """

    x: Array
    y: Array
    dim: int
    here: slice
    single: bool


@dataclass(frozen=True)
class Frame:
    """How B's tensor comes into A's frame. order: the tensor's axes as blocks have them, the running one first; moves:
    for each of them where a position comes from in B; ratios: what B is multiplied by; weights: A's own factors.
    """

    order: tuple[int, ...]
    moves: tuple[Indices | None, ...]
    ratios: tuple[Floats | None, ...]
    weights: tuple[Floats | None, ...]


def frame(name: str, t: Array, left: Action, right: Action, va: Mapping[str, Floats], vb: Mapping[str, Floats]) -> Frame:
    """The frame of a tensor: A under `left` (gauge alone, no relabelling) against B under `right`."""
    sides = left.symmetry.axes[name]
    first = int(np.argmax(np.abs(t.strides))) if t.ndim else 0
    order = (first, *(i for i in range(t.ndim) if i != first))
    moves, ratios, weights = [], [], []
    for i in order:
        moved = gather(sides[i].axis, right.perms)
        fa, fb = factor(sides[i].axis, va), factor(sides[i].axis, vb)
        if fb is not None and moved is not None:
            fb = fb[moved]
        ratio = fb if fa is None else (1.0 if fb is None else fb) / fa
        moves.append(moved)
        ratios.append(ratio)
        weights.append(fa)
    return Frame(order, tuple(moves), tuple(ratios), tuple(weights))


def blocks(how: Frame, ta: Array, tb: Array, double: bool = False) -> Iterator[Block]:
    """All blocks of two tensors under a frame. double: in float64 whatever their type."""
    a, b = ta.transpose(how.order), tb.transpose(how.order)
    single = not double and ta.dtype == tb.dtype == np.float32 and ta.size >= _SINGLE
    kind = np.float32 if single else np.float64
    ratios = [None if r is None else r.astype(kind, copy=False) for r in how.ratios]
    rows = max(1, STEP // max(1, a[0].size if len(a) else 1))
    for start in range(0, len(a), rows):
        here = slice(start, min(start + rows, len(a)))
        x = np.asarray(a[here], kind)
        y = b[here] if how.moves[0] is None else b[how.moves[0][here]]
        for dim, m in enumerate(how.moves[1:], start=1):
            if m is not None:
                y = np.take(y, m, axis=dim)
        y = np.asarray(y, kind)
        for dim, r in enumerate(ratios):
            if r is not None:
                y = y * (r[here] if dim == 0 else r).reshape([-1 if i == dim else 1 for i in range(y.ndim)])
        yield Block(x, y, how.order[0], here, single)
