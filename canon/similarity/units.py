"""Unit by unit: each unit's partner, how well it correlates beside the next best, and which units only one side has.

A unit is found on both sides where its correlation with its partner is beyond chance and both are each other's best: no
other unit of either layer comes nearer. Beyond chance means over the 0.95 quantile, over the null's permutations, of the
best correlation that any unit reaches in that permutation's match: one in twenty comparisons of unrelated layers finds a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from canon.similarity.layer import Bools, Floats, Layer
from canon.similarity.pair import Match, Pair

QUANTILE = 0.95
AMBIGUOUS = 0.99
"""A runner-up whose distance is within this ratio of the partner's makes the match ambiguous; as in canon compare."""
RARE = 0.01
"""A unit that is zero otherwise, and over zero in fewer samples than this share, is rare."""
_TWIN = 1e-9
"""How far from 1 the correlation of two units of one layer may be for them to be duplicates."""
_WIDEST = 4096
"""Units up to which duplicates within a layer are looked for."""


@dataclass(frozen=True)
class Unit:
    """One unit of a and its partner in b, as numbered in their layers; a is None for a unit of b without one, and so is b.

    correlation r, and distance = sqrt(1 - r): that of the two activations, centred and normed; 0 the same, 1 unrelated.
    scale: the factor from b to a; runner_up: the next best unit of b, and the ratio of the partner's distance to its;
    active: shares of samples over zero, on each side; found: whether it is on both sides (see the module).
    """

    a: int | None
    b: int | None
    distance: float | None
    correlation: float | None
    scale: float | None
    runner_up: Mapping[str, float | int] | None
    active: tuple[float | None, float | None]
    found: bool
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Units:
    """All units of a pair of layers.

    threshold: the correlation beyond chance; unsigned: whether a unit and its negative count as the same; correlations:
    (d1, d2), of every unit with every unit; order: those of b beside those of a, then the ones left over; curve: matched
    correlations, largest first; band: their 0.025 and 0.975 quantiles under the null, rank by rank.
    """

    a: str
    b: str
    units: tuple[Unit, ...]
    threshold: float | None
    unsigned: bool
    correlations: Floats = field(repr=False)
    order: tuple[tuple[int, ...], tuple[int, ...]] = field(repr=False)
    curve: Floats = field(repr=False)
    band: tuple[Floats, Floats] | None = field(repr=False)

    @property
    def both(self) -> tuple[Unit, ...]:
        """Units found on both sides."""
        return tuple(u for u in self.units if u.found)

    def only(self, side: int) -> tuple[int, ...]:
        """Live units of a (0) or b (1) that are not found on the other side."""
        aside = {f"constant {'ab'[side]}", f"dead {'ab'[side]}"}
        found = ((u.a, u.b)[side] for u in self.units if not u.found and not aside & set(u.flags))
        return tuple(sorted(i for i in found if i is not None))


class Watch:
    """Collects what the null's permutations give unit by unit."""

    def __init__(self, unsigned: bool) -> None:
        self.unsigned = unsigned
        self.curves: list[Floats] = []

    def __call__(self, pair: Pair) -> None:
        """See one permuted pair."""
        match, gain = matched(pair, self.unsigned)
        self.curves.append(np.sort(gain[match.a, match.b])[::-1])


def matched(pair: Pair, unsigned: bool) -> tuple[Match, Floats]:
    """The one-to-one match of live units, and what it maximises: correlations, or their sizes."""
    if not unsigned:
        return pair.matching, pair.correlations
    sizes = np.abs(pair.correlations)
    return pair.match(sizes), sizes


def units(pair: Pair, names: tuple[str, str], watch: Watch) -> Units:
    """The table of a pair whose null `watch` has seen. Raises NumericError where a side has no live unit."""
    a, b = pair.a, pair.b
    match, gain = matched(pair, watch.unsigned)
    curves = np.array(watch.curves)
    threshold = float(np.quantile(curves[:, 0], QUANTILE, method="higher")) if len(curves) else None
    band = None
    if len(curves) > 1:
        low, high = np.quantile(curves, [0.025, 0.975], axis=0)
        band = (low, high)
    best = _mutual(gain, a.live, b.live)
    second, other = _runners(gain, match, b.live)
    twins = _twins(a), _twins(b)
    partner = dict(zip(match.a.tolist(), range(len(match.a)), strict=True))
    scale = np.sqrt(np.where(a.live, a.power, 0.0)), np.sqrt(np.where(b.live, b.power, 1.0))
    table: list[Unit] = []
    for i in range(a.units):
        k = partner.get(i)
        if k is None:
            table.append(Unit(i, None, None, None, None, None, (float(a.active[i]), None), False, _flags(a, i, twins[0], "a")))
            continue
        j, r = int(match.b[k]), float(match.r[k])
        reached = float(gain[i, j])
        near = float(np.sqrt(max(1 - reached, 0.0)))
        runner = None
        flags = [*_flags(a, i, twins[0], "a"), *_flags(b, j, twins[1], "b")]
        if second[k] >= 0:
            away = float(np.sqrt(max(1 - other[k], 0.0)))
            ratio = near / away if away > 0 else 1.0
            runner = {"b": int(second[k]), "ratio": ratio}
            if ratio > AMBIGUOUS:
                flags.append("ambiguous")
        found = bool(best[i, j]) and (threshold is None or reached > threshold)
        factor = float(np.copysign(scale[0][i] / scale[1][j], r)) if watch.unsigned else float(scale[0][i] / scale[1][j])
        active = (float(a.active[i]), float(b.active[j]))
        table.append(Unit(i, j, near, r, factor, runner, active, found, tuple(flags)))
    left = sorted(set(range(b.units)) - set(match.b.tolist()))
    table += [
        Unit(None, j, None, None, None, None, (None, float(b.active[j])), False, _flags(b, j, twins[1], "b")) for j in left
    ]
    rest = [i for i in range(a.units) if i not in partner]
    order = ((*match.a.tolist(), *rest), (*match.b.tolist(), *left))
    curve = np.sort(gain[match.a, match.b])[::-1]
    return Units(*names, tuple(table), threshold, watch.unsigned, pair.correlations, order, curve, band)


def _mutual(gain: Floats, live_a: Bools, live_b: Bools) -> Bools:
    """Where the entry is the largest of its row and of its column, among live units."""
    masked = np.where(live_a[:, None] & live_b, gain, -np.inf)
    return np.asarray((masked >= masked.max(axis=1, keepdims=True)) & (masked >= masked.max(axis=0)) & np.isfinite(masked))


def _runners(gain: Floats, match: Match, live_b: Bools) -> tuple[list[int], list[float]]:
    """For each matched pair the best other unit of b, -1 where there is none, and what it reaches."""
    rest = np.where(live_b, gain[match.a], -np.inf)
    rest[np.arange(len(match.a)), match.b] = -np.inf
    second = rest.argmax(axis=1)
    reached = rest[np.arange(len(match.a)), second]
    return np.where(np.isfinite(reached), second, -1).tolist(), reached.tolist()


def _twins(layer: Layer) -> Bools:
    """Units of which the layer holds another copy, scaled or not."""
    if layer.units > _WIDEST or layer.wide:
        return np.zeros(layer.units, bool)
    own = layer.standardised.scatter - 2 * np.eye(layer.units)
    return np.asarray((own > 1 - _TWIN).any(axis=1) & layer.live)


def _flags(layer: Layer, i: int, twins: Bools, side: str) -> tuple[str, ...]:
    low, high = (float(v[i]) for v in layer.extent)
    words = []
    if not layer.live[i]:
        words.append("dead" if low == 0 == high else "constant")
    elif low == 0 and layer.active[i] < RARE:
        words.append("rare")
    if twins[i]:
        words.append("duplicate")
    return tuple(f"{word} {side}" for word in words)
