"""Tensors cut into plain blocks: every axis of a piece is either one space or fixed.

Concatenations and interleavings are sliced and products reshaped, so that whatever compares, matches or orders units meets
nothing but blocks like (units of one space, units of another, rest), whatever layers they came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canon.ops.base import Array
from canon.symmetry import Axis, Concat, Fixed, Indices, Interleaved, Product, Symmetry, TensorAxis, Turn, Use, stretches


@dataclass(frozen=True)
class PieceAxis:
    """One axis of a piece. space: "" where nothing moves; role: "in", "out" or "label"; signs: the sign gauges that act on
    single units along it; size: its length; turn: the block whose matrices act along it.
    """

    space: str
    size: int
    role: str
    signs: frozenset[str] = frozenset()
    turn: str = ""


@dataclass(frozen=True)
class Piece:
    """A block of a tensor. steps: reshapes ("reshape", dim, sizes) and slices ("slice", dim, start, stop, step), in order."""

    tensor: str
    steps: tuple[tuple[Any, ...], ...]
    axes: tuple[PieceAxis, ...]

    def view(self, t: Array) -> Array:
        """The block of a tensor (a view where memory allows)."""
        for step in self.steps:
            if step[0] == "slice":
                t = t[(slice(None),) * step[1] + (slice(*step[2:]),)]
            else:
                t = t.reshape(*t.shape[: step[1]], *step[2], *t.shape[step[1] + 1 :])
        return t

    def rows(self, t: Array, axis: int) -> Array:
        """The block as (units along `axis`, everything else)."""
        x = np.moveaxis(self.view(t), axis, 0)
        return x.reshape(len(x), -1)

    def dims(self, space: str, role: str = "") -> list[int]:
        """The axes that carry a space (in a role)."""
        return [i for i, a in enumerate(self.axes) if a.space == space and role in ("", a.role)]


def is_matched(symmetry: Symmetry, gauge: str) -> bool:
    """Whether a gauge is a sign that a matching may choose unit by unit: a flip through a slope is fixed by the slope."""
    g = symmetry.gauges[gauge]
    return g.kind == "sign" and g.flip != "slope" and not g.on_entries


def cut(symmetry: Symmetry, tensors: Sequence[str] | None = None) -> list[Piece]:
    """All pieces of all tensors (or of those named), in the tensors' order."""
    out: list[Piece] = []
    for name, axes in symmetry.axes.items():
        if tensors is None or name in tensors:
            out += [Piece(name, steps, done) for steps, done in _cut(list(axes), 0, (), (), symmetry)]
    return out


_Found = tuple[tuple[tuple[Any, ...], ...], tuple[PieceAxis, ...]]


def _cut(
    axes: list[TensorAxis], at: int, steps: tuple[tuple[Any, ...], ...], done: tuple[PieceAxis, ...], symmetry: Symmetry
) -> Iterator[_Found]:
    if at == len(axes):
        yield steps, done
        return
    side = axes[at]
    axis: Axis = side.axis
    if isinstance(axis, Fixed):
        turn = axis.block if isinstance(axis, Turn) else ""
        yield from _cut(axes, at + 1, steps, (*done, PieceAxis("", axis.size, side.role, turn=turn)), symmetry)
    elif isinstance(axis, Use):
        signs = frozenset(g for g, _ in axis.gauges if is_matched(symmetry, g))
        yield from _cut(axes, at + 1, steps, (*done, PieceAxis(axis.space, axis.size, side.role, signs)), symmetry)
    elif isinstance(axis, Concat | Interleaved):
        for p, (start, step) in zip(axis.parts, axis.spots, strict=True):
            cutting = (*steps, ("slice", at, start, start + step * (p.size - 1) + 1, step))
            yield from _cut([*axes[:at], TensorAxis(p, side.role), *axes[at + 1 :]], at, cutting, done, symmetry)
    else:
        assert isinstance(axis, Product)
        shaped = (*steps, ("reshape", at, tuple(p.size for p in axis.parts)))
        inner = [TensorAxis(p, side.role) for p in axis.parts]
        yield from _cut([*axes[:at], *inner, *axes[at + 1 :]], at, shaped, done, symmetry)


def entries(axis: Axis, gauge: str) -> Indices:
    """For each position along an axis, the entry of a gauge that acts there, -1 where it does not; (size,)."""
    if isinstance(axis, Fixed):
        return np.full(axis.size, -1, np.intp)
    if isinstance(axis, Use | Product) and any(g == gauge for g, _ in axis.gauges):
        return np.arange(axis.size)
    if isinstance(axis, Use):
        return np.full(axis.size, -1, np.intp)
    if isinstance(axis, Concat | Interleaved):
        out = np.empty(axis.size, np.intp)
        for part, at in stretches(axis):
            out[at] = entries(part, gauge)
        return out
    out = np.full((1,), -1, np.intp)
    for part in axis.parts:  # at most one part of a product carries it
        out = np.maximum(out[:, None], entries(part, gauge)[None, :]).reshape(-1)
    return out


def exponent(axis: Axis, gauge: str) -> float:
    """The power to which a gauge enters along an axis (0 where it does not)."""
    if isinstance(axis, Fixed):
        return 0.0
    own = sum(e for g, e in axis.gauges if g == gauge) if isinstance(axis, Use | Product) else 0.0
    if own or isinstance(axis, Use):
        return float(own)
    return next((e for p in axis.parts if (e := exponent(p, gauge))), 0.0)
