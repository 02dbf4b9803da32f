"""The types of a symmetry: spaces of units, gauges on them, and how the axes of tensors and values carry both.

An axis is a small tree. Its leaves are `Use` (the units of a space) and `Fixed` (nothing moves); `Concat` puts axes one
after the other, `Interleaved` takes entries of several in turn, `Product` multiplies them row-major, as flattening does.
Gauges sit where they act: on a `Use`, one factor a unit, or on a `Product`, one factor for each of its entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from canon.ops.base import Array
from canon.ops.geometry import blocks_of, written_out
from canon.symmetry.blocks import Block

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Powers = tuple[tuple[str, int | float], ...]
"""Gauges with exponents: a factor is the product of gauge ** exponent."""


@dataclass(frozen=True)
class Fixed:
    """An axis, or a stretch of one, along which nothing moves, and why."""

    size: int
    why: str = ""


@dataclass(frozen=True)
class Turn(Fixed):
    """The units of a block, in a product behind the units of its outer space (and others): no labels, no factors, but a
    matrix for each of these. dual: the inverse transpose acts.
    """

    block: str = ""
    dual: bool = False


@dataclass(frozen=True)
class Use:
    """The units of a space, in its labelling, times gauges."""

    space: str
    size: int
    gauges: Powers = ()


@dataclass(frozen=True)
class Concat:
    """Axes one after the other."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(p.size for p in self.parts)

    @property
    def spots(self) -> tuple[tuple[int, int], ...]:
        """First position of each part, and the step from one of its entries to the next."""
        return tuple((start, 1) for start in accumulate([0, *(p.size for p in self.parts[:-1])]))


@dataclass(frozen=True)
class Interleaved:
    """Axes among each other. spots: for each, its first position, and the step from one of its entries to the next."""

    parts: tuple[Axis, ...]
    spots: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(p.size for p in self.parts)


@dataclass(frozen=True)
class Product:
    """Axes multiplied row-major; gauges: one factor for each entry of the whole."""

    parts: tuple[Axis, ...]
    gauges: Powers = ()

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(p.size for p in self.parts)


Axis = Fixed | Use | Concat | Interleaved | Product


@dataclass(frozen=True)
class Space:
    """A set of units that share a labelling, named after the first operation that writes it.

    over: the space of which each unit has its own copy of this one; linear: whether only linear maps touch it, so that
    any invertible matrix may act; writers: the operations that write it, the first one first.
    """

    name: str
    size: int
    over: str | None = None
    linear: bool = False
    writers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gauge:
    """One factor for each unit of a space (or each entry of a product axis).

    kind: "positive" (a scale), "sign", or "slope" (what the flip of a PReLU unit divides its output by: not free, but
    read off `sign` and the tensor `slope`); flip: of a sign, "none" about zero, "affine" about another point, "slope"
    where it inverts a slope.
    """

    name: str
    kind: str
    axis: Axis
    flip: str = "none"
    sign: str | None = None
    slope: str | None = None
    on_entries: bool = False
    """Whether it has a factor for each entry of a product axis."""

    @property
    def size(self) -> int:
        """Number of factors."""
        return self.axis.size


@dataclass(frozen=True)
class TensorAxis:
    """One axis of a parameter tensor.

    role: "in" where it holds incoming parameters of the units along it, "out" for outgoing, "label" for neither;
    power: an axis whose sign gauges invert the entries (the slope of a PReLU); blocks: more than one where only the blocks
    on the diagonal are stored, and the axis is that of the tensor written out (geometry.written_out).
    """

    axis: Axis
    role: str = "label"
    power: Axis | None = None
    blocks: int = 1


@dataclass(frozen=True)
class ValueAxis:
    """One axis of a value; centre: the points about which sign flips act, (size,), or None where all are zero."""

    axis: Axis
    centre: Floats | None = None


@dataclass(frozen=True)
class Symmetry:
    """The group of moves that leave a network's function as it is, derived from its graph and shapes alone.

    axes: for each tensor, its axes; values: for each value, its axes (batch excluded); spaces, gauges: by name, in the
    order of their first writers; fixed: what may not move, and why; blocks: units of heads that matrices turn, by name.
    """

    axes: Mapping[str, tuple[TensorAxis, ...]]
    values: Mapping[str, tuple[ValueAxis, ...]]
    spaces: Mapping[str, Space]
    gauges: Mapping[str, Gauge]
    fixed: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[str, Block] = field(default_factory=dict)

    def whole(self, name: str, t: Array) -> Array:
        """A tensor as its axes speak of it: written out where only the blocks on its diagonal are stored."""
        blocks = max((side.blocks for side in self.axes[name]), default=1)
        return written_out(t, blocks) if blocks > 1 else t

    def stored(self, name: str, t: Array) -> Array:
        """The inverse of `whole`."""
        blocks = max((side.blocks for side in self.axes[name]), default=1)
        return blocks_of(t, blocks) if blocks > 1 else t

    @property
    def log10_permutations(self) -> float:
        """Logarithm of the number of relabellings (linear spaces left out: they have no units)."""
        total = 0.0
        for s in self.spaces.values():
            if not s.linear:
                total += math.lgamma(s.size + 1) / math.log(10) * (self.spaces[s.over].size if s.over else 1)
        return total

    @property
    def continuous_dimension(self) -> int:
        """Number of free real parameters: a scale for each unit, n^2 for a linear space of n."""
        linear = {s.name for s in self.spaces.values() if s.linear}
        scales = sum(g.size for g in self.gauges.values() if g.kind == "positive" and not _spaces(g.axis) & linear)
        return scales + sum(self.spaces[s].size ** 2 for s in linear) + sum(b.dimension for b in self.blocks.values())

    def group(self, space: str) -> str:
        """What acts on a space, in words: "relabelling", "relabelling, scale" ..., "linear"; of heads, what turns their units
        as well: "relabelling; GL(64) on qk, GL(64) on vo".
        """
        if self.spaces[space].linear:
            return "linear"
        words = ["relabelling"]
        names = {"positive": "scale", "sign": "sign"}
        here = [g for g in self.gauges.values() if space in _spaces(g.axis)]
        for kind, word in names.items():
            found = [g for g in here if g.kind == kind]
            if found:
                affine = " (affine)" if any(g.flip == "affine" for g in found) else ""
                words.append(word + affine + (f" x{len(found)}" if len(found) > 1 else ""))
        turns = [f"{b.group} on {b.name.rsplit('.', 1)[-1]}" for b in self.blocks.values() if b.over == space]
        return "; ".join([", ".join(words), *([", ".join(turns)] if turns else [])])


def _spaces(axis: Axis) -> set[str]:
    return {leaf.space for leaf in leaves(axis) if isinstance(leaf, Use)}


def leaves(axis: Axis) -> Iterator[Fixed | Use]:
    """The leaves of an axis from left to right (of an interleaving, first what moves)."""
    if isinstance(axis, Fixed | Use):
        yield axis
    else:
        for p in axis.parts:
            yield from leaves(p)


def places(axis: Axis, start: int = 0, stride: int = 1) -> Iterator[tuple[Use, Indices]]:
    """Each `Use` along an axis with the positions of its units, (copies, size): more than one row inside a product."""
    if isinstance(axis, Use):
        yield axis, (start + stride * np.arange(axis.size))[None, :]
    elif isinstance(axis, Concat | Interleaved):
        for p, at in stretches(axis):
            for use, units in places(p):
                yield use, start + stride * at[units]
    elif isinstance(axis, Product):
        inner = axis.size
        for i, p in enumerate(axis.parts):
            inner //= p.size
            before = np.arange(math.prod(q.size for q in axis.parts[:i])) * (p.size * inner)
            shifts = (before[:, None] + np.arange(inner)[None, :]).reshape(-1)
            for use, at in places(p, 0, inner):
                yield use, start + stride * (shifts[:, None, None] + at[None]).reshape(-1, use.size)


def stretches(axis: Concat | Interleaved) -> Iterator[tuple[Axis, Indices]]:
    """The parts of an axis with the positions of their entries, (size of the part,)."""
    for p, (start, step) in zip(axis.parts, axis.spots, strict=True):
        yield p, start + step * np.arange(p.size)


def gauges_of(axis: Axis) -> dict[str, int | float]:
    """All gauges on an axis with their exponents."""
    found: dict[str, int | float] = {}
    if isinstance(axis, Use | Product):
        found.update(axis.gauges)
    if isinstance(axis, Concat | Interleaved | Product):
        for p in axis.parts:
            found.update(gauges_of(p))
    return found


def gather(axis: Axis, perms: Mapping[str, Indices]) -> Indices | None:
    """For each new position along an axis, the old one it comes from; None where nothing moves.

    perms: space -> (size,), new unit i is old unit perm[i]; for a space over another, (outer size, size), one row for
    each new unit of the outer space.
    """
    if isinstance(axis, Fixed):
        return None
    if isinstance(axis, Use):
        return perms.get(axis.space)
    if isinstance(axis, Concat | Interleaved):
        moved = [gather(p, perms) for p in axis.parts]
        if all(m is None for m in moved):
            return None
        out = np.arange(axis.size)
        for (_, at), m in zip(stretches(axis), moved, strict=True):
            if m is not None:
                out[at] = at[m]
        return out
    return _gather_product(axis, perms)


def _gather_product(axis: Product, perms: Mapping[str, Indices]) -> Indices | None:
    moved = [gather(p, perms) for p in axis.parts]
    if all(m is None for m in moved):
        return None
    shape = tuple(p.size for p in axis.parts)
    new = list(np.indices(shape, sparse=True))
    old: list[Indices] = []
    for i, (part, m) in enumerate(zip(axis.parts, moved, strict=True)):
        if m is None:
            old.append(new[i])
        elif m.ndim == 1:
            old.append(m[new[i]])
        else:  # one labelling for each unit of the part in front, which is its outer space
            assert isinstance(part, Use)
            old.append(m[new[i - 1], new[i]])
    return np.ravel_multi_index(np.broadcast_arrays(*old), shape).reshape(-1)


def factor(axis: Axis, values: Mapping[str, Floats]) -> Floats | None:
    """The factor of each entry along an axis, (size,), in the old labelling; None where all are one."""
    if isinstance(axis, Fixed):
        return None
    if isinstance(axis, Use):
        return _powers(axis.gauges, values)
    parts = [factor(p, values) for p in axis.parts]
    if isinstance(axis, Concat | Interleaved):
        if all(p is None for p in parts):
            return None
        out = np.ones(axis.size)
        for (_, at), f in zip(stretches(axis), parts, strict=True):
            if f is not None:
                out[at] = f
        return out
    whole = _powers(axis.gauges, values)
    if all(p is None for p in parts):
        return whole
    spread = np.ones(())
    for a, p in zip(axis.parts, parts, strict=True):
        spread = np.multiply.outer(spread, np.ones(a.size) if p is None else p)
    flat: Floats = spread.reshape(-1)
    return flat if whole is None else flat * whole


def _powers(gauges: Powers, values: Mapping[str, Floats]) -> Floats | None:
    out: Floats | None = None
    for name, exponent in gauges:
        v = values.get(name)
        if v is None:
            continue
        if exponent == -1:
            v = 1.0 / v
        elif exponent != 1:
            v = v**exponent
        out = v if out is None else out * v
    return out
