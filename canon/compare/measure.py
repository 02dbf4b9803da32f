"""Distances, correlations and entry-by-entry agreement of two normalised networks, in one pass over their tensors.

Per unit, a and b are the stacked incoming vectors, bias included, in all writers: d^2 = |a - b|^2 / (|a|^2 + |b|^2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from canon.action import Action
from canon.compare.side import Side
from canon.compare.stream import ROUNDINGS, Block, Frame, blocks, frame
from canon.ops.base import Array
from canon.symmetry import Axis, Concat, Fixed, Floats, Interleaved, Symmetry, places, stretches

TURNED = 2.0**-42
"""Matrices that turn heads are found numerically: what they move is compared with no finer rounding than this."""
SUMS = ("dd", "aa", "bb", "ab", "a", "b", "n")

Sums = dict[str, Floats]
"""Per unit: sums of (a - b)^2, a^2, b^2, a b, a, b, and the number of entries."""


@dataclass(frozen=True)
class Worst:
    """The entry that deviates most, in units of its bound."""

    tensor: str
    index: tuple[int, ...]
    deviation: float


@dataclass(frozen=True)
class Precision:
    """unit: rounding unit that the bound is taken in; floors: smallest normal number of either side's stored type."""

    unit: float
    floors: tuple[float, float]


def measure(
    a: Side,
    b: Side,
    left: Action,
    right: Action,
    precision: Precision | None = None,
    centred: bool = True,
) -> tuple[dict[str, Sums], Worst | None]:
    """Compare all tensors of A under `left` (a gauge) with those of B under `right`.

    Returns sums by space (and by op for units that are fixed, as outputs are), and with a `precision` the worst entry.
    centred: on centred tensors; otherwise as folded (for the raw distance).
    """
    symmetry = a.symmetry
    out: dict[str, Sums] = {}
    worst: Worst | None = None
    ta, tb = (s.tensors if centred else s.folded.network.tensors for s in (a, b))
    va, vb = left.values_of(ta), right.values_of(tb)
    for name in symmetry.axes:
        along = [i for i, side in enumerate(symmetry.axes[name]) if side.role == "in"]
        x, y = ta[name], tb[name]
        sizes = (a.size(name), b.size(name)) if precision is not None else (None, None)
        turning = right.turning(name)
        if turning or any(side.power is not None for side in symmetry.axes[name]):  # they do not move by factors alone
            if turning and precision is not None:
                wholes = [np.abs(t) if m is None else m for t, m in zip((x, y), sizes, strict=True)]
                sizes = (left.linear(name, wholes[0], va, absolute=True), right.linear(name, wholes[1], vb, absolute=True))
            x, y = left.linear(name, x, va), right.linear(name, y, vb)
            how = frame(name, x, Action(symmetry), Action(symmetry), {}, {})
        else:
            how = frame(name, x, left, right, va, vb)
        tensor = _Tensor(name, x, y, how, sizes)
        bounds = replace(precision, unit=max(precision.unit, TURNED)) if precision is not None and turning else precision
        sums, found = tensor.look(along[0] if along else None, bounds)
        if found is not None and (worst is None or found.deviation > worst.deviation):
            worst = found
        if along:
            _distribute(out, a, symmetry, name, along[0], sums)
    return out, worst


class _Tensor:
    """One tensor of both sides."""

    def __init__(self, name: str, x: Array, y: Array, how: Frame, sizes: tuple[Array | None, Array | None]) -> None:
        self.name, self.x, self.y, self.how, self.sizes = name, x, y, how, sizes

    def look(self, along: int | None, precision: Precision | None) -> tuple[Sums, Worst | None]:
        """Sums per unit of the axis `along`, and the worst entry."""
        sums = {k: np.zeros(self.x.shape[along] if along is not None else 1) for k in SUMS}
        worst: Worst | None = None
        magnitudes = self._magnitudes()
        for block in blocks(self.how, self.x, self.y):
            gap = block.x - block.y
            if along is not None:
                _collect(sums, block, gap, self.how, self.how.order.index(along))
            if precision is None:
                continue
            known = next(magnitudes)
            found = self._worst(block, gap, known, precision)
            if block.single and found.deviation > 1 - ROUNDINGS / 16:
                # the block's own rounding could have decided: look again in float64
                exact = next(blocks(self._part(block.here), *self._parts(block.here), double=True))
                found = self._worst(replace(exact, here=block.here), exact.x - exact.y, known, precision)
            if worst is None or found.deviation > worst.deviation:
                worst = found
        if along is not None:
            own = self.how.weights[self.how.order.index(along)]
            if own is not None:
                for k, power in (("dd", 2), ("aa", 2), ("bb", 2), ("a", 1), ("b", 1)):
                    sums[k] *= own**power
            sums["ab"] = (sums["aa"] + sums["bb"] - sums["dd"]) / 2
        return sums, worst

    def _part(self, here: slice) -> Frame:
        """The frame of a few rows of the running axis."""
        ratio, weight = (None if t is None else t[here] for t in (self.how.ratios[0], self.how.weights[0]))
        return Frame(
            tuple(range(len(self.how.order))),
            (None, *self.how.moves[1:]),
            (ratio, *self.how.ratios[1:]),
            (weight, *self.how.weights[1:]),
        )

    def _parts(self, here: slice) -> tuple[Array, Array]:
        a, b = self.x.transpose(self.how.order), self.y.transpose(self.how.order)
        return a[here], b[here] if self.how.moves[0] is None else b[self.how.moves[0][here]]

    def _magnitudes(self) -> Iterator[tuple[Array | None, Array | None]]:
        """For each block, the magnitudes of A and of B in A's frame, where they are not the entries themselves."""
        sizes = self.sizes
        if sizes[0] is None and sizes[1] is None:
            while True:
                yield None, None
        absolute = replace(self.how, ratios=tuple(None if r is None else np.abs(r) for r in self.how.ratios))
        left = np.abs(self.x) if sizes[0] is None else sizes[0]
        right = np.abs(self.y) if sizes[1] is None else sizes[1]
        for block in blocks(absolute, left.astype(np.float64), right.astype(np.float64)):
            yield block.x, block.y

    def _worst(self, block: Block, gap: Array, known: tuple[Array | None, Array | None], precision: Precision) -> Worst:
        sizes = [np.abs(t) if m is None else m for t, m in zip((block.x, block.y), known, strict=True)]
        bound = np.maximum(*sizes)
        bound *= 16 * precision.unit
        off = np.abs(gap)
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(off, bound, out=off)
        np.copyto(off, 0.0, where=np.isnan(off))  # 0 / 0: both are zero
        if off.size and off.max() > 1 and off.ndim:  # only now does the floor matter
            at = np.nonzero(off > 1)
            floor = np.full(len(at[0]), precision.floors[0])
            scale = np.full(len(at[0]), precision.floors[1])
            for dim, r in enumerate(self.how.ratios):
                if r is not None:
                    scale *= np.abs((r[block.here] if dim == 0 else r)[at[dim]])
            wide = np.maximum(np.maximum(floor, scale), bound[at])
            off[at] = np.divide(np.abs(gap[at]), wide, out=np.full(len(wide), np.inf), where=wide > 0)
        if not off.size:
            return Worst(self.name, (), 0.0)
        place = np.unravel_index(int(off.argmax()), off.shape)
        index = [0] * len(self.how.order)
        for dim, i in zip(self.how.order, place, strict=True):
            index[dim] = int(i)
        if index:
            index[self.how.order[0]] += block.here.start
        return Worst(self.name, tuple(index), float(off[place]))


def _collect(sums: Sums, block: Block, gap: Array, how: Frame, along: int) -> None:
    """Add a block's sums to the units of the axis `along` (of the block), other axes weighted by A's factors."""
    weights = [None if w is None else w.astype(gap.dtype, copy=False) for w in how.weights]
    weights = [w if w is None or i else w[block.here] for i, w in enumerate(weights)]
    rows = slice(None) if along else block.here
    for key, value, power in (
        ("dd", gap * gap, 2),
        ("aa", block.x * block.x, 2),
        ("bb", block.y * block.y, 2),
        ("a", block.x, 1),
        ("b", block.y, 1),
    ):
        sums[key][rows] += _summed(value, weights, along, power)
    sums["n"][rows] += gap.size // max(1, gap.shape[along])


def _summed(value: Array, weights: list[Floats | None], along: int, power: int) -> Array:
    """Weighted sum over all axes but one. By einsum: threads of a linear algebra library cost more than blocks this small."""
    for i in reversed(range(value.ndim)):
        if i != along:
            w = weights[i]
            value = value.sum(axis=i) if w is None else _contract(value, w**power, i)
    return value


def _contract(value: Array, w: Array, axis: int) -> Array:
    if value.ndim == 2:
        return np.asarray(np.einsum("ij,j->i" if axis == 1 else "ij,i->j", value, w))
    return np.asarray(np.tensordot(value, w, (axis, 0)))


def _distribute(out: dict[str, Sums], a: Side, symmetry: Symmetry, name: str, dim: int, sums: Sums) -> None:
    axis = symmetry.axes[name][dim].axis
    for use, at in places(axis):
        # the units of a space over another are counted for each unit of the outer one
        own = out.setdefault(use.space, {k: np.zeros(unit_count(symmetry, use.space)) for k in SUMS})
        for k, v in sums.items():
            own[k] += v[_unit_positions(symmetry, use.space, at)].sum(axis=0)
    fixed = _fixed_positions(axis)
    if len(fixed):
        op = next(iter(a.folded.network.uses[name]))[0].name
        label = op if op not in symmetry.spaces else f"{op} (fixed)"
        own = out.setdefault(label, {k: np.zeros(len(fixed)) for k in SUMS})
        if len(own["n"]) == len(fixed):
            for k, v in sums.items():
                own[k] += v[fixed]


def unit_count(symmetry: Symmetry, space: str) -> int:
    """The number of units that a space contributes to a comparison."""
    s = symmetry.spaces[space]
    return s.size * (symmetry.spaces[s.over].size if s.over else 1)


def _unit_positions(symmetry: Symmetry, space: str, at: NDArray[np.intp]) -> NDArray[np.intp]:
    """(copies, units): for a space over another, each outer unit's copy is a unit of its own."""
    over = symmetry.spaces[space].over
    if over is None:
        return at
    return at.reshape(-1, unit_count(symmetry, space))


def _fixed_positions(axis: Axis) -> NDArray[np.intp]:
    """Positions of the fixed stretches of an axis that are not factors of a product."""
    if isinstance(axis, Fixed):
        return np.arange(axis.size)
    if not isinstance(axis, Concat | Interleaved):
        return np.zeros(0, np.intp)
    return np.concatenate([np.zeros(0, np.intp), *(at[_fixed_positions(p)] for p, at in stretches(axis))])


def distances(sums: Sums) -> Floats:
    """Per unit |a - b| / sqrt(|a|^2 + |b|^2); 0 where both are zero."""
    total = sums["aa"] + sums["bb"]
    return np.sqrt(np.divide(sums["dd"], total, out=np.zeros_like(total), where=total > 0))


def correlations(sums: Sums) -> Floats:
    """Per unit the Pearson correlation of a and b; NaN where one of them is constant."""
    n = np.maximum(sums["n"], 1)
    cov = sums["ab"] - sums["a"] * sums["b"] / n
    va, vb = sums["aa"] - sums["a"] ** 2 / n, sums["bb"] - sums["b"] ** 2 / n
    tiny = 1e-12 * np.maximum(sums["aa"], 1e-300), 1e-12 * np.maximum(sums["bb"], 1e-300)
    defined = (va > tiny[0]) & (vb > tiny[1])
    out: Floats = np.divide(cov, np.sqrt(np.where(defined, va * vb, 1.0)), out=np.full(len(n), np.nan), where=defined)
    return np.clip(out, -1.0, 1.0)


def mean_distance(sums: Sums, live: NDArray[np.bool_]) -> float | None:
    """Root mean square over live units; None where no unit is live."""
    d = distances(sums)[live]
    return float(np.sqrt(np.mean(d**2))) if len(d) else None
