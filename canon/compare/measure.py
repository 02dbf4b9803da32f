"""Distances, correlations and entry-by-entry agreement of two normalised networks, in one pass over their tensors.

Per unit, a and b are the stacked incoming vectors, bias included, in all writers: d^2 = |a - b|^2 / (|a|^2 + |b|^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from canon.action import Action
from canon.compare.side import Side
from canon.ops.base import Array
from canon.symmetry import Axis, Concat, Fixed, Floats, Symmetry, places

_STEP = 1 << 18
"""Entries of a tensor looked at at a time: small enough for the cache."""
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
    a: Side, b: Side, left: Action, right: Action, precision: Precision | None = None, centred: bool = True, tensors: Iterable[str] | None = None
) -> tuple[dict[str, Sums], Worst | None]:
    """Compare all tensors of A under `left` with those of B under `right`.

    Returns sums by space (and by op for units that are fixed, as outputs are), and with a `precision` the worst entry.
    centred: on centred tensors; otherwise as folded (for the raw distance).
    """
    symmetry = a.symmetry
    names = list(symmetry.axes) if tensors is None else list(tensors)
    out: dict[str, Sums] = {}
    worst: Worst | None = None
    ta, tb = (s.tensors if centred else s.folded.network.tensors for s in (a, b))
    va, vb = left.values_of(ta), right.values_of(tb)
    for name in names:
        along = [i for i, side in enumerate(symmetry.axes[name]) if side.role == "in"]
        sums = {k: np.zeros(ta[name].shape[along[0]] if along else 1) for k in SUMS}
        tensor = _Tensor(name, (a, b), (left, right), (ta, tb), (va, vb))
        for here, x, y, sizes in tensor.blocks(precision is not None):
            if along:
                _collect(sums, x, y, along[0], here)
            if precision is not None:
                found = tensor.worst(here, x, y, sizes, precision)
                if worst is None or found.deviation > worst.deviation:
                    worst = found
        if along:
            _distribute(out, a, symmetry, name, along[0], sums)
    return out, worst


class _Tensor:
    """One tensor of both sides, a block at a time."""

    def __init__(
        self, name: str, sides: tuple[Side, Side], actions: tuple[Action, Action],
        tensors: tuple[Mapping[str, Array], Mapping[str, Array]], values: tuple[Mapping[str, Floats], Mapping[str, Floats]],
    ) -> None:  # fmt: skip
        self.name, self.sides, self.actions, self.values = name, sides, actions, values
        self.stored = (tensors[0][name], tensors[1][name])

    def blocks(self, sized: bool) -> Iterator[tuple[slice, Array, Array, list[Array]]]:
        """(rows, block of A, block of B, magnitudes of both)."""
        runs = [act.blocks(self.name, t, v, _STEP) for act, t, v in zip(self.actions, self.stored, self.values, strict=True)]
        sizes = [side.magnitudes.get(self.name) if sized else None for side in self.sides]
        known = [
            None if m is None else act.blocks(self.name, m, {g: np.abs(f) for g, f in v.items()}, _STEP)
            for m, act, v in zip(sizes, self.actions, self.values, strict=True)
        ]
        for (here, x), (_, y) in zip(*runs, strict=True):
            yield here, x, y, [np.abs(t) if run is None else next(run)[1] for t, run in zip((x, y), known, strict=True)]

    def worst(self, here: slice, x: Array, y: Array, sizes: list[Array], precision: Precision) -> Worst:
        """The entry of a block that deviates most."""
        bound = np.maximum(sizes[0], sizes[1])
        bound *= 16 * precision.unit
        gap = np.abs(x - y)
        off = np.divide(gap, bound, out=np.where(gap > 0, np.inf, 0.0), where=bound > 0)
        if off.size and off.max() > 1 and off.ndim:  # only now does the floor matter
            at = np.nonzero(off > 1)
            floor = np.zeros(len(at[0]))
            for action, values, tiny in zip(self.actions, self.values, precision.floors, strict=True):
                scale = np.full(len(at[0]), tiny)
                for dim, f in enumerate(action.factors(self.name, values)):
                    if f is not None:
                        scale *= np.abs(f[at[dim] + (here.start if dim == 0 else 0)])
                floor = np.maximum(floor, scale)
            off[at] = gap[at] / np.maximum(bound[at], floor)
        if not off.size:
            return Worst(self.name, (), 0.0)
        place = np.unravel_index(int(off.argmax()), off.shape)
        index = tuple(int(i) for i in place)
        return Worst(self.name, (index[0] + here.start, *index[1:]) if index else (), float(off[place]))


def _collect(sums: Sums, x: Array, y: Array, dim: int, here: slice) -> None:
    if dim:
        x, y = np.moveaxis(x, dim, 0), np.moveaxis(y, dim, 0)
        here = slice(0, len(x))
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    d = x - y
    sums["dd"][here] += np.einsum("ij,ij->i", d, d)
    sums["aa"][here] += np.einsum("ij,ij->i", x, x)
    sums["bb"][here] += np.einsum("ij,ij->i", y, y)
    sums["ab"][here] += np.einsum("ij,ij->i", x, y)
    sums["a"][here] += x.sum(axis=1)
    sums["b"][here] += y.sum(axis=1)
    sums["n"][here] += x.shape[1]


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
    if not isinstance(axis, Concat):
        return np.zeros(0, np.intp)
    found, start = [np.zeros(0, np.intp)], 0
    for p in axis.parts:
        found.append(start + _fixed_positions(p))
        start += p.size
    return np.concatenate(found)


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
